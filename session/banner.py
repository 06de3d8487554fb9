"""The start-up banner: the data, model, kernels and settings of a run, as short labelled lines."""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

from rich.table import Table
from rich.text import Text

from ..core.words import plural
from ..domains.generated import GeneratedDomain
from ..domains.store import Store
from ..domains.unit_labels import unit_label
from ..encodings.base import Encoding
from ..lightning_modules.cost import scoring_bytes
from ..lightning_modules.language_model import LanguageModel
from ..lightning_modules.trainer import TrainerSettings
from ..lightning_modules.transformer import Transformer
from .matching import match_summary
from .session import Session

SPLIT_NAMES = {"train": "training", "valid": "validation"}
LARGE_LOGITS = 64  # MiB; smaller buffers are not listed
OVERLAPS = {  # keys of the store's manifest
    "documents_also_in_train": "also occur in training",
    "composition_also_in_train": "are of a composition that is also in training",
    "melody_also_in_train": "have a melody that is also in training",
}
PRECISIONS = {"32-true": "float32", "bf16-mixed": "bfloat16 mixed precision"}


def banner_lines(
    session: Session, store: Store, model: LanguageModel, memory: float | None, graphs: tuple[bool, str]
) -> dict[str, str]:
    """The lines of the banner, by label.

    Args:
        memory: bytes of a training step, from `Session.step_memory`.
        graphs: whether CUDA graphs are used, and the reason, from `Session.cuda_graphs`.
    """
    names, settings, transformer = session.config["names"], session.settings, model.transformer
    options, encoding, mib = model.options, transformer.encodings[0], _logits_mib(session, transformer)
    logits = f", {mib:,.0f} MiB for logits when scoring" if mib >= LARGE_LOGITS else ""
    rotation = rotation_text(transformer.encodings, session.data.length, session.config["encoding"].get("base"))
    flops = transformer.training_flops_per_token(session.data.length)
    lines = {
        **_data_lines(session, store),
        "model": f"{names['model']}: {transformer.parameter_count():,} parameters, "
        f"{plural(len(transformer.blocks), 'layer')}, "
        f"width {encoding.width}, {encoding.heads} heads",
        "compute": f"{flops / 1e6:,.1f} MFLOPs per token (forward and backward)",
        "attention": f"{names['encoding']}: {session.attention(transformer)}",
        **({"rotation": rotation} if rotation else {}),
        "optimizer": f"learning rate {options.learning_rate:g}, {options.warmup_steps:,} warm-up steps"
        f"{_too_many(model)}, {options.schedule} schedule, seed {model.seed}",
        "device": f"{several_text(settings)}{session.device_name}, {PRECISIONS[settings.precision]}",
        "memory": f"{step_memory_text(memory)}{logits}",
        "CUDA graphs": f"{'on' if graphs[0] else 'off'} ({graphs[1]})",
    }
    if entries := session.config["encoding"].get("layers"):
        lines["layers"] = pattern_text(entries, len(transformer.blocks))
    if "unmatched_hidden" in session.config:
        lines["matched"] = match_summary(session.config, store.manifest["vocabulary"])
    return lines


def _too_many(model: LanguageModel) -> str:
    """A remark if the schedule, or its repetition after positions are dropped, has no step after its warm-up."""
    for start, end in pairwise([*model.starts, model.steps]):
        if 0 < end - start <= model.options.warmup_steps:
            has = f"are left from step {start:,} on" if start else "the run has"
            return f" (more than {has})"
    return ""


def several_text(settings: TrainerSettings) -> str:
    """The number of processes, if there are several, and how many share each row."""
    if settings.ranks == 1:
        return ""
    shared = f" ({settings.context_parallel} share each row)" if settings.context_parallel > 1 else ""
    return f"{settings.ranks} processes{shared}, each on "


def rotation_text(encodings: Sequence[Encoding], length: int, base: float | None = None) -> str | None:
    """How far the slowest rotation turns within `length` tokens; None without fixed frequencies per token.

    Below one turn, its angles do not repeat within the trained length (the lower bound on the base of Liu, arXiv
    2602.10959), and longer contexts contain angles that did not occur in training.
    """
    found: dict[str, None] = {}
    for encoding in encodings:
        spectrum = encoding.spectrum() if encoding.placement in ((), ("index", 1)) else None
        if spectrum is None or spectrum.requires_grad or not spectrum.any():
            continue
        turn = float(spectrum[spectrum > 0].min()) * length / (2 * math.pi)
        slowest = "pair" if 2 * spectrum.shape[1] == encoding.head_dim else "channel"
        size = f"{turn:.2g} of a turn" if turn < 1 else f"{turn:,.1f} turns"
        found[f"slowest {slowest}: {size} within {length:,} tokens"] = None
    return "; ".join(found) + (f" (base {base:g})" if base else "") if found else None


