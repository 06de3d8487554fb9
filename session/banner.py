"""The start-up banner and the final table."""

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from ..domains.generated import GeneratedDomain
from ..domains.store import Store
from ..lightning_modules.cost import scoring_bytes
from ..lightning_modules.language_model import LanguageModel
from .matching import told
from .session import Session

WORTH_NAMING = 64  # MiB


def facts(
    session: Session, store: Store, model: LanguageModel, memory: float | None, graphs: tuple[bool, str]
) -> dict[str, str]:
    """What a person wants to know before step 0, a label and a line each.

    Args:
        memory: bytes of a training step, by `Session.step_memory`.
        graphs: whether steps are replayed, and why, by `Session.cuda_graphs`.
    """
    names, settings, transformer = session.config["names"], session.settings, model.transformer
    length, batch, encoding = session.data.length, session.data.batch_size, transformer.encodings[0]
    train = store.targets("train")
    epochs = settings.steps * batch * length / train
    splits = ", ".join(f"{split} {count}" for split, count in store.manifest["documents"].items())
    units = ", ".join(f"{count:,.0f} {unit}s" for unit, count in store.unit_counts("train").items())
    if isinstance(session.domain, GeneratedDomain):
        pool = session.domain.pool
        amount = "training makes " + ("new examples all the time" if pool is None else f"its own of {pool:,}")
        size = f"{settings.steps:,} steps of {batch * (length // session.domain.longest)} examples"
    else:
        amount = f"an epoch is {train:,} tokens, {units}"
        size = f"{settings.steps:,} steps of {batch} x {length} tokens, {epochs:.1f} epochs at most"
    graphed, reason = graphs
    scored = max(session.evaluation.tokens_per_batch, length)
    mib = scoring_bytes(scored, transformer.head.weight, settings.precision) / 2**20
    logits = f", {mib:,.0f} MiB for the logits of scoring" if mib >= WORTH_NAMING else ""
    flops = 3 * transformer.flops_per_token(length)
    by = f" (by {store.manifest['splits_by']})" if "splits_by" in store.manifest else ""
    lines = {
        "data": f"{session.domain.name}: documents {splits}{by}; {amount}",
        "model": f"{names['model']}: {transformer.parameter_count():,} parameters, {len(transformer.blocks)} layers of "
        f"width {encoding.width}, {encoding.heads} heads; {flops / 1e6:,.1f} MFLOP a token, forward and backward",
        "attention": f"{names['encoding']}: {session.plan(transformer)}",
        "training": f"{size}; learning rate {model.options.learning_rate:g}, {model.options.schedule} after "
        f"{model.options.warmup_steps} for warm-up; seed {model.seed}",
        "device": f"{settings.device}, {settings.precision}; {memory_told(memory)}{logits}",
        "steps": f"{'replayed as CUDA graphs' if graphed else 'launched one by one'}, because {reason}",
    }
    if "unmatched_hidden" in session.config:
        lines["matched"] = told(session.config, store.manifest["vocabulary"])
    return lines


def memory_told(memory: float | None) -> str:
    """What a training step of one device will hold, of `memory` bytes by `Session.step_memory`."""
    if memory is None:
        return "memory for a training step not estimated, because 3 rows at a time are more than it has free"
    return f"about {memory / 2**20:,.0f} MiB for a training step"


def print_facts(session: Session, lines: Mapping[str, str]) -> None:
    """Print labelled lines under each other."""
    grid = Table.grid(padding=(0, 2))
    for label, line in lines.items():
        grid.add_row(Text(label, "bold"), line)
    session.console.print(grid)
