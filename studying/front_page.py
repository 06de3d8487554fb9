"""studies/README.md: what the kept studies show so far, made from their tables."""

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..core.words import plural, signed
from ..reporting.naming import parenthesised
from ..reporting.planned import listed
from ..reporting.ranking import Ranking, ranked
from ..reporting.scores import FEW_SEEDS
from ..reporting.study_list import read_list
from ..reporting.tables import Row, Table
from .catalogue import STUDIES
from .outcomes import Outcome

PAGE = STUDIES / "README.md"
# Lines of the repository's README that enclose the table of small models.
MARKS = "<!-- made by python main.py task=study study=all task.report=true -->\n", "<!-- end -->\n"
MOST = 12  # rows of the table
NAMED = 3  # encodings that a line names
COSTS = {"flops_per_token": "FLOPs", "tokens_per_s": "tokens/s"}
UNDECIDED = {"undecided", "one cluster dominates", "not enough clusters"}


class Topic(NamedTuple):
    """A study that stands for a topic, its heading in the table with a note, and how lines name it.

    Attributes:
        heading: empty for a study that has a line but no column.
        follows: the study whose line ends with the sentence on this one; if empty, the sentence has its own line.
    """

    study: str
    heading: str
    title: str
    note: str = ""
    follows: str = ""


RANKED = (  # small models, with the same steps for each encoding
    Topic(
        "zoo_jsb",
        "chorales, small",
        "Bach chorales, small models, transposed in training, each encoding at its best learning rate",
    ),
    Topic("zoo_maestro", "piano, small", "Piano performances, small models, tuned likewise"),
    Topic("zoo_genome", "genome, small", "Human genome (99 windows), small models, tuned likewise"),
    Topic("zoo_wikitext2", "text, small", "Wikipedia articles, small models, tuned likewise"),
)
TUNED_CHORALES = Topic(
    "jsb_tuned", "chorales, tuned", "Bach chorales, larger models, transposed in training, each encoding tuned"
)
PIANO = Topic("maestro_60k", "piano", "Piano performances, as in the PoPE paper")
OFFICIAL = Topic("maestro_official", "", "With the official split", follows=PIANO.study)
SHORT = Topic(
    "maestro_official_16k",
    "piano, official split",
    "With 16,000 of the 60,000 steps",
    "Piano, official split: with 16,000 steps.",
    follows=PIANO.study,
)
LOSSES = (  # columns of the table
    *RANKED,
    Topic("jsb", "chorales", "Bach chorales, as in the PoPE paper"),
    TUNED_CHORALES,
    PIANO,
    SHORT,
    Topic("wikitext2", "text", "Wikipedia articles, larger models", "Text: PoPE's delta starts at zero."),
)
LENGTHS = Topic(
    "zoo_jsb_length",
    "loss rises at",
    "Bach chorales in up to 16 times the trained length",
    "Loss rises at: the shortest context with a loss 1 % above that at 128 tokens, the trained length; one for each "
    "seed if they differ.",
)
TASK = Topic(
    "indirect_indexing_long",
    "indexing solved",
    "Indirect indexing",
    "Indexing solved: seeds of larger models that solve indirect indexing.",
)
LAYERS = Topic("state_tracking_a5", "", "Word problem of A5", follows=TASK.study)
BACK = Topic("state_tracking_mqrar", "", "MQRAR, recall of overwritten values", follows=TASK.study)
CONVERSION = Topic("conversion", "conversion", "A pretrained RoPE model of 135 million parameters, converted")
DIAGNOSTICS = Topic("zoo_diagnostics", "diagnostics", "Diagnostic tasks, small models")


def front_page(outcomes: Mapping[str, Outcome], planned: Sequence[str] = ()) -> str:
    """The page for these outcomes by study, and studies that are `planned`; topics without records are left out."""
    sentences = {
        **dict.fromkeys((*RANKED, TUNED_CHORALES, PIANO, OFFICIAL, SHORT), _losses),
        LENGTHS: _lengths,
        CONVERSION: _losses,
        TASK: _solved,
        LAYERS: _solved_by_setting,
        BACK: _solved_by_setting,
        DIAGNOSTICS: _diagnostics,
    }
    lines: dict[str, str] = {}  # by study
    for topic in _kept([*sentences], outcomes):
        sentence = f"{_named(topic, outcomes)}: {sentences[topic](outcomes[topic.study])}"
        if topic.follows in lines:
            lines[topic.follows] += f" {sentence}"
        else:
            lines[topic.study] = f"- {sentence}"
    index = [
        f"- [{name}]({name}/README.md): {_first_sentence(name)} {plural(each.runs, 'run')}, about "
        f"{plural(max(round(each.minutes), 1), 'minute')} of training."
        for name, each in sorted(outcomes.items())
    ]
    return "\n".join(
        [
            "# Studies",
            "",
            "**Which positional encoding models my sequences best, and at what cost?** What the kept studies "
            "show so far; lower and higher refer to the loss on the test split:",
            "",
            *lines.values(),
            "",
            _table(outcomes, (*LOSSES, LENGTHS, TASK)).markdown().strip(),
            "",
            "## All studies",
            "",
            *index,
            "",
            *_planned(planned),
            "`python main.py task=study study=all task.report=true` writes this page from the records.",
            "",
        ]
    )


