"""The start-up banner and the final table."""

import math
from collections.abc import Mapping

from rich.table import Table

from bearings.domains.base import Domain
from bearings.domains.baselines import xz
from bearings.domains.store import Store
from bearings.lightning_modules.cost import training_memory
from bearings.lightning_modules.evaluation import Records
from bearings.lightning_modules.language_model import LanguageModel
from bearings.tasks.house import House

MARKOV_ORDERS = 12


def facts(house: House, store: Store, model: LanguageModel) -> dict[str, str]:
    """What a person wants to know before step 0, a label and a line each."""
    names, settings, transformer = house.config["names"], house.settings, model.transformer
    length, batch, encoding = house.data.length, house.data.batch_size, transformer.encodings[0]
    train = store.targets("train")
    epochs = settings.steps * batch * length / train
    splits = ", ".join(f"{split} {count}" for split, count in store.manifest["documents"].items())
    units = ", ".join(f"{count:,.0f} {unit}s" for unit, count in store.unit_counts("train").items())
    flops = 3 * transformer.flops_per_token(length)
    memory = training_memory(transformer, batch, length, settings.precision)
    return {
        "data": f"{house.domain.name}: documents {splits}; an epoch is {train:,} tokens, {units}",
        "model": f"{names['model']}: {transformer.parameter_count():,} parameters, {len(transformer.blocks)} layers of "
        f"width {encoding.width}, {encoding.heads} heads; {flops / 1e6:,.1f} MFLOP a token, forward and backward",
        "attention": f"{names['encoding']}: {house.attention(transformer)}",
        "training": f"{settings.steps:,} steps of {batch} x {length} tokens, {epochs:.1f} epochs at most; learning "
        f"rate {model.learning_rate:g}, {model.schedule} after {model.warmup_steps} for warm-up; seed {model.seed}",
        "device": f"{settings.device}, {settings.precision}; about {memory / 2**20:,.0f} MiB for a training step",
    }


def print_facts(house: House, lines: Mapping[str, str]) -> None:
    """Print labelled lines under each other."""
    grid = Table.grid(padding=(0, 2))
    for label, line in lines.items():
        grid.add_row(f"[bold]{label}[/bold]", line)
    house.console.print(grid)


def baselines(domain: Domain, store: Store, split: str) -> dict[str, Records]:
    """Unigram, the Markov order that is best on validation, and xz, as records of `split` (xz as one sum)."""
    valid = {order: nats.sum() for order, nats in domain.markov(store, "valid", MARKOV_ORDERS).items()}
    order = min(valid, key=valid.get)
    nats = domain.markov(store, split, order)
    found = {
        "unigram": Records.of(store, split, nats[0]),
        f"Markov, order {order}": Records.of(store, split, nats[order]),
    }
    # xz gives one figure for the split: spread over the documents by length, it adds up to the same.
    lengths = found["unigram"].tokens
    found["xz -9e"] = Records.of(store, split, xz(store, split) * lengths / lengths.sum())
    return found


def results_table(title: str, rows: Mapping[str, Records]) -> Table:
    """Nats a token and bits a unit of each row, best first."""
    units = next(iter(rows.values())).unit_names
    table = Table(title=title, title_justify="left", min_width=len(title))
    table.add_column("model")
    for name in ("nats/token", *(f"bits/{unit}" for unit in units)):
        table.add_column(name, justify="right")
    for name, records in sorted(rows.items(), key=lambda row: row[1].nats_per_token):
        bits = records.bits_per_unit
        table.add_row(name, f"{records.nats_per_token:.4f}", *(f"{bits[unit]:.3f}" for unit in units))
    return table


def bits_per_nat(store: Store, unit: str) -> float:
    """Bits a natural unit for each nat a token, over the training split."""
    return store.targets("train") / store.unit_counts("train")[unit] / math.log(2)
