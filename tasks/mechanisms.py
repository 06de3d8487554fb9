"""task=mechanisms run=DIRECTORY: where a trained model's attention goes, and what its encoding has learnt."""

from collections.abc import Sequence
from pathlib import Path

import torch

from bearings.domains.store import Store
from bearings.lightning_modules.evaluation import autocast
from bearings.lightning_modules.portraits import look_inside, mass_by_distance, sample_of
from bearings.lightning_modules.transformer import Transformer
from bearings.progress import shown
from bearings.tasks.house import House
from bearings.tasks.reporting.tables import write_csv
from bearings.tasks.run_directory import RunDirectory

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Mechanisms:
    """Write `mechanisms/*.csv` of a run's best checkpoint, as the end of training does."""

    needs_run = True

    def __call__(self, house: House) -> None:
        run = RunDirectory.open(house.config["run"]).trained()
        store, transformer = house.trained(run)
        written = write_mechanisms(house, transformer, store, run.mechanisms)
        run.seal(*written)
        for path in written:
            house.console.print(f"wrote {path}", soft_wrap=True)


def write_mechanisms(house: House, transformer: Transformer, store: Store, folder: Path) -> list[Path]:
    """Look at a few documents of the validation split; the files that were written.

    `attention.csv`: share of attention by layer, head and distance. A file for each of the encoding's own quantities:
    every element of `delta`, and quantiles over tokens of what depends on them.
    """
    tokens = sample_of(store, "valid", house.data.length).to(house.settings.device)
    with shown("looking inside"), autocast(house.settings.device, house.settings.precision):
        attention, portraits = look_inside(transformer, tokens)
    rows = [
        {"layer": layer, "head": head, "low": low, "high": high, "mass": f"{share:.5f}"}
        for layer, each in enumerate(attention)
        for low, high, shares in mass_by_distance(each)
        for head, share in enumerate(shares.tolist())
    ]
    files = {"attention": rows}
    for layer, portrait in enumerate(portraits):
        for name, heads in portrait.items():
            files.setdefault(name, []).extend(_rows(layer, name, heads.float().cpu()))
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        write_csv(folder / f"{name}.csv", rows)
    return [folder / f"{name}.csv" for name in files]


def _rows(layer: int, name: str, heads: torch.Tensor) -> Sequence[dict]:
    if name == "delta":
        return [
            {"layer": layer, "head": head, "element": element, "delta": f"{value:.5f}"}
            for head, values in enumerate(heads.tolist())
            for element, value in enumerate(values)
        ]
    quantiles = torch.quantile(heads, torch.tensor(QUANTILES), dim=1).T.tolist()
    return [
        {"layer": layer, "head": head} | {f"q{100 * q:02.0f}": f"{v:.5f}" for q, v in zip(QUANTILES, row, strict=True)}
        for head, row in enumerate(quantiles)
    ]
