"""The figures of the repository's README, drawn from the records of its studies."""

from pathlib import Path

from ..reporting.overview import overview, results, write_figure
from ..reporting.reading import read_study
from ..reporting.scores import FEW_SEEDS, study_scores
from .catalogue import ROOT, STUDIES
from .front_page import RANKED

ASSETS = ROOT / "docs" / "assets"
# The study that represents each domain in the overview, and how the README names its data.
SHOWN = {"jsb": "jsb", "maestro": "maestro_60k", "genome": "zoo_genome", "text": "wikitext2"}
TITLES = {"jsb": "Bach chorales", "maestro": "piano", "genome": "human genome", "text": "Wikipedia"}
COMPARED = {"pope", "path"}  # encodings that the overview compares with the reference
SAMPLED = "path"  # encoding whose first sample the overview shows
NAMED = ("local_global", "path", "path_fox", "pope", "rcmha", "rope", "rope_pp")  # encodings that stand out in results


def write_figures(folder: Path = ASSETS) -> list[Path]:
    """Write overview.svg and results.svg, each with a dark form, from the kept records."""
    study = read_study([STUDIES / name for name in SHOWN.values()])
    # Without enough seeds, an interval covers less than it seems to: it is over clusters only.
    found = [score for score in study_scores(study, "rope") if score.verdict != FEW_SEEDS]
    compared = [score for score in found if score.contestant.encoding in COMPARED]
    chorales = next(each for each in study.comparisons if each.domain == "jsb")
    sampled = next(each for each in chorales.contestants if each.encoding == SAMPLED)
    ranked = study_scores(read_study([STUDIES / topic.study for topic in RANKED]), "rope")
    return [
        *write_figure(folder, "overview", overview(compared, TITLES, sampled)),
        *write_figure(folder, "results", results(ranked, TITLES, NAMED)),
    ]
