"""Writes the summary of a study: README.md with up to two plots, and results.csv."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from ..core.errors import UserError
from ..core.whole_files import write_text
from ..core.words import plural
from ..reporting import plots
from ..reporting.attention import attention_plot
from ..reporting.drawing import Plot
from ..reporting.errors import errors_plot
from ..reporting.forest import forest_plot
from ..reporting.legible import legible, noted, references_of
from ..reporting.length_plots import lengths_plot
from ..reporting.reading import read_study
from ..reporting.scores import Score, study_scores
from ..reporting.study import UNREAD, Study
from ..reporting.study_list import OUTCOMES, read_list
from ..reporting.tables import Row, write_csv
from ..reporting.take_off import take_off_plot
from .outcomes import Measured, Outcome, largest, measured_of, outcome_of, reference_of
from .page import Page

PLOTS = ("differences.svg", "errors.svg", "take-off.svg", "lengths.svg", "loss.svg", "attention.svg")
KEPT = 2  # of PLOTS, the first that a study has: one on its page and one in the details
FIGURES = {"scores": "differences.svg", "lengths": "lengths.svg", "take-off": "take-off.svg"}  # of each outcome
MOST_DRAWN = 12  # differences in the plot of a page


def write_summary(folder: Path) -> Outcome:
    """Write README.md, its plots and results.csv of the study in `folder`. Returns its outcome.

    Raises:
        UserError: records cannot be read; the files are left as they are.
    """
    study = read_study([folder])
    if unread := [trouble for trouble in study.troubles if trouble.state in UNREAD]:
        first, *others = unread
        more = f" (and {plural(len(others), 'other')})" if others else ""
        raise UserError(
            f"the page in {folder} is not written, as it would lack records: {first.place}: {first.why}{more}"
        )
    found = study_scores(study, reference_of(folder))
    measured = measured_of(study)
    outcome = outcome_of(folder, study, found, measured)
    with tempfile.TemporaryDirectory() as place:
        first = FIGURES[read_list(folder).get("outcome", OUTCOMES[0])]
        claimed = [each for claim in read_list(folder).get("claims", ()) for each in (claim.model, claim.than)]
        possible = sorted(_plots(study, found, measured, claimed, Path(place)), key=lambda plot: plot[0] != first)
        made = ((name, plot) for name, draw in possible if (plot := draw()) is not None)
        drawn = dict(islice(made, KEPT))
        for name in PLOTS:
            (folder / name).unlink(missing_ok=True)
        for name, plot in drawn.items():
            shutil.copy(plot.svg, folder / name)
    write_csv(folder / "results.csv", _results(study))
    write_text(folder / "README.md", Page(folder, study, found, measured, outcome, drawn).markdown())
    return outcome


def _plots(
    study: Study, found: Sequence[Score], measured: Sequence[Measured], claimed: Sequence[str | None], folder: Path
) -> list[tuple[str, Callable[[], Plot | None]]]:
    """Names of PLOTS, in their order, with functions that draw them; those of one comparison show the largest.

    The plot of contexts has the `claimed` models, whatever their loss.
    """
    if not study.comparisons:
        return []
    number = largest(study)
    whole, lengths = study.comparisons[number], measured[number]
    shown = legible(whole, found)
    (styles,) = plots.styles_of([shown.labels])
    title = f"{shown.name}, {shown.splits[0]} split: other context lengths"
    named = [each for each in lengths if each in claimed]
    of_lengths = lengths, styles, folder / "lengths", title, references_of(whole, found), named

    def of_shown(draw: Callable[..., Plot | None]) -> Callable[[], Plot | None]:
        return lambda: noted(draw(shown, styles, folder), shown, whole)

    differences = {"title": "Differences", "percent": True, "most": MOST_DRAWN}
    return [
        ("differences.svg", lambda: forest_plot(found, folder / "across-forest", **differences)),
        ("errors.svg", lambda: errors_plot(study.comparisons, folder)),
        ("take-off.svg", of_shown(take_off_plot)),
        ("lengths.svg", lambda: lengths_plot(*of_lengths) if lengths else None),
        ("loss.svg", of_shown(plots.loss_plot)),
        ("attention.svg", of_shown(attention_plot)),
    ]


def _results(study: Study) -> list[Row]:
    """A row for each run and split, with the scores from its records."""
    rows = []
    for comparison in study.comparisons:
        for contestant in comparison.contestants:
            for seed in sorted(contestant.runs):
                run = contestant.runs[seed]
                for split, records in run.records.items():
                    rows.append(
                        {
                            "comparison": comparison.title,
                            "model": contestant.label,
                            "seed": seed,
                            "split": split,
                            "documents": len(records.documents),
                            "tokens": int(records.tokens.sum()),
                            "nats_per_token": records.nats_per_token,
                            **{f"bits_per_{unit}": bits for unit, bits in records.bits_per_unit.items()},
                            **({} if comparison.solved is None else {"accuracy": records.accuracy}),
                            "run": "/".join(run.path.parts[-3:]),
                        }
                    )
    return rows