def small_models(outcomes: Mapping[str, Outcome]) -> str:
    """The table for these outcomes by study, with those of small models only."""
    return _table(outcomes, (*RANKED, LENGTHS)).markdown()


def _planned(names: Sequence[str]) -> list[str]:
    """The section on studies without records."""
    if not names:
        return []
    lines = [
        f"- [{name}]({name}/study.yaml): {_first_sentence(name)} {plural(len(listed(STUDIES / name)), 'run')}."
        for name in names
    ]
    how = "The questions were written before the first run. `python main.py task=study study=NAME` trains a study."
    return ["## Planned studies", "", how, "", *lines, ""]


def _kept(topics: Sequence[Topic], outcomes: Mapping[str, Outcome]) -> list[Topic]:
    return [topic for topic in topics if topic.study in outcomes and outcomes[topic.study].rows]


def _named(topic: Topic, outcomes: Mapping[str, Outcome]) -> str:
    seeds = [row["seeds"] for row in outcomes[topic.study].rows]
    fewer = f"{min(seeds)} to " if min(seeds) < max(seeds) else ""
    outcome = outcomes[topic.study]
    lacking = {"missing": outcome.missing, "diverged": outcome.diverged}
    so_far = "".join(f", {plural(count, 'run')} {state}" for state, count in lacking.items() if count)
    return f"{topic.title} ([{topic.study}]({topic.study}/README.md), {fewer}{plural(max(seeds), 'seed')}{so_far})"


def _losses(outcome: Outcome) -> str:
    """The encodings whose loss differs from the reference's or is equivalent to it, and those that are not decided."""
    rows = [row for row in outcome.models if row.get("difference_percent") is not None]
    lower, higher = ([row for row in rows if row["verdict"].startswith(word)] for word in ("lower", "higher"))
    undecided = [row for row in rows if row["verdict"] in UNDECIDED]
    parts = [_listed(lower, f"lower than {outcome.reference}") if lower else f"none is lower than {outcome.reference}"]
    if undecided:
        parts.append(_listed(undecided, "not decided"))
    if few := [row for row in rows if row["verdict"] == FEW_SEEDS]:
        parts.append(_listed(few, "too few seeds for a test"))
    if equivalent := [row for row in rows if row["verdict"] == "equivalent"]:
        parts.append(_listed(equivalent, f"equivalent within {equivalent[0]['margin']:g} nats/token"))
    if higher:
        parts.append(_listed(higher, "higher"))
    return f"{'; '.join(parts)}."


def _listed(rows: Sequence[Row], what: str) -> str:
    """The number of `rows` and the first of them with their differences."""
    shown = rows if len(rows) == NAMED + 1 else rows[:NAMED]  # "…" never stands for a single name
    names = [f"{parenthesised(row['model'], '[]')} {signed(row['difference_percent'], 1)} %" for row in shown]
    more = ", …" if len(rows) > len(shown) else ""
    return f"{what}: {len(rows)} ({', '.join(names)}{more})" if len(rows) > 1 else f"{what}: {names[0]}"


def _lengths(outcome: Outcome) -> str:
    held = [model for model, fails in outcome.fails.items() if fails == "never"]
    return f"{len(held)} of {len(outcome.fails)} keep their loss without an extension: {', '.join(held)}."


def _solved(outcome: Outcome) -> str:
    solved = (f"{row['model']} {row['solved']}" for row in outcome.models)
    return f"seeds that solve it: {', '.join(solved)}."


def _solved_by_setting(outcome: Outcome) -> str:
    """The encodings that solve a task with every seed, for each value of the setting that makes it harder."""
    names: dict[str, list[str]] = {}
    for row in outcome.models:
        solvers = names.setdefault(row["comparison"], [])
        if _by_every_seed(row):
            solvers.append(row["model"])
    parts = (f"{', '.join(solvers) or 'none'} ({setting})" for setting, solvers in names.items())
    return f"encodings that solve it with every seed: {'; '.join(parts)}."


