"""python -m bearings, python main.py and the command `bearings`."""

from bearings.core import stopping


def main() -> None:
    """Entry point."""
    stopping.listen()  # before the slow imports of the command line
    from bearings.session import cli

    cli.main()


if __name__ == "__main__":
    main()
