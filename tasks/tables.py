"""The start-up banner and the final table."""

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from filelock import FileLock
from rich.table import Table
from rich.text import Text

from bearings.domains.base import Domain
from bearings.domains.baselines import xz
from bearings.domains.generated import GeneratedDomain
from bearings.domains.store import Store
from bearings.lightning_modules.cost import scoring_bytes
from bearings.lightning_modules.evaluation import Records
from bearings.lightning_modules.language_model import LanguageModel
from bearings.progress import shown
from bearings.tasks.house import House
from bearings.tasks.matching import told
from bearings.tasks.run_directory import RunDirectory
from bearings.whole_files import made_whole

MARKOV_ORDERS = 12
WORTH_NAMING = 64  # MiB
REVISION = 1  # raised whenever `baselines` would find other figures of the same store


def facts(
    house: House, store: Store, model: LanguageModel, memory: float | None, graphs: tuple[bool, str]
) -> dict[str, str]:
    """What a person wants to know before step 0, a label and a line each.

    Args:
        memory: bytes of a training step, by `House.step_memory`.
        graphs: whether steps are replayed, and why, by `House.cuda_graphs`.
    """
    names, settings, transformer = house.config["names"], house.settings, model.transformer
    length, batch, encoding = house.data.length, house.data.batch_size, transformer.encodings[0]
    train = store.targets("train")
    epochs = settings.steps * batch * length / train
    splits = ", ".join(f"{split} {count}" for split, count in store.manifest["documents"].items())
    units = ", ".join(f"{count:,.0f} {unit}s" for unit, count in store.unit_counts("train").items())
    if isinstance(house.domain, GeneratedDomain):
        pool = house.domain.pool
        amount = "training makes " + ("new examples all the time" if pool is None else f"its own of {pool:,}")
        size = f"{settings.steps:,} steps of {batch * (length // house.domain.longest)} examples"
    else:
        amount = f"an epoch is {train:,} tokens, {units}"
        size = f"{settings.steps:,} steps of {batch} x {length} tokens, {epochs:.1f} epochs at most"
    graphed, reason = graphs
    scored = max(house.evaluation.tokens_per_batch, length)
    mib = scoring_bytes(scored, transformer.head.weight, settings.precision) / 2**20
    logits = f", {mib:,.0f} MiB for the logits of scoring" if mib >= WORTH_NAMING else ""
    flops = 3 * transformer.flops_per_token(length)
    by = f" (by {store.manifest['splits_by']})" if "splits_by" in store.manifest else ""
    lines = {
        "data": f"{house.domain.name}: documents {splits}{by}; {amount}",
        "model": f"{names['model']}: {transformer.parameter_count():,} parameters, {len(transformer.blocks)} layers of "
        f"width {encoding.width}, {encoding.heads} heads; {flops / 1e6:,.1f} MFLOP a token, forward and backward",
        "attention": f"{names['encoding']}: {house.attention(transformer)}",
        "training": f"{size}; learning rate {model.learning_rate:g}, {model.schedule} after {model.warmup_steps} for "
        f"warm-up; seed {model.seed}",
        "device": f"{settings.device}, {settings.precision}; {memory_told(memory)}{logits}",
        "steps": f"{'replayed as CUDA graphs' if graphed else 'launched one by one'}, because {reason}",
    }
    if "unmatched_hidden" in house.config:
        lines["matched"] = told(house.config, store.manifest["vocabulary"])
    return lines


def memory_told(memory: float | None) -> str:
    """What a training step of one device will hold, of `memory` bytes by `House.step_memory`."""
    if memory is None:
        return "memory for a training step not estimated, because 3 rows at a time are more than it has free"
    return f"about {memory / 2**20:,.0f} MiB for a training step"


def print_facts(house: House, lines: Mapping[str, str]) -> None:
    """Print labelled lines under each other."""
    grid = Table.grid(padding=(0, 2))
    for label, line in lines.items():
        grid.add_row(Text(label, "bold"), line)
    house.console.print(grid)


