"""The studies of the package, and the folders of their records."""

from pathlib import Path

from ..core.errors import UserError, suggestions
from ..core.options import as_path
from ..core.whole_files import write_text
from ..reporting.packed import RUNS
from ..reporting.study_list import LIST

ROOT = Path(__file__).parent.parent
STUDIES = ROOT / "studies"


def studies() -> list[str]:
    """Names of the studies of the package."""
    return sorted(file.parent.name for file in STUDIES.glob(f"*/{LIST}"))


def recorded() -> list[str]:
    """Names of the studies that have records."""
    return [name for name in studies() if (STUDIES / name / RUNS).exists() or (STUDIES / name / "runs").is_dir()]


def folder_of(study: str, dry: bool = False) -> Path:
    """The folder for the records of `study`, which is a name from `studies` or a folder with a study.yaml.

    For a name it is `studies/NAME` in the current folder or in the checkout. An installed package is not changed:
    unless `dry`, its list is copied to the current folder.

    Raises:
        UserError: the study does not exist.
    """
    if study not in studies():
        folder = as_path(study)
        if not (folder / LIST).exists():
            allowed = f"{suggestions(study, studies())}, or a folder with a {LIST}"
            raise UserError(f"study={study}: {folder / LIST} does not exist; {allowed}")
        return folder
    here, there = Path("studies") / study, STUDIES / study
    if (here / LIST).exists():
        return here
    if dry or (ROOT / "pyproject.toml").exists():
        return there
    here.mkdir(parents=True, exist_ok=True)
    write_text(here / LIST, (there / LIST).read_text(encoding="utf-8"))
    return here
