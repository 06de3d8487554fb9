"""Converts the CSV of a benchmark to a Markdown table.

python -m bearings.benchmarks.table attention.csv attention.md
"""

import argparse
from pathlib import Path

from ..core.checked_files import read_csv

MADE_BY = ("device", "torch", "triton", "cudnn", "commit")


def table(source: Path, target: Path) -> None:
    """Convert the CSV `source` to the Markdown file `target`. Values common to all rows go above the table."""
    rows = read_csv(source)
    fields = [field for field in rows[0] if field not in MADE_BY]
    made_by = {field: ", ".join(dict.fromkeys(row[field] for row in rows)) for field in MADE_BY if field in rows[0]}
    lines = [f"`{source.name}`: " + "; ".join(f"{field} {value}" for field, value in made_by.items()), ""]
    lines += ["| " + " | ".join(field.replace("_", " ") for field in fields) + " |", "|---" * len(fields) + "|"]
    lines += ["| " + " | ".join(shown(row[field]) for field in fields) + " |" for row in rows]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


def shown(value: str) -> str:
    """A fractional number with three digits; other values unchanged."""
    try:
        return value if value.isdigit() else f"{float(value):.3g}"
    except ValueError:
        return value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="CSV to read")
    parser.add_argument("target", type=Path, help="Markdown to write")
    table(**vars(parser.parse_args()))
