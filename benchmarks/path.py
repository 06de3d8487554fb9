"""How fast is PaTH, beside RoPE around cuDNN and flash-linear-attention's PaTH, in one process? Writes a CSV.

    python -m bearings.benchmarks.path --lengths 4096 16384 --head-dims 64 128 --out path.csv

As benchmarks/attention.py: versions alternate, figures are medians, ratios are to the yardstick of the same run.
Errors are relative, against float64 on one head of CHECKED tokens; plain attention's stand beside them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from bearings.benchmarks.attention import TOKENS, compiled_rope, graphed, sdpa, table, time_alternating
from bearings.benchmarks.sweep import YARDSTICK, sweep, sweep_arguments
from bearings.kernels.path import WINDOW, path_attention, path_attention_cached

CHECKED = 2048
CACHED = 32768


class Inputs(NamedTuple):
    """q, k, v, w `[B, T, H, D]` in bfloat16, beta `[B, T, H]`, log-gates and their sums `[B, T, H]`."""

    q: Tensor
    k: Tensor
    v: Tensor
    w: Tensor
    beta: Tensor
    gates: Tensor
    sums: Tensor


def make_inputs(batch: int, length: int, heads: int, head_dim: int) -> Inputs:
    q, k, v, w = (torch.randn(batch, length, heads, head_dim, device="cuda") for _ in range(4))
    w = w / w.norm(dim=-1, keepdim=True)
    beta = 1.98 * torch.rand(batch, length, heads, device="cuda")
    gates = F.logsigmoid(torch.randn(batch, length, heads, device="cuda", dtype=torch.float64) + 4)
    tensors = [*(x.bfloat16() for x in (q, k, v, w)), beta, gates, gates.cumsum(1)]
    return Inputs(*(x.requires_grad_() for x in tensors))


def by_rope(i: Inputs) -> tuple[Callable[[], Tensor], list[Tensor]]:
    ready = table(i.q.shape[1], i.q.shape[-1] // 2)
    return lambda: sdpa(*compiled_rope(i.q, i.k, ready), i.v, SDPBackend.CUDNN_ATTENTION), [i.q, i.k, i.v]


def by_path(i: Inputs) -> tuple[Callable[[], Tensor], list[Tensor]]:
    scale = i.q.shape[-1] ** -0.5
    return lambda: path_attention(*i[:5], scale, implementation="triton"), list(i[:5])


def by_path_fox(i: Inputs) -> tuple[Callable[[], Tensor], list[Tensor]]:
    scale = i.q.shape[-1] ** -0.5
    return lambda: path_attention(*i[:5], scale, None, i.sums, "triton"), [*i[:5], i.sums]


def by_fla(i: Inputs, gated: bool) -> tuple[Callable[[], Tensor], list[Tensor]]:
    from fla.ops.path_attn import parallel_path_attn

    w, gates = (x.detach().float().requires_grad_() for x in (i.w, i.gates))  # the dtypes that it asks for
    leaves = [i.q, i.k, i.v, w, i.beta] + [gates] * gated
    return lambda: parallel_path_attn(*leaves[:5], g=gates if gated else None)[0], leaves


CONTENDERS = {
    YARDSTICK: by_rope,
    "PaTH": by_path,
    "PaTH-FoX": by_path_fox,
    "PaTH, flash-linear-attention": lambda i: by_fla(i, False),
    "PaTH-FoX, flash-linear-attention": lambda i: by_fla(i, True),
}


def training(call: Callable[[], Tensor], leaves: list[Tensor]) -> Callable[[], tuple[Tensor, ...]]:
    grad = torch.randn_like(call())
    return lambda: torch.autograd.grad(call(), leaves, grad)


def peak(call: Callable[[], object]) -> float:
    """MiB above what was there."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def measure(length: int, head_dim: int, chosen: list[str], rounds: int) -> list[dict]:
    """A row for each contender at one shape, 16 heads and TOKENS tokens; longer sequences have fewer heads."""
    i = make_inputs(max(TOKENS // length, 1), length, 16 if length <= TOKENS else 4, head_dim)
    calls, passes, peaks = {}, {}, {}
    for name in chosen:
        try:
            call, leaves = CONTENDERS[name](i)
            calls[name], passes[name] = call, training(call, leaves)
            peaks[name] = peak(passes[name])
        except Exception as error:
            print(
                f"{name} at T={length} D={head_dim}: {type(error).__name__} {str(error).splitlines()[:1]}", flush=True
            )
            calls.pop(name, None), passes.pop(name, None)
    with torch.no_grad():
        forward = time_alternating(calls, rounds)
    both = time_alternating(passes, rounds)
    return [
        {"length": length, "head_dim": head_dim, "name": name, "forward_ms": forward[name], "training_ms": both[name]}
        | {"forward_ratio": forward[name] / forward[YARDSTICK], "training_ratio": both[name] / both[YARDSTICK]}
        | {"peak_mib": peaks[name], "peak_ratio": peaks[name] / peaks[YARDSTICK]}
        for name in calls
    ]


def errors(head_dim: int, gated: bool) -> dict[str, float]:
    """Of PaTH's output and gradients, and of plain attention's in bfloat16."""
    i = make_inputs(1, CHECKED, 1, head_dim)
    leaves = [*i[:5]] + [i.sums] * gated
    exact = [x.detach().double().requires_grad_() for x in leaves]
    grad, found = torch.randn(i.v.shape, device="cuda").bfloat16(), {}

    def run(tensors: list[Tensor], implementation: str) -> list[Tensor]:
        sums = tensors[5] if gated else None
        out = path_attention(*tensors[:5], head_dim**-0.5, None, sums, implementation)
        return [out, *torch.autograd.grad(out, tensors, grad.to(out.dtype))]

    def plain(tensors: list[Tensor]) -> list[Tensor]:
        out = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in tensors), is_causal=True).transpose(1, 2)
        return [out, *torch.autograd.grad(out, tensors, grad.to(out.dtype))]

    for name, got, expected in zip(
        ("out", "dq", "dk", "dv", "dw", "dbeta", "dsums"), run(leaves, "triton"), run(exact, "torch"), strict=False
    ):
        found[name] = ((got.double() - expected).norm() / expected.norm()).item()
    for name, got, expected in zip(("out", "dq", "dk", "dv"), plain(leaves[:3]), plain(exact[:3]), strict=True):
        found[f"plain {name}"] = ((got.double() - expected).norm() / expected.norm()).item()
    return found


