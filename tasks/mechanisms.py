"""task=mechanisms run=DIRECTORY: measure where a model's attention goes, and what its encoding has learned."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import UserError
from ..core.legends import Legend
from ..core.progress import shown
from ..domains.store import Store
from ..encodings.base import Encoding, Portrait
from ..lightning_modules.attention_maps import (
    mass_by_distance,
    mass_by_position,
    nearer_preferred,
    order_kept,
    rolled_out,
    uniform_attention,
)
from ..lightning_modules.bands import loss_by_band, turned_by
from ..lightning_modules.evaluation import autocast
from ..lightning_modules.portraits import look_inside, look_with_keys_moved, sample_of
from ..lightning_modules.transformer import Transformer
from ..reporting.tables import write_csv
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..session.task import Task

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
Rows = list[dict[str, Any]]


class Mechanisms(Task):
    """Write `mechanisms/*.csv` for a run's best checkpoint, as training does at its end."""

    needs = "run"

    def __call__(self, session: Session) -> None:
        run = RunDirectory.open(session.config["run"]).trained().writable()
        store, transformer = session.trained(run)
        written = write_mechanisms(session, transformer, store, run)
        for path in written:
            session.console.print(f"wrote {path}")
        for name, reason in undefined(transformer).items():
            session.console.print(f"no {name}.csv for encoding={session.config['names']['encoding']}: {reason}")


def undefined(transformer: Transformer) -> dict[str, str]:
    """The measurements that are not defined for the model's encodings, and why."""
    found = {}
    if not any(encoding.reads_content for encoding in transformer.encodings):
        found["consistency"] = "its attention does not depend on tokens"
    if all(turned_by(encoding) is None for encoding in transformer.encodings):
        found["bands"] = "it does not rotate channels by given or learned frequencies"
    return found


def write_mechanisms(session: Session, transformer: Transformer, store: Store, run: RunDirectory) -> list[Path]:
    """Inspect the model on a few documents of the validation split; returns the written files.

    See `attention_rows`, `consistency_rows` and `band_rows` for the measurements, which have a file each. Each portrait
    of the encoding has a file with all elements of each head, or with quantiles over tokens. If layers of a pattern
    have different portraits with the same name, a number distinguishes their files. The legends of the portraits are
    written to the manifest.

    Raises:
        UserError: a portrait has the name of a measurement.
    """
    device = session.settings.device
    tokens, targets = (each.to(device) for each in sample_of(store, "valid", session.data.length))
    with shown("measuring attention", console=session.console), autocast(device, session.settings.precision):
        files, portraits = attention_rows(transformer, tokens)
        files["consistency"] = consistency_rows(transformer, tokens)
        files["bands"] = band_rows(transformer, tokens, targets)
    measurements, kinds = {*files}, dict[str, tuple[Legend, int]]()
    for layer, found in enumerate(portraits):
        for name, portrait in found.items():
            if name in measurements:
                owner = type(transformer.encodings[layer]).__name__
                raise UserError(
                    f"{owner}: its portrait {name} has the name of a measurement: rename it and rerun the same command"
                )
            kind = portrait.legend, portrait.values.shape[1]
            names = chain([name], (f"{name}-{number}" for number in count(2)))
            own = next(each for each in names if kinds.setdefault(each, kind) == kind)
            files.setdefault(own, []).extend(_rows(layer, own, portrait))
    run.mechanisms.mkdir(parents=True, exist_ok=True)
    written = {run.mechanisms / f"{name}.csv": rows for name, rows in files.items() if rows}
    with run.replacing(*written):
        for file, rows in written.items():
            write_csv(file, rows)
        run.write_manifest(portraits={name: asdict(legend) for name, (legend, _) in kinds.items()})
    return [*written]


def attention_rows(transformer: Transformer, tokens: Tensor) -> tuple[dict[str, Rows], list[dict[str, Portrait]]]:
    """Measurements of attention on `tokens [B, T]`, as rows of their files, and the portraits of each layer.

    - `attention`: share of attention by layer, head and distance.
    - `positions`: share by layer, head and absolute position of the key.
    - `rollout`: share of each input position through all layers.
    - `locality`: how often a head prefers the nearer of two keys, by layer, head and distance.
    """
    files: dict[str, Rows] = {"attention": [], "positions": [], "rollout": [], "locality": []}
    length, device = tokens.shape[1], tokens.device
    layer, rollout, plain = 0, torch.eye(length, device=device), torch.eye(length, device=device)

    def read(encoding: Encoding, attention: Tensor) -> None:
        nonlocal layer, rollout, plain
        uniform, mean = uniform_attention(length, encoding.window, device), attention.mean(0)
        rollout, plain = rolled_out(attention.mean(1), rollout), rolled_out(uniform, plain)
        for low, high, shares in mass_by_distance(mean):
            files["attention"] += _by_head(layer, low, high, "mass", shares)
        for share in mass_by_position(mean, uniform):
            rows = _by_head(layer, share.low, share.high, "mass", share.mass)
            files["positions"] += [row | {"uniform": f"{share.uniform:.5f}"} for row in rows]
        for outcome in nearer_preferred(attention, encoding.window):
            files["locality"] += _by_head(layer, outcome.low, outcome.high, "share", outcome.share)
        layer += 1

    _, portraits = look_inside(transformer, tokens, read)
    files["rollout"] = [
        {"low": each.low, "high": each.high, "mass": f"{float(each.mass):.5f}", "uniform": f"{each.uniform:.5f}"}
        for each in mass_by_position(rollout.mean(0, keepdim=True), plain)
    ]
    return files, portraits


def consistency_rows(transformer: Transformer, tokens: Tensor) -> Rows:
    """How often two keys keep their order of attention when they exchange positions, by layer, head and distance.

    It takes a measurement of attention for each distance, so it uses the first row of `tokens [B, T]` only.
    """

    def read(encoding: Encoding, attention: Callable[[Tensor | None], Tensor]) -> list:
        return [*order_kept(attention, tokens, encoding.window)]

    tokens = tokens[:1]
    found = look_with_keys_moved(transformer, tokens, read)
    return [
        row
        for layer, outcomes in enumerate(found)
        for each in outcomes or ()
        for row in _by_head(layer, each.low, each.high, "share", each.share)
    ]


def band_rows(transformer: Transformer, tokens: Tensor, targets: Tensor) -> Rows:
    """Nats per token without each band of frequencies; see `loss_by_band`."""
    return [
        {"low": band.low, "high": band.high, "elements": band.elements}
        | {name: f"{getattr(band, name):.6f}" for name in ("plain", "unrotated", "removed")}
        for band in loss_by_band(transformer, tokens, targets)
    ]


def _by_head(layer: int, low: int, high: int, name: str, values: Tensor) -> Rows:
    return [
        {"layer": layer, "head": head, "low": low, "high": high, name: f"{value:.5f}"}
        for head, value in enumerate(values.tolist())
    ]


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
