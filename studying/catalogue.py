"""The studies that come with the package, and where the records of each are kept."""

from pathlib import Path

from ..core.errors import UserError
from ..reporting.planned import LIST
from ..session.run_directory import write_text

ROOT = Path(__file__).parent.parent
STUDIES = ROOT / "studies"


def studies() -> list[str]:
    """Names of the studies that come with the package."""
    return sorted(file.parent.name for file in STUDIES.glob(f"*/{LIST}"))


def folder_of(study: str, dry: bool = False) -> Path:
    """The folder in which the records of `study` are kept, a name from `studies` or a folder with a study.yaml.

    That of a name is `studies/NAME` below the current folder, or in a checkout. An installed package is left as it is:
    its list is copied to the current folder, unless `dry`.

    Raises:
        UserError: there is no such study.
    """
    if study not in studies():
        folder = Path(study).expanduser()
        if not (folder / LIST).exists():
            raise UserError(f"study={study}: there is no {folder / LIST}; studies here: {', '.join(studies())}")
        return folder
    here, there = Path("studies") / study, STUDIES / study
    if (here / LIST).exists():
        return here
    if dry or (ROOT / "pyproject.toml").exists():
        return there
    here.mkdir(parents=True, exist_ok=True)
    write_text(here / LIST, (there / LIST).read_text(encoding="utf-8"))
    return here
