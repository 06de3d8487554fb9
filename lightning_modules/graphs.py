"""A training step captured as CUDA graphs, one a shape of batch, so that a small model does not wait for launches."""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import one_line
from ..kernels.loss.cross_entropy import IGNORED

WARM_UP = 2  # steps of a shape that run as they are: they compile kernels and make what is made once
PARTS = 4  # rows are padded to a multiple of so many parts of the longest: few shapes, little padding
PADDING = {"inputs": 0, "targets": IGNORED, "documents": -1}  # a document of its own, which nothing scored sees


class CaptureError(Exception):
    """The step does something that a CUDA graph cannot hold."""


@dataclass
class Shape:
    """Tensors of fixed address that a graph reads and writes."""

    batch: dict[str, Tensor]
    seen: int = 0
    graph: "torch.cuda.CUDAGraph | None" = None
    results: tuple[Tensor, ...] = ()

    def replay(self) -> tuple[Tensor, ...]:
        """The results of the graph for what `batch` holds."""
        if self.graph is None:
            raise CaptureError("no step of this shape was captured")
        self.graph.replay()
        return self.results


class StepGraphs:
    """Calls `step(batch)` as a CUDA graph from the third batch of a shape on.

    What `step` reads beside the batch (weights, moments, learning rate) it must read from tensors that stay where they
    are, and nothing in it may ask the GPU for a value. Padding on the right changes results by rounding alone, for
    attention is causal and padding never scored. The graphs share one pool of memory, for no two run at a time.

    Args:
        step: of a batch on the GPU, to the tensors that it returns.
        length: tokens a row at most.
    """

    def __init__(self, step: Callable[[dict[str, Tensor]], tuple[Tensor, ...]], length: int):
        self.step, self.length, self.multiple = step, length, -(-length // PARTS)
        self.shapes: dict[tuple, Shape] = {}
        # Gradients are summed on the stream of the first backward pass: warm-up and capture must share one.
        self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def __call__(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """What `step` returns for `batch`; overwritten by the next call.

        Raises:
            CaptureError: the step cannot be captured; nothing has been computed.
        """
        batch = {key: batch[key] for key in PADDING if key in batch}
        rows, length = batch["inputs"].shape
        padded = padded_length(length, self.multiple, self.length)
        key = (rows, padded, *batch)
        if key not in self.shapes:
            gc.collect()  # what is left of an earlier graph of autograd's would hold weights to that one's stream
            fixed = {name: tensor.new_full((rows, padded), PADDING[name]) for name, tensor in batch.items()}
            self.shapes[key] = Shape(fixed)
        shape = self.shapes[key]
        for name, tensor in batch.items():
            shape.batch[name][:, :length].copy_(tensor)
            if length < padded:
                shape.batch[name][:, length:].fill_(PADDING[name])
        if shape.graph is None:
            shape.seen += 1
            if shape.seen <= WARM_UP:
                return self._beside(lambda: self.step(shape.batch))
            self._capture(shape)
        return shape.replay()

    def _beside(self, call: Callable):
        """`call()` on the graphs' stream, which waits for the present one and is waited for."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = call()
        torch.cuda.current_stream().wait_stream(self.stream)
        return result

    def _capture(self, shape: Shape) -> None:
        graph, present = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # Thread-local: the loader's thread goes on pinning batches meanwhile.
            with uncollected(), torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"):
                results = self.step(shape.batch)
        except RuntimeError as error:
            # A capture that breaks off leaves its stream the current one, casts never made in autocast's cache, and the
            # generator believing in it.
            torch.cuda.set_stream(present)
            torch.clear_autocast_cache()
            generator = torch.cuda.default_generators[self.stream.device_index]
            generator.graphsafe_set_state(generator.clone_state())
            raise CaptureError(one_line(error)) from error
        shape.graph, shape.results = graph, results


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected meanwhile: a graph or kernel that is destroyed would break a capture off."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def padded_length(length: int, multiple: int, longest: int) -> int:
    """`length` rounded up to a `multiple`, or to `longest`."""
    return max(length, min(-(-length // multiple) * multiple, longest))
