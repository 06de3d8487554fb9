"""The table of differences with all intervals and tests, and the cost of each model relative to its reference."""

from collections.abc import Sequence

from .contestant import Contestant
from .naming import short
from .scores import Score
from .statistics import DOMINANT, Difference
from .tables import Row, Table, interval, p_value, percentage, with_sign


def difference_table(found: Sequence[Score]) -> Table | None:
    """All intervals and tests of the differences in `found`; None if nothing is compared."""
    comparison, split = found[0].comparison, found[0].split
    rows = [_row(score, *score.compared) for score in found if score.compared is not None]
    if not rows:
        return None
    rows.sort(key=lambda row: row["difference"])
    ends = interval(with_sign(4))
    columns = {
        "model": ("model", str),
        "against": ("reference", str),
        "pairs": ("seeds", str),
        "difference": ("difference, nats/token", with_sign(4)),
        "seeds": ("95 % interval over seeds", ends),
        "welch": ("over seeds, unpaired (Welch)", ends),
        "clusters": ("over test clusters", ends),
        "both": ("over both", ends),
        "t_p": ("p, paired t-test over seeds", p_value),
        "welch_p": ("p, Welch's t-test", p_value),
        "sign_flip_p": ("p, exact sign-flip test", "{:.4g}".format),
        "sign_flip_floor": ("lowest possible p of it", "{:.4g}".format),
        "cluster_p": ("p, bootstrap over clusters", p_value),
        "both_p": ("p over both", p_value),
        "holm_p": ("Holm p", p_value),
        "largest_share": ("largest cluster's share", percentage),
        "margin": ("margin of equivalence", "±{:.4f}".format),
        "holm_equivalence_p": ("Holm p of equivalence", p_value),
        "verdict": ("verdict", str),
        "parameters_percent": ("parameters, %", with_sign(2)),
        "flops_percent": ("FLOPs/token, %", with_sign(2)),
        "controls": ("different settings", str),
    }
    title = f"{comparison.name}, {split} split: all intervals and tests"
    dominated = any(score.difference is not None and score.difference.without is not None for score in found)
    note = (
        f"Holm p: if the largest cluster's share is more than {100 * DOMINANT:g} %, it follows from the larger of the "
        "p-values with and without that cluster. The other columns include the cluster."
    )
    notes = [note] if dominated else []
    return Table(f"{comparison.slug}-{split}-differences", title, columns, rows, notes, folded=True)


def _row(score: Score, other: Contestant, difference: Difference) -> Row:
    one = score.contestant
    controls = [
        f"{key.split('.')[-1]}={short(one.value(key))} instead of {short(other.value(key))}"
        for key in dict.fromkeys([*one.controls, *other.controls])
        if one.value(key) != other.value(key)
    ]
    return {
        "model": one.label,
        "against": other.label,
        "pairs": difference.pairs,
        "difference": difference.value,
        **{name: getattr(difference, name) for name in ("seeds", "welch", "clusters", "both", "t_p", "welch_p")},
        **{name: getattr(difference, name) for name in ("sign_flip_p", "sign_flip_floor", "cluster_p", "both_p")},
        "holm_p": score.holm_p,
        "largest_share": difference.largest_share,
        "margin": difference.margin,
        "equivalence_p": difference.equivalence_p,
        "holm_equivalence_p": score.holm_equivalence_p,
        "verdict": score.verdict,
        "parameters_percent": _more(one.parameters, other.parameters),
        "flops_percent": _more(one.flops_per_token, other.flops_per_token),
        "controls": "; ".join(dict.fromkeys(controls)) or None,
    }


def _more(one: float | None, other: float | None) -> float | None:
    """By how many per cent `one` exceeds `other`."""
    return None if one is None or other is None else 100 * (one / other - 1)
