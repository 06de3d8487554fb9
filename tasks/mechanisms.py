"""task=mechanisms run=DIRECTORY: measure where a model's attention goes, and what its encoding has learned."""

from collections.abc import Sequence
from pathlib import Path

import torch

from ..core.legend_records import as_facts
from ..core.legends import Legend
from ..core.progress import shown
from ..domains.store import Store
from ..encodings.base import Portrait
from ..lightning_modules.evaluation import autocast
from ..lightning_modules.portraits import look_inside, mass_by_distance, sample_of
from ..lightning_modules.transformer import Transformer
from ..reporting.tables import write_csv
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..session.task import Task

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Mechanisms(Task):
    """Write `mechanisms/*.csv` for a run's best checkpoint, as training does at its end."""

    needs = "run"

    def __call__(self, session: Session) -> None:
        run = RunDirectory.open(session.config["run"]).trained()
        store, transformer = session.trained(run)
        written = write_mechanisms(session, transformer, store, run)
        for path in written:
            session.console.print(f"wrote {path}", soft_wrap=True)


def write_mechanisms(session: Session, transformer: Transformer, store: Store, run: RunDirectory) -> list[Path]:
    """Inspect the model on a few documents of the validation split; returns the written files.

    `attention.csv` holds the share of attention by layer, head and distance. Each portrait of the encoding has a file
    with all elements of each head, or with quantiles over tokens. The legends of the portraits are written to the
    manifest.
    """
    tokens = sample_of(store, "valid", session.data.length).to(session.settings.device)
    with shown("measuring attention"), autocast(session.settings.device, session.settings.precision):
        attention, portraits = look_inside(transformer, tokens)
    rows = [
        {"layer": layer, "head": head, "low": low, "high": high, "mass": f"{share:.5f}"}
        for layer, each in enumerate(attention)
        for low, high, shares in mass_by_distance(each)
        for head, share in enumerate(shares.tolist())
    ]
    files: dict[str, list[dict]] = {"attention": rows}
    legends: dict[str, Legend] = {}
    for layer, found in enumerate(portraits):
        for name, portrait in found.items():
            legends[name] = portrait.legend
            files.setdefault(name, []).extend(_rows(layer, name, portrait))
    run.mechanisms.mkdir(parents=True, exist_ok=True)
    written = {run.mechanisms / f"{name}.csv": rows for name, rows in files.items()}
    for file, rows in written.items():
        write_csv(file, rows)
    run.write_manifest(portraits=as_facts(legends))
    run.seal(*written)
    return [*written]


def _rows(layer: int, name: str, portrait: Portrait) -> Sequence[dict]:
    heads = portrait.values.float().cpu()
    if portrait.legend.elements is not None:
        return [
            {"layer": layer, "head": head, "element": element, name: f"{value:.5f}"}
            for head, values in enumerate(heads.tolist())
            for element, value in enumerate(values)
        ]
    quantiles = torch.quantile(heads, torch.tensor(QUANTILES), dim=1).T.tolist()
    return [
        {"layer": layer, "head": head} | {f"q{100 * q:02.0f}": f"{v:.5f}" for q, v in zip(QUANTILES, row, strict=True)}
        for head, row in enumerate(quantiles)
    ]
