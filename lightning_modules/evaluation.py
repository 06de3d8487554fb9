"""Score a complete split: every target once, deterministically, with one record a document."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from bearings.domains.store import Store
from bearings.lightning_modules.data_module import IGNORED, collate

LOGITS = 1 << 27  # of one forward pass at most: half a GiB in float32, whatever the vocabulary


@dataclass(frozen=True)
class Records:
    """Per-document scores of one split.

    Attributes:
        documents: names; clusters: integer labels, equal for dependent documents.
        nats: `[documents]` summed negative log-likelihood.
        tokens: `[documents]` number of targets.
        units: `[documents, len(unit_names)]` natural units.
        store: sha256 of the token store scored.
    """

    documents: np.ndarray
    clusters: np.ndarray
    nats: np.ndarray
    tokens: np.ndarray
    units: np.ndarray
    unit_names: tuple[str, ...]
    store: str

    @property
    def nats_per_token(self) -> float:
        return float(self.nats.sum() / self.tokens.sum())

    @property
    def bits_per_unit(self) -> dict[str, float]:
        """Bits per natural unit, by unit."""
        bits = self.nats.sum() / math.log(2)
        return {name: float(bits / self.units[:, i].sum()) for i, name in enumerate(self.unit_names)}

    def save(self, path: Path) -> None:
        """Write an .npz whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp.npz")
        np.savez_compressed(temporary, **{**vars(self), "unit_names": np.array(self.unit_names)})
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Records":
        with np.load(path) as file:
            fields = {name: file[name] for name in file.files}
        return cls(**{**fields, "unit_names": tuple(fields["unit_names"].tolist()), "store": str(fields["store"])})

    @classmethod
    def of(cls, store: Store, split: str, nats: np.ndarray) -> "Records":
        """Records of `nats` summed over each document of `split`, in the store's order."""
        index = store.documents(split)
        return cls(
            np.array([store.names[i] for i in index]),
            store.clusters[index],
            np.asarray(nats, np.float64),
            store.offsets[index + 1] - store.offsets[index] - 1,
            store.units[index],
            tuple(store.manifest["units"]),
            store.manifest["sha256"],
        )


@dataclass(frozen=True)
class Window:
    """Inputs `begin..end-1` of one document, of whose targets those from `scored` on count."""

    document: int
    begin: int
    scored: int
    end: int


def windows(store: Store, split: str, length: int, overlap: float) -> list[Window]:
    """Cover every target of `split` once with contexts of at most `length`, the longest first.

    In a document of more than `length` targets each window but the first keeps `overlap` of its length as context.
    """
    stride = max(1, length - int(overlap * length))
    found = []
    for number, index in enumerate(store.documents(split)):
        size = int(store.offsets[index + 1] - store.offsets[index] - 1)
        end = min(length, size)
        found.append(Window(number, 0, 0, end))
        while end < size:
            scored, end = end, min(end + stride, size)
            found.append(Window(number, max(0, end - length), scored, end))
    return sorted(found, key=lambda window: window.begin - window.end)


class Evaluation:
    """Scores splits.

    Args:
        length: longest context, in tokens.
        overlap: share of it kept as context between the windows of a longer document.
        tokens_per_batch: tokens of one forward pass at most; changes nothing but speed and memory.
        precision: Lightning's name; `bf16-mixed` runs under autocast. Log-softmax is always float32.

    Raises:
        ValueError: a value outside its range.
    """

    def __init__(self, length: int, precision: str, overlap: float = 0.5, tokens_per_batch: int = 16384):
        if not 0 <= overlap < 1:
            raise ValueError(f"overlap={overlap}: it must lie in [0, 1)")
        if tokens_per_batch < 1:
            raise ValueError(f"tokens_per_batch={tokens_per_batch}: it must be at least 1")
        self.length, self.precision, self.overlap, self.tokens_per_batch = length, precision, overlap, tokens_per_batch

    @torch.inference_mode()
    def score(
        self,
        model: torch.nn.Module,
        store: Store,
        split: str,
        on_batch: Callable[[int, int], None] = lambda done, total: None,
    ) -> Records:
        """Negative log-likelihood of `split` under `model`, which maps tokens `[B, T]` to logits `[B, T, vocabulary]`.

        `on_batch` is called with (windows done, windows in all).
        """
        device = next(model.parameters()).device
        todo, index = windows(store, split, self.length, self.overlap), store.documents(split)
        nats = np.zeros(len(index))
        was_training = model.training
        model.eval()
        tokens = min(self.tokens_per_batch, LOGITS // store.manifest["vocabulary"])
        at = 0
        while at < len(todo):
            batch = todo[at : at + max(1, tokens // (todo[at].end - todo[at].begin))]
            tensors = collate(
                [[store.document(index[w.document])[w.begin : w.end + 1].astype(np.int64)] for w in batch]
            )
            for row, window in enumerate(batch):
                tensors["targets"][row, : window.scored - window.begin] = IGNORED
            with autocast(device, self.precision):
                logits = model(tensors["inputs"].to(device))
            targets = tensors["targets"].to(device).flatten()
            loss = F.cross_entropy(logits.float().flatten(0, 1), targets, ignore_index=IGNORED, reduction="none")
            sums = loss.view(len(batch), -1).double().sum(1).cpu().numpy()
            np.add.at(nats, [window.document for window in batch], sums)
            at += len(batch)
            on_batch(at, len(todo))
        model.train(was_training)
        return Records.of(store, split, nats)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The autocast context that Lightning's `precision` stands for on `device`."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed")