def _by_every_seed(row: Row) -> bool:
    solved, seeds = row["solved"].split(" of ")
    return solved == seeds


def _diagnostics(outcome: Outcome) -> str:
    """How many test sets each encoding solves with every seed, most first, and the reference."""
    counts = Counter(row["model"] for row in outcome.models if _by_every_seed(row))
    sets = max(Counter(row["model"] for row in outcome.rows).values())
    theirs = counts.pop(outcome.reference, 0)
    best = ", ".join(f"{model} {count}" for model, count in counts.most_common()) or "none"
    return f"of {plural(sets, 'test set')}, every seed solves: {best}; {outcome.reference} {theirs}."


def _table(outcomes: Mapping[str, Outcome], topics: Sequence[Topic]) -> Table:
    """MOST encodings by mean rank, with what each study found; columns only for `topics`.

    The encodings that most studies have come first, and of those that equally many have, the best ranked.
    """
    compared = _kept(LOSSES, outcomes)
    found = {topic.study: {row["model"]: row for row in outcomes[topic.study].models} for topic in compared}
    references = {topic.study: outcomes[topic.study].reference for topic in compared}
    ranking = _ranking(outcomes)
    means = {} if ranking is None else dict(zip(ranking.models, ranking.means.tolist(), strict=True))
    models = dict.fromkeys([*means, *(model for rows in found.values() for model in rows)])  # best first
    shown = sorted(models, key=lambda model: -sum(model in rows for rows in found.values()))[:MOST]
    shown = sorted(shown, key=lambda model: means.get(model, math.inf))
    fails = outcomes[LENGTHS.study].fails if LENGTHS.study in outcomes else {}
    solved = {row["model"]: row["solved"] for row in outcomes[TASK.study].rows} if TASK.study in outcomes else {}
    rows: list[Row] = []
    for model in shown:
        row: Row = {"model": model, "rank": means.get(model)}
        row |= {LENGTHS.study: fails.get(model), TASK.study: solved.get(model)}
        for topic in compared:
            row[topic.study] = _cell(found[topic.study].get(model))
        for key in COSTS:
            row[key] = _relative(found, references, model, key)
        rows.append(row)
    columns = {
        "model": ("encoding", str),
        **({"rank": ("mean rank", "{:.1f}".format)} if ranking else {}),
        **{topic.study: (topic.heading, str) for topic in topics},
        **{key: (heading, "{:.2f}".format) for key, heading in COSTS.items()},
    }
    notes = [
        "Nats/token on the test split, difference from RoPE in per cent; lower is better. Bold: significant after "
        "correction for all encodings of the study. FLOPs and tokens/s: of training, relative to RoPE, in the first "
        "study that has them.",
        *(topic.note for topic in topics if topic.note),
    ]
    if ranking:
        notes.append(
            f"Mean rank: among {len(ranking.models)} models in {', '.join(ranking.sets)}; 1 is the lowest loss. The "
            f"difference of two is significant from {ranking.critical:.1f} on, for all pairs together."
        )
    return Table("studies", "", columns, rows, notes)


def _ranking(outcomes: Mapping[str, Outcome]) -> Ranking | None:
    """The mean ranks over the finished studies in RANKED; None if there are too few."""
    finished = [topic.study for topic in _kept(RANKED, outcomes) if not outcomes[topic.study].missing]
    nats = {study: {row["model"]: row["nats_per_token"] for row in outcomes[study].models} for study in finished}
    return ranked(nats)


def _cell(row: Row | None) -> str | None:
    if row is None or row.get("difference_percent") is None:
        return None if row is None else "reference"
    few = f" ({plural(row['seeds'], 'seed')})" if row["verdict"] == FEW_SEEDS else ""
    text = f"{signed(row['difference_percent'], 1)} %{few}"
    return f"**{text}**" if row["verdict"].startswith(("lower", "higher")) else text


def _relative(
    found: Mapping[str, Mapping[str, Row]], references: Mapping[str, str], model: str, key: str
) -> float | None:
    """A cost of `model`, relative to the reference, in the first study that has both."""
    for study, rows in found.items():
        mine, theirs = (rows.get(name, {}).get(key) for name in (model, references[study]))
        if mine and theirs:
            return mine / theirs
    return None


def _first_sentence(name: str) -> str:
    question = " ".join(read_list(STUDIES / name).get("question", "").split())
    return f"{question.partition('? ')[0].rstrip('?')}?" if "?" in question else textwrap.shorten(question, 120)
