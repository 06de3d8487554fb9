"""The notes of a report: how to read it, what a comparison was run with, and what plots show in words."""

from collections import Counter
from collections.abc import Sequence

from ..core.words import plural
from .answers import LEGEND
from .finished import COMPILED
from .naming import parenthesised
from .runs import differently_changed
from .score_tables import CLUSTERS
from .scores import Score
from .statistics import DOMINANT, FEWEST_CLUSTERS, FEWEST_SEEDS
from .study import Comparison
from .tables import Table


def remarks() -> list[str]:
    """How to read the results."""
    return [
        LEGEND,
        "Scores are nats/token and bits per unit; lower is better. Every target of a split is scored once, with the "
        "checkpoint that is best on validation.",
        "The unigram, Markov and xz baselines are not neural networks. FLOPs are those of training, forward and "
        "backward, on rows of full length. The column published holds results that others report for the same model.",
        "The 95 % interval over seeds covers other seeds on the same test set, as in published results. "
        "The interval of the difference covers other seeds and other test clusters together, and so does its p-value.",
        f"With fewer than {FEWEST_SEEDS} seeds, the interval of the difference covers only other test clusters "
        f'("{CLUSTERS}"), for the models as trained, and there is no p-value. With fewer than {FEWEST_CLUSTERS} '
        "clusters there is no interval either. Clusters of unequal size count as fewer.",
        "Verdicts are at the 5 % level. The p-values are adjusted by Holm's method over all differences of a study: "
        "the runs of one study.yaml, or all runs without one. Studies with runs in the same comparison count as one. "
        "Settings that study.yaml lists as variants are pooled into one test.",
        "Equivalent: two one-sided tests place the difference within the margin of equivalence. Undecided: the "
        "tests show neither a difference nor equivalence.",
        f"One cluster dominates: one test cluster causes more than {100 * DOMINANT:g} % of the variance over clusters, "
        "and a result holds either only with it or only without it. The adjusted p is the larger of those with and "
        "without such a cluster, so it can be above 0.05 although the interval, which includes it, excludes 0.",
        "Intervals are not adjusted for the number of tests, so an interval can exclude 0 while the verdict is "
        "undecided.",
        "Learning rates are chosen on validation for each encoding, over the seeds that all its rates have, and only "
        "the chosen ones are compared. A rate with fewer than "
        f"{FEWEST_SEEDS} seeds is not chosen if another has enough.",
        "Tasks that a run either solves or does not solve are compared by the share of seeds that solve them, with "
        "Boschloo's exact test.",
        "Tokens/s are shown only if all runs of a comparison used the same kind of device and none is known to have "
        "shared it.",
    ]


def comparison_notes(comparison: Comparison, split: str, reference: str, margin: float | None) -> list[str]:
    """Data, training and settings of a comparison on one split. `margin` replaces its own unless None."""
    records = comparison.any_run.records[split]
    clusters = len(set(records.clusters.tolist()))
    store, length, steps, precision = (
        " or ".join(
            f"{value:,}" if isinstance(value, int) else str(value)[:12] for value in sorted(comparison.values(key))
        )
        for key in ("store.sha256", "data.length", "trainer.steps", "trainer.precision")
    )
    lines = [
        f"{plural(len(records.documents), 'document')} in {plural(clusters, 'cluster')}, "
        f"{plural(int(records.tokens.sum()), 'token')}.",
        f"Token store {store} (sha256). Length {length}. "
        f"Steps: {steps}, in {precision} on {'; '.join(comparison.devices)}.",
    ]
    if comparison.diverged:
        lines.append(f"Diverged: {comparison.divergences}. {comparison.without_diverged}")
    if comparison.solved is None:
        margin = comparison.margin if margin is None else margin
        lines.append(f"Margin of equivalence: {margin:g} nats/token.")
    if len(set(records.tokens.tolist())) > 1:
        means = (f"{parenthesised(each.label)} {each.document_mean(split):.4f}" for each in comparison.contestants)
        lines.append(f"Nats/token averaged over documents, as in some papers: {', '.join(means)}.")
    if len(comparison.studies) > 1:
        names = sorted("no study" if each is None else f"the study {each.name}" for each in comparison.studies)
        lines.append(f"The runs are of {' and '.join(names)}, whose p-values are adjusted together.")
    if options := [changed for each in comparison.contestants if (changed := each.changed_options)]:
        lines.append(f"Encoding options that differ from the defaults: {'; '.join(options)}.")
    if labels := differently_changed(comparison):
        models = ", ".join(map(parenthesised, labels))
        lines.append(f"The runs of {models} differ in code that is not in their commits: see the table of runs.")
    if len(comparison.devices) > 1:
        kinds = {each.removesuffix(COMPILED) for each in comparison.devices}
        differ = "used different devices" if len(kinds) > 1 else "are not all compiled"
        lines.append(f"The runs {differ}, so tokens/s are not shown and peak memory is not comparable.")
    elif not comparison.speeds_comparable:
        lines.append("Tokens/s are not shown, because some runs shared their device or did not log a speed.")
    named = [each for each in comparison.chosen if each.called(reference)]
    used = {against.label for each in comparison.chosen if (against := comparison.reference(each, reference))}
    if len(named) > 1 and len(used) == 1 and reference not in used:
        (label,) = used
        other = next(each.label for each in named if each.label != label)
        lines.append(
            f"{len(named)} models have the encoding {reference}. The reference is {parenthesised(label)}: of those "
            "with enough seeds, the one with the fewest changed options, and of these the one with the lowest "
            f"validation loss. To choose another, set \"task.reference='{other}'\"."
        )
    if not named:
        known = any(contestant.called(reference) for contestant in comparison.contestants)
        why = f"The rate of {reference} is not the chosen one" if known else f"There is no run of {reference}"
        lines.append(f"{why}, so there are no differences (set task.reference=NAME).")
    if comparison.solved is not None:
        lines.append(
            f"Solved: at least {100 * comparison.solved:g} % of the answers are right. Take-off: the first validation "
            f"step with at least {100 * comparison.half_way:.3g} % right, half-way between guessing and solving."
        )
    return lines


def counted_verdicts(found: Sequence[Score]) -> str:
    """What the forest plot of all comparisons shows."""
    verdicts = Counter(score.verdict for score in found if score.compared is not None)
    parts = (f"{number} {verdict}" for verdict, number in verdicts.most_common())
    return f"{plural(verdicts.total(), 'difference')}: {'; '.join(parts)}."


def validation_losses(comparison: Comparison) -> str:
    """What the loss curves end at."""
    best = sorted(comparison.contestants, key=lambda each: each.validation)
    losses = (f"{parenthesised(each.label)} {each.validation:.4f}" for each in best)
    return f"Validation nats/token of the best checkpoints: {', '.join(losses)}."


def failures(lengths: Table) -> str:
    """What the plot of other context lengths shows."""
    parts = (f"{parenthesised(row['model'])} ({row['stretch']}): {row['fails']}" for row in lengths.rows)
    return f"Context length at which the loss of each model rises: {'; '.join(parts)}."


def costs(found: Sequence[Score]) -> str:
    """What the plot of scores against cost shows."""
    parts = (
        f"{parenthesised(each.contestant.label)} {each.nats.value:.4f} at {each.contestant.flops_per_token / 1e6:,.2f}"
        for each in sorted(found, key=lambda each: each.nats.value)
        if each.contestant.flops_per_token is not None
    )
    return f"Nats/token at MFLOP/token: {'; '.join(parts)}."