def baselines(domain: Domain, store: Store, split: str) -> dict[str, Records]:
    """Unigram, the Markov order that is best on validation, and xz, as records of `split` (xz as one sum).

    xz compresses every token, so that it is left out where some are context only.
    """
    valid = {order: nats.sum() for order, nats in domain.markov(store, "valid", MARKOV_ORDERS).items()}
    order = min(valid, key=valid.get)
    nats = domain.markov(store, split, order)
    index = store.documents(split)
    found = {
        "unigram": Records.of(store, index, nats[0]),
        f"Markov, order {order}": Records.of(store, index, nats[order]),
    }
    sizes = store.offsets[index + 1] - store.offsets[index] - 1
    if (store.scored[index] < sizes).any():
        return found
    # xz gives one figure for the split: spread over the documents by length, it adds up to the same.
    found["xz -9e"] = Records.of(store, index, xz(store, split) * sizes / sizes.sum())
    return found


def kept_baselines(domain: Domain, store: Store, split: str, folder: Path) -> dict[str, Records]:
    """`baselines`, from `folder` where they are kept already, or from beside the store, where the first run of several
    has left them: some domains take minutes to count."""
    if not folder.exists():
        _save(read_baselines(shared_baselines(store, split)) or _count(domain, store, split), folder)
    return read_baselines(folder)


def shared_baselines(store: Store, split: str) -> Path:
    """Where runs leave the baselines of `split` for others of the same store."""
    return store.directory / "baselines" / f"{split}-{MARKOV_ORDERS}-{REVISION}"


def _count(domain: Domain, store: Store, split: str) -> dict[str, Records]:
    """`baselines`, by one process at a time and left for others, unless the store is somebody else's."""
    shared = shared_baselines(store, split)
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(FileLock(store.directory.with_suffix(".lock")))
        if shared.exists():  # another process has counted meanwhile
            return read_baselines(shared)
        with shown(f"counting the baselines of {split}"):
            found = baselines(domain, store, split)
        with suppress(OSError):
            _save(found, shared)
        return found


def _save(found: Mapping[str, Records], folder: Path) -> None:
    with made_whole(folder) as making:
        for name, records in found.items():
            records.save(making / f"{name}.npz")


def read_baselines(folder: Path) -> dict[str, Records]:
    """What `kept_baselines` has written, by name. Raises UserError where a file is damaged."""
    return {path.stem: read_baseline(path) for path in sorted(folder.glob("*.npz"))}


def read_baseline(path: Path) -> Records:
    """One of them. Raises UserError where the file is damaged."""
    return Records.load(path, f"delete {path.parent}, and it is counted again")


def print_results(house: House, run: RunDirectory, store: Store, split: str, records: Records, title: str) -> None:
    """Print a split's score beside the baselines and, for tasks with right answers, how many seeds have solved it."""
    solved, encoding = house.domain.solved, house.config["names"]["encoding"]
    rows = {encoding: records, **kept_baselines(house.domain, store, split, run.baselines(split))}
    house.console.print(results_table(title, rows, accuracy=solved is not None))
    if solved is not None:
        seeds = [Records.load(path).accuracy for path in run.other_seeds(split)]
        good = sum(accuracy >= solved for accuracy in seeds)
        bar = f"accuracy of {100 * solved:g} % or more"
        house.console.print(f"solved ({bar}) by {good} of {len(seeds)} seeds scored so far")


def results_table(title: str, rows: Mapping[str, Records], accuracy: bool = False) -> Table:
    """Nats a token and bits a unit of each row, best first; nats a token by group and accuracy where there are any."""
    units = next(iter(rows.values())).unit_names
    groups = dict.fromkeys(group for records in rows.values() for group in records.group_nats_per_token)
    groups = groups if len(groups) > 1 else {}
    table = Table(title=title, title_justify="left", min_width=len(title))
    table.add_column("model")
    for name in (
        *(["accuracy"] if accuracy else []),
        "nats/token",
        *(f"bits/{unit}" for unit in units),
        *(f"nats/token, {group}" for group in groups),
    ):
        table.add_column(name, justify="right")
    for name, records in sorted(rows.items(), key=lambda row: row[1].nats_per_token):
        bits, apart = records.bits_per_unit, records.group_nats_per_token
        share = ["" if records.accuracy is None else f"{100 * records.accuracy:.2f} %"] if accuracy else []
        by_group = (f"{apart[group]:.4f}" if group in apart else "" for group in groups)
        table.add_row(
            name, *share, f"{records.nats_per_token:.4f}", *(f"{bits[unit]:.3f}" for unit in units), *by_group
        )
    return table
