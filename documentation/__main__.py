"""Write the table of encodings to README.md, and the stub of `bearings.encodings`: python -m bearings.documentation."""

from ..core.whole_files import write_text
from ..studying.readme import README
from .encodings import readme_with_table
from .stub import STUB, stub


def main() -> None:
    """Write the files that have changed."""
    for path, after in ((README, readme_with_table(README.read_text(encoding="utf-8"))), (STUB, stub())):
        if path.exists() and path.read_text(encoding="utf-8") == after:
            print(f"{path}: up to date")
            continue
        write_text(path, after)
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
