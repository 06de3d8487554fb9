"""Pages of the Python API, which mkdocstrings fills from docstrings."""

import re
import shutil

from ..studying.catalogue import ROOT
from .facts import documented
from .markdown import Open, write

SOURCES = ROOT / "build" / "api"  # as `paths` in mkdocs.yml
FOLDERS = ("core", "domains", "encodings", "kernels", "lightning_modules", "reporting", "session", "tasks")
PAGES = {
    "encodings": (
        "Encodings",
        "The contract of an encoding, and the data that each pass provides. The classes of the encodings are in "
        "[Encodings](../../encodings/index.md).",
        [
            *(f"encodings.base.{name}" for name in ("Encoding", "Portrait")),
            "encodings.contract.context.Context",
            *(f"encodings.contract.state.{name}" for name in ("State", "KeyValueState")),
            *(f"encodings.contract.module.{name}" for name in ("PositionModule", "SharedModule")),
            "encodings.families.positional.PositionalEncoding",
            *(f"encodings.families.rotary.{name}" for name in ("Rotary", "HeadRotary")),
            *(f"encodings.families.content.{name}" for name in ("ContentRotary", "CumulativeRotary")),
            *(f"encodings.families.distance.{name}" for name in ("DistanceBias", "DistanceEmbedding")),
            "encodings.families.rows.RowEncoding",
            *(f"encodings.families.inputs.{name}" for name in ("InputEncoding", "PositionTable")),
            *("core.about.About", "core.about.Paper", "core.legends.Legend", "core.legends.Elements"),
            "kernels.stretching.Stretch",
        ],
    ),
    "operators": (
        "Attention operators and losses",
        "Every operator accepts raw q, k and v. [Performance](../../performance.md) describes their implementations.",
        [
            *(f"kernels.attention.{name}.{name}_attention" for name in ("nope", "rope", "pope", "fox")),
            *("kernels.path.attention.path_attention", "kernels.attention.distance.distance_attention"),
            *("kernels.attention.merge.attention_lse", "kernels.attention.merge.merge"),
            *("kernels.attention.rows.attend_rows", "kernels.attention.rows.Rows"),
            "kernels.attention.plain.causal_attention",
            *("kernels.loss.cross_entropy.token_nats", "kernels.loss.cross_entropy.summed_nats"),
            "kernels.documents.Documents",
            *(f"kernels.choice.{name}" for name in ("Plan", "Needs", "choose")),
        ],
    ),
    "model": (
        "Model and sampling",
        "The Transformer, and how tokens are drawn from it.",
        [
            *("lightning_modules.transformer.Transformer", "lightning_modules.sampling.sample"),
            "lightning_modules.options.SamplingOptions",
        ],
    ),
    "bundle": (
        "Trained models",
        "`bearings.load`, `bearings.Bundle` and `bearings.Score`. "
        "[Use bearings in Python](../../how-to/python.md) has examples.",
        [f"tasks.bundle.{name}" for name in ("load", "Bundle", "Score")],
    ),
    "domains": (
        "Domains",
        "The contract of a domain.",
        ["domains.base.Domain", "domains.records.Records", "domains.store.Store"],
    ),
    "statistics": (
        "Statistics",
        "Estimates, differences and intervals, without PyTorch.",
        [
            *(f"reporting.statistics.{name}" for name in ("Estimate", "Difference", "estimate", "difference")),
            *(f"reporting.statistics.{name}" for name in ("holm", "by_cluster", "sign_flip")),
        ],
    ),
}


def public() -> list[str]:
    """Dotted names of everything in the API reference, the classes of encodings included."""
    kinds = [f"{each.kind.__module__}.{each.kind.__name__}" for each in documented().values() if not each.is_pattern]
    return [f"bearings.{name}" for _, _, names in PAGES.values() for name in names] + kinds


def write_api(opened: Open) -> None:
    """Write `reference/api/`, a page for each area."""
    for page, (title, introduction, names) in PAGES.items():
        entries = "\n".join(f"::: bearings.{name}\n" for name in names)
        write(opened, f"reference/api/{page}.md", f"# {title}\n\n{introduction}\n\n{entries}")


def copy_sources() -> None:
    """Copy the package to SOURCES, in a form that mkdocstrings can read.

    mkdocstrings does not import files, and only finds folders with an `__init__.py`. It knows the heading `Attributes`,
    but not `Class attributes`.
    """
    target = SOURCES / "bearings"
    shutil.rmtree(target, ignore_errors=True)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir())):
        (folder / "__init__.py").touch()
    for file in target.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        file.write_text(re.sub(r"\n    Class attributes[^:\n]*:", "\n    Attributes:", text), encoding="utf-8")
