"""Measures on a CPU the memory that blocks take in addition to what their forward pass saves."""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..encodings.base import Encoding
from .evaluation import autocast
from .transformer import Transformer

MEASURED = 256  # most tokens of a measured row


class LiveBytes(TorchDispatchMode):
    """Within this context, counts the bytes of tensors that operations create, those of a backward pass included.

    PyTorch has such a count for GPUs only. What an operation allocates and frees internally is not counted.

    Attributes:
        now: bytes of the tensors that exist.
        peak: the most bytes that existed at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for storage in _storages((args, kwargs)):  # those not seen yet were created earlier, such as weights
            self._see(storage, 0)
        found = func(*args, **(kwargs or {}))
        for storage in _storages(found):
            self._see(storage, storage.nbytes())
        return found

    def _see(self, storage: torch.UntypedStorage, size: int) -> None:
        if id(storage) not in self._seen:
            self._seen.add(id(storage))
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._forget, id(storage), size)

    def _forget(self, number: int, size: int) -> None:
        self._seen.remove(number)
        self.now -= size


def working_bytes(model: Transformer, rows: int, length: int, precision: str) -> float:
    """Working memory of the blocks in a step on `rows` rows of `length` tokens, in bytes, without the loss.

    It is measured on two and three rows of at most 256 tokens. It grows with the pairs of a query and a key whose
    scores exist at once, or with the tokens if attention never holds scores.
    """
    short = min(length, MEASURED)
    two, three = (_measured(model, few, short, precision) / _size(model, few, short) for few in (2, 3))
    return (two + (rows - 2) * (three - two)) * _size(model, rows, length)


def _measured(model: Transformer, rows: int, length: int, precision: str) -> int:
    device = model.embedding.weight.device
    tokens = torch.zeros(rows, length, dtype=torch.int64, device=device)

    def drop(parameter: torch.Tensor) -> None:
        parameter.grad = None

    hooks = [parameter.register_post_accumulate_grad_hook(drop) for parameter in model.parameters()]
    try:
        with torch.random.fork_rng(devices=[]), autocast(device, precision), LiveBytes() as live:
            out = model.hidden(tokens).sum()
            saved = live.now
            out.backward()
    finally:
        for hook in hooks:
            hook.remove()
    return live.peak - saved


def _size(model: Transformer, rows: int, length: int) -> int:
    """What the working memory of a row is proportional to: tokens, or pairs if any layer holds scores."""
    return max(_pairs(encoding, rows, length) or length for encoding in model.encodings)


def _pairs(encoding: Encoding, rows: int, length: int) -> int | None:
    """The most pairs of a query and a key in a row in one block of `Encoding.block_queries`; None if it holds none."""
    queries = encoding.block_queries(rows, length)
    if queries is None:
        return None
    rest = length % queries  # queries of the last block, if it has fewer than the others
    return max(rest * length, min(queries, length) * (length - rest))


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [tensor.untyped_storage() for tensor in tree_leaves(tree) if isinstance(tensor, torch.Tensor)]
