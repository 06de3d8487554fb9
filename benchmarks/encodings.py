"""Measures one layer of each encoding on one GPU, relative to RoPE. Writes a CSV.

    python -m bearings.benchmarks.encodings --lengths 4096 --head-dims 64 --out encodings.csv

Each encoding runs as in training with precision=bf16-mixed: under autocast, with the implementation that `auto`
chooses, compiled (except for row blocks), and replayed as a CUDA graph. A layer is the attention of an encoding between
the projections, with everything that the encoding computes itself, and with what it passes on to the next layer. Each
encoding is timed in turns with RoPE, all in one process. Times are medians. Decoding appends one token to a cache of T
tokens. If an encoding only changes the embeddings, the measured layer is NoPE. For a pattern over layers, it is the
first layer.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from ..encodings.base import Encoding
from ..encodings.contract.context import Context
from ..encodings.families.carrying import CarryingEncoding
from ..session.configuration import build
from ..session.overrides import choices_of
from ..session.settings import file_of
from .attention_contenders import TOKENS
from .sweep import aligned, allow_recompiling, print_failure, sweep, sweep_arguments
from .timing import graphed, peak, time_alternating

ROPE = "rope"
HEADS, WIDTH = 16, 1024
STEPS = 10  # decoding steps per CUDA graph
CONTENDERS = choices_of("encoding")


class Layer:
    """One layer of an encoding with its inputs."""

    def __init__(self, name: str, length: int, head_dim: int):
        torch.manual_seed(0)
        block: Any = OmegaConf.to_container(file_of("encoding", name), resolve=True)
        sizes = {"width": WIDTH, "heads": HEADS, "kv_heads": HEADS, "head_dim": head_dim}
        found = build(block, "encoding", **sizes)
        if found.longest is not None:
            found = build({**block, "length": length + 4 * STEPS}, "encoding", **sizes)
        self.encoding: Encoding = found.for_layer(0).cuda()
        shared = self.encoding.shared_module()
        self.shared = None if shared is None else shared.cuda()
        self.rows = max(TOKENS // length, 1)
        self.inputs = self.tensors(length)
        shape = self.rows, length, self.encoding.heads, self.encoding.value_dim
        self.grad = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        plan = Context.of(self.encoding, self.inputs[1]).plan
        self.compiled = torch.compile(self.compute, fullgraph=plan.by_kernel, dynamic=False)

    def tensors(self, length: int) -> list[Tensor]:
        """x, q, k and v of `length` tokens."""
        counts = self.encoding.query_heads, self.encoding.kv_heads, self.encoding.kv_heads
        heads = [(self.rows, length, count, self.encoding.head_dim) for count in counts]
        shapes = [(self.rows, length, WIDTH), *heads]
        return [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for shape in shapes]

    def forward(self) -> Tensor:
        """One pass over whole sequences."""
        with torch.autocast("cuda", torch.bfloat16):
            return self.compiled(self.inputs, Context.of(self.encoding, self.inputs[1]).sharing(self.shared))

    def compute(self, inputs: list[Tensor], context: Context, state: Any = None) -> Tensor:
        """The output of attention, and the tensor for the next layer, computed as if the MLP returned x."""
        out = self.encoding(*inputs, context, state)
        if not isinstance(self.encoding, CarryingEncoding):
            return out
        out, averaged = out.tensor_split([self.encoding.head_dim], -1)
        return torch.cat([out, self.encoding.updated(self.encoding.start(context, out), averaged, inputs[0])], -1)

    def train(self) -> object:
        """Forward and backward."""
        leaves = [*self.inputs, *self.encoding.parameters()]
        leaves += [] if self.shared is None else self.shared.parameters()
        return torch.autograd.grad(self.forward(), leaves, self.grad, allow_unused=True)

    def decoder(self) -> Callable[[], None]:
        """STEPS single tokens after a prompt."""
        length = self.inputs[1].shape[1]
        state = self.encoding.new_state(self.rows, length + 4 * STEPS, self.inputs[1])
        self.step(state, self.inputs)
        new = self.tensors(1)
        return graphed(lambda: self.step(state, new), STEPS)

    def step(self, state: Any, inputs: list[Tensor]) -> Tensor:
        """A pass with a cache."""
        with torch.autocast("cuda", torch.bfloat16):
            context = Context.of(self.encoding, inputs[1], state).sharing(self.shared)
            return self.compute(inputs, context, state)


def weigh(layer: Layer) -> dict[str, float]:
    """Memory of one training pass: saved for the backward pass, and the peak."""
    peak_mib = peak(layer.train)
    before = torch.cuda.memory_allocated()
    out = layer.forward()  # holds what is saved
    saved = torch.cuda.memory_allocated() - before
    del out
    return {"saved_mib": saved / 2**20, "peak_mib": peak_mib}


def graphs_of(layer: Layer) -> dict[str, Callable[[], None]]:
    """Forward, training and decoding passes as CUDA graphs."""
    training = graphed(layer.train, 1)
    with torch.no_grad():
        return {"forward": graphed(layer.forward, 1), "training": training, "decode": layer.decoder()}


def measure(length: int, head_dim: int, chosen: list[str], rounds: int) -> Iterator[dict]:
    """A row per encoding, timed in turns with RoPE. An encoding that fails is reported and skipped."""
    allow_recompiling()
    rope = graphs_of(Layer(ROPE, length, head_dim))
    for name in chosen:
        try:
            layer = Layer(name, length, head_dim)
            memory, graphs = weigh(layer), graphs_of(layer)
        except Exception as error:
            print_failure(f"{name} at T={length} D={head_dim}", error)
            continue
        row = {"encoding": name, "length": length, "head_dim": head_dim, "rows": layer.rows, **memory}
        for kind, unit, factor in (("forward", "ms", 1), ("training", "ms", 1), ("decode", "us", 1000 / STEPS)):
            times = time_alternating({ROPE: rope[kind], name: graphs[kind]}, rounds)
            row |= {f"{kind}_{unit}": factor * times[name], f"{kind}_ratio": times[name] / times[ROPE]}
        yield row


def show(rows: list[dict]) -> None:
    """Print a short table."""
    columns = ("forward_ms", "forward_ratio", "training_ms", "training_ratio", "decode_us", "decode_ratio")
    columns += ("saved_mib", "peak_mib")
    print(f"{'':30}" + "".join(f"{column:>15}" for column in columns))
    for row in rows:
        print(f"{row['length']:6} {row['head_dim']:4} {row['encoding']:18.18} {aligned(row, columns, 15)}", flush=True)


def main() -> None:
    """Measure the encodings."""
    arguments: argparse.Namespace = sweep_arguments(__doc__, CONTENDERS, [64], Path("encodings.csv"))
    if ROPE not in arguments.only:
        arguments.only = [ROPE, *arguments.only]
    sweep(arguments, CONTENDERS, measure, show)


if __name__ == "__main__":
    main()