def pattern_text(entries: Sequence[str | Mapping], layers: int) -> str:
    """How `layers` blocks repeat the entries of a pattern, and whether some are not used."""
    names = [" ".join(_words(entry)) for entry in entries]
    grouped = ((name, len([*group])) for name, group in groupby(names))
    given = ", ".join(name if count == 1 else f"{count} x {name}" for name, count in grouped)
    if len(entries) <= layers:
        return f"{layers} layers repeat: {given}"
    return f"only the first {layers} of: {given}; model.layers={len(entries)} or more uses all"


def _words(entry: str | Mapping) -> list[str]:
    """The name of a pattern's entry and its options."""
    if isinstance(entry, str):
        return [entry]
    ((name, options),) = entry.items()
    return [name, *(f"{key}={value}" for key, value in options.items())]


def step_memory_text(memory: float | None) -> str:
    """The estimated memory of a training step on one device, from `Session.step_memory`."""
    if memory is None:
        return "not estimated (3 rows at a time do not fit into free memory)"
    return f"about {memory / 2**20:,.0f} MiB per training step"


def print_lines(session: Session, lines: Mapping[str, str]) -> None:
    """Print labelled lines as two columns; in a file or a pipe without breaks, so that paths can be found there."""
    if not session.console.is_terminal:
        width = max(map(len, lines))
        for label, line in lines.items():
            session.console.print(f"{label:<{width}}  {line}")
        return
    grid = Table.grid(padding=(0, 2))
    for label, line in lines.items():
        grid.add_row(Text(label, "bold"), line)
    session.console.print(grid)


def units_text(session: Session, store: Store, split: str) -> str:
    """The size of a split in natural units, such as `49,300 notes, 55,228 sixteenths`."""
    counts = store.unit_counts(split).items()
    return ", ".join(f"{count:,.0f} {unit_label(session.domain.name, unit)}s" for unit, count in counts)


def _data_lines(session: Session, store: Store) -> dict[str, str]:
    """The data, and how much of them the run trains on."""
    counts = store.manifest["documents"].items()
    splits = ", ".join(f"{count:,} {SPLIT_NAMES.get(split, split)}" for split, count in counts)
    by = f", split by {store.manifest['splits_by']}" if "splits_by" in store.manifest else ""
    steps, rows, length = session.settings.steps, session.data.batch_size, session.data.length
    lines = {"data": f"{session.domain.name}: {splits} documents{by}"}
    if overlap := overlap_text(store.manifest):
        lines["overlap"] = overlap
    if isinstance(session.domain, GeneratedDomain):
        pool = session.domain.pool
        examples = rows * (length // session.domain.longest)
        source = "new examples at every step" if pool is None else f"examples from a pool of {pool:,}"
        return {**lines, "training": f"{steps:,} steps of {examples:,} examples ({source})"}
    tokens = store.targets("train")
    epochs = steps * rows * length / tokens
    passes = f"at most {epochs:,.1f} epochs" if epochs >= 0.1 else "less than 0.1 epochs"
    return {
        **lines,
        "1 epoch": f"{tokens:,} tokens: {units_text(session, store, 'train')}",
        "training": f"{steps:,} steps of {rows} x {length:,} tokens ({passes})",
    }


def overlap_text(manifest: Mapping[str, Any]) -> str | None:
    """How many documents of the other splits also occur in training, by the store's manifest; None if none do."""
    found = []
    for key, what in OVERLAPS.items():
        counts = {split: count for split, count in manifest.get(key, {}).items() if count}
        named = (
            f"{n:,} of {manifest['documents'][split]:,} {SPLIT_NAMES.get(split, split)}" for split, n in counts.items()
        )
        found += [f"{' and '.join(named)} documents {what}"] if counts else []
    return "; ".join(found) or None


def _logits_mib(session: Session, transformer: Transformer) -> float:
    tokens = max(session.evaluation.tokens_per_batch, session.evaluation.length)
    return scoring_bytes(tokens, transformer.head.weight, session.settings.precision) / 2**20
