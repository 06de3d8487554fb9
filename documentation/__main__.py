"""Write the table of encodings to README.md: python -m bearings.documentation."""

from pathlib import Path

from ..core.whole_files import written_whole
from .encodings import readme_with_table

README = Path(__file__).parent.parent / "README.md"


def main() -> None:
    """Write README.md if the table has changed."""
    before = README.read_text(encoding="utf-8")
    after = readme_with_table(before)
    if after == before:
        print(f"{README}: the table of encodings is up to date")
        return
    with written_whole(README) as file:
        file.write(after)
    print(f"wrote the table of encodings to {README}")


if __name__ == "__main__":
    main()