@torch.no_grad()
def decoding(head_dim: int, rounds: int) -> dict[str, float]:
    """Microseconds for one token on CACHED keys of 16 heads, half a window after the last push, as one CUDA graph."""
    i, scale, held = make_inputs(1, CACHED, 16, head_dim), head_dim**-0.5, CACHED - WINDOW // 2
    keys, window = i.k[:, :held].float(), [x[:, held:] for x in (i.k, i.v, i.w, i.beta)]
    q = i.q[:, -1:]
    calls = {
        YARDSTICK: lambda: F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, i.k, i.v))),
        "PaTH": lambda: path_attention_cached(q, *window, scale, keys, i.v[:, :held])[0],
    }
    times = time_alternating({name: graphed(call) for name, call in calls.items()}, rounds)
    return {name: 100 * time for name, time in times.items()}


def show(rows: list[dict]) -> None:
    for row in rows:
        figures = (f"{row[f'{x}_ms']:9.3f} ms ({row[f'{x}_ratio']:.2f})" for x in ("forward", "training"))
        memory = f"{row['peak_mib']:6.0f} MiB ({row['peak_ratio']:.2f})"
        print(f"{row['length']:6} {row['head_dim']:4} {row['name']:33}", *figures, memory, flush=True)


def main() -> None:
    """Run the sweep, then errors and decoding."""
    arguments = sweep_arguments(__doc__, CONTENDERS, [64, 128], Path("path.csv"))
    sweep(arguments, CONTENDERS, measure, show)
    for head_dim in arguments.head_dims:
        for gated in (False, True):
            figures = " ".join(f"{name} {value:.1e}" for name, value in errors(head_dim, gated).items())
            print(f"errors D={head_dim}{' gated' * gated}: {figures}", flush=True)
        figures = ", ".join(f"{name} {value:.1f}" for name, value in decoding(head_dim, arguments.rounds).items())
        print(f"decoding D={head_dim} at {CACHED}, microseconds: {figures}", flush=True)


if __name__ == "__main__":
    main()
