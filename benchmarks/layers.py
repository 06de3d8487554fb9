"""Measures a model's layers around attention in this project, torch.compile, liger-kernel and quack-kernels.

    python -m bearings.benchmarks.layers --out layers.csv

Parts of a step at the sizes of the training benchmark: the loss, residual addition with RMSNorm, SwiGLU, the MLP, the
embedding, and two products with the norm between them. As in training: bf16 autocast and float32 weights. Contenders of
a part run in one process and take turns, times are medians, and ratios are relative to `ours`. Passes are replayed as
CUDA graphs, except those that synchronise CPU and GPU, which are timed as launched (`replayed` is False). `forward`
includes saving what the backward pass needs. Errors are relative to float64: of the worst output, and of the worst
gradient. Packages that are not installed are skipped, and so are contenders that fail.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from .layer_parts import LOW, OURS, PARTS, Function, Part, tokens_of
from .record import parser_of, write_rows
from .sweep import aligned, allow_recompiling, made_by, parsed_on_gpu, print_failure
from .timing import distance, graphed, peak, time_alternating
from .training import SIZES


def autocast() -> torch.autocast:
    """The precision of training with precision=bf16-mixed."""
    return torch.autocast("cuda", LOW)


class Ready:
    """A contender's passes over given inputs, with the gradients of its outputs."""

    def __init__(self, function: Function, inputs: Sequence[Tensor], grads: Sequence[Tensor]):
        self.function, self.inputs = function, inputs
        self.leaves = [x for x in inputs if x.requires_grad]
        self.grads = [g.to(x.dtype) for g, x in zip(grads, self.forward(), strict=True)]

    def forward(self) -> tuple[Tensor, ...]:
        """The outputs."""
        with autocast():
            return tupled(self.function(*self.inputs))

    def train(self) -> tuple[Tensor, ...]:
        """The gradients of the inputs."""
        return torch.autograd.grad(self.forward(), self.leaves, self.grads)


def tupled(found: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


class Exact:
    """Outputs and gradients of a part in float64, for random gradients of the outputs."""

    def __init__(self, plain: Function, inputs: Sequence[Tensor]):
        wide = [x.detach().double().requires_grad_() if x.requires_grad else x for x in inputs]
        outputs = tupled(plain(*wide))
        self.grads = [torch.randn(x.shape, device=x.device).to(LOW) for x in outputs]
        leaves = [x for x in wide if x.requires_grad]
        self.gradients = torch.autograd.grad(outputs, leaves, [g.double() for g in self.grads])
        self.outputs = [x.detach() for x in outputs]


def worst(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest relative distance of a tensor to the expected one."""
    return max(distance(x.detach(), y) for x, y in zip(found, expected, strict=True))


def checked(one: Ready, expected: Exact) -> dict[str, object]:
    """Errors, memory, whether gradients are repeatable bit for bit, and whether a CUDA graph can be captured."""
    found = one.forward()
    row: dict[str, object] = {"error": worst(found, expected.outputs)}
    if not found[0].requires_grad:  # no backward pass
        return row | {"replayed": not synchronises(one.forward)}
    first = one.train()
    row["error_gradients"] = worst(first, expected.gradients)
    row["repeatable"] = all(torch.equal(a, b) for a, b in zip(first, one.train(), strict=True))
    del found, first
    return row | {"peak_mib": peak(one.train), "replayed": not synchronises(one.train)}


def synchronises(call: Callable[[], object]) -> bool:
    """Whether the CPU waits for the GPU in `call`, which a CUDA graph does not allow."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def ready_contenders(part: Part, inputs: Sequence[Tensor], what: str) -> Iterator[tuple[str, Ready, dict[str, object]]]:
    """The contenders that are installed and work, with their checks. Others are reported."""
    expected = Exact(part.plain, inputs)
    for name, make in part.contenders.items():
        try:
            one = Ready(make(), inputs, expected.grads)
            yield name, one, checked(one, expected)
        except Exception as error:
            print_failure(f"{name}, {what}", error)


def measure(name: str, size: str, rounds: int) -> list[dict]:
    """One row per contender of a part at one of SIZES."""
    torch.manual_seed(0)
    torch.compiler.reset()
    part, shape = PARTS[name], SIZES[size]
    found = list(ready_contenders(part, part.inputs(shape), f"{name}, {size}"))
    rows = {contender: row for contender, _, row in found}
    columns = {"forward": {contender: one.forward for contender, one, _ in found}}
    columns["training"] = {contender: one.train for contender, one, row in found if "error_gradients" in row}
    for column, calls in columns.items():
        passes = {key: graphed(call, 1) if rows[key]["replayed"] else call for key, call in calls.items()}
        times = time_alternating(passes, rounds)
        for key, time in times.items():
            rows[key] |= {f"{column}_ms": time, f"{column}_ratio": time / times[OURS]}
    key = {"part": name, "size": size, "tokens": tokens_of(shape), "width": shape.width}
    return [key | {"name": contender} | row for contender, row in rows.items()]


def show(rows: list[dict]) -> None:
    """Print a short table."""
    columns = ("forward_ms", "forward_ratio", "training_ms", "training_ratio", "peak_mib", "error", "error_gradients")
    for row in rows:
        figures = aligned(row, columns, 10)
        marks = "launched " * (not row["replayed"]) + "not repeatable" * (not row.get("repeatable", True))
        print(f"{row['size']:5} {row['part'][:23]:23} {row['name'][:26]:26}{figures} {marks}", flush=True)


def parsed(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["124M", "1.3B"])
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which contenders take turns")
    return parsed_on_gpu(parser, given)


def main() -> None:
    """Measure all parts at all sizes, and update the CSV after each."""
    arguments = parsed()
    torch.set_float32_matmul_precision("high")
    allow_recompiling()
    origin = made_by(arguments.commit)
    rows: list[dict] = []
    for size in arguments.sizes:
        for part in arguments.parts:
            new = measure(part, size, arguments.rounds)
            rows += [row | origin for row in new]
            write_rows(arguments.out, rows)
            show(new)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
