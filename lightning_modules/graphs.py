"""Captures the training step as CUDA graphs, one per batch shape, so that small models do not wait for launches."""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.errors import one_line
from ..kernels.loss.cross_entropy import IGNORED

WARM_UP = 2  # steps of a shape that run normally: they compile kernels and create lazy state
PARTS = 4  # rows are padded to a multiple of a quarter of the longest: few shapes, little padding
PADDING = {"inputs": 0, "targets": IGNORED, "documents": -1}  # padding is a separate document that no target attends to


class CaptureError(Exception):
    """The step contains an operation that a CUDA graph cannot capture."""


@dataclass
class Shape:
    """The tensors that a graph reads and writes, whose addresses are fixed."""

    batch: dict[str, Any]
    seen: int = 0
    graph: "torch.cuda.CUDAGraph | None" = None
    results: tuple[Tensor, ...] = ()

    def replay(self) -> tuple[Tensor, ...]:
        """Run the graph on the contents of `batch`."""
        if self.graph is None:
            raise CaptureError("no step of this shape was captured")
        self.graph.replay()
        return self.results


class StepGraphs:
    """Calls `step(batch)`, from the third batch of a shape on as a CUDA graph.

    All other inputs of `step` (weights, moments, learning rate) must be tensors with fixed addresses, and the step must
    not copy values from the GPU. Padding on the right changes results only by rounding, as attention is causal and
    padding is never scored. The graphs share one memory pool, as no two run at the same time.

    Args:
        step: a function of a batch on the GPU that returns tensors.
        length: maximum number of tokens per row.
        bounded: pass on a bound of the number of packed documents, `pieces`. Batches of different bounds have different
            shapes. Default: False, drop it.
    """

    def __init__(self, step: Callable[[dict[str, Any]], tuple[Tensor, ...]], length: int, bounded: bool = False):
        self.step, self.length, self.multiple, self.bounded = step, length, -(-length // PARTS), bounded
        self.shapes: dict[tuple, Shape] = {}
        # Gradients accumulate on the stream of the first backward pass: warm-up and capture must share it.
        self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def __call__(self, batch: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """The results of `step` for `batch`; the next call overwrites them.

        Raises:
            CaptureError: the step cannot be captured. Nothing has been computed then.
        """
        pieces = batch.get("pieces") if self.bounded else None
        batch = {key: batch[key] for key in PADDING if key in batch}
        rows, length = batch["inputs"].shape
        padded = padded_length(length, self.multiple, self.length)
        bound = {} if pieces is None else {"pieces": padded_count(pieces + rows * (length < padded))}
        key = (rows, padded, *batch, *bound.values())
        if key not in self.shapes:
            gc.collect()  # a leftover autograd graph would tie the weights to its stream
            fixed = {name: tensor.new_full((rows, padded), PADDING[name]) for name, tensor in batch.items()}
            self.shapes[key] = Shape(fixed | bound)
        shape = self.shapes[key]
        for name, tensor in batch.items():
            shape.batch[name][:, :length].copy_(tensor)
            if length < padded:
                shape.batch[name][:, length:].fill_(PADDING[name])
        if shape.graph is None:
            shape.seen += 1
            if shape.seen <= WARM_UP:
                return self._on_own_stream(lambda: self.step(shape.batch))
            self._capture(shape)
        return shape.replay()

    def clear(self) -> None:
        """Forget all graphs, after a change of the model that they do not contain."""
        self.shapes.clear()

    def _on_own_stream(self, call: Callable):
        """Run `call()` on the graphs' stream, synchronised with the current stream before and after."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = call()
        torch.cuda.current_stream().wait_stream(self.stream)
        return result

    def _capture(self, shape: Shape) -> None:
        graph, present = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # Thread-local, as the loader's thread pins batches meanwhile.
            with uncollected(), torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"):
                results = self.step(shape.batch)
        except RuntimeError as error:
            # A failed capture leaves its stream current, its casts in autocast's cache although they never ran, and the
            # generator in capture mode.
            torch.cuda.set_stream(present)
            torch.clear_autocast_cache()
            generator = torch.cuda.default_generators[self.stream.device_index]
            generator.graphsafe_set_state(generator.clone_state())
            raise CaptureError(one_line(error)) from error
        shape.graph, shape.results = graph, results


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection: destroying a graph or kernel would abort a capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def padded_length(length: int, multiple: int, longest: int) -> int:
    """`length` rounded up to a `multiple`, at most to `longest`."""
    return max(length, min(-(-length // multiple) * multiple, longest))


def padded_count(count: int) -> int:
    """`count` rounded up by at most an eighth, or to a multiple of 8."""
    multiple = max(8, 2 ** (count.bit_length() - 4))
    return -(-count // multiple) * multiple
