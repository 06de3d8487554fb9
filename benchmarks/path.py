"""Measures the speed of PaTH compared with RoPE and cuDNN, and with flash-linear-attention's PaTH. Writes a CSV.

    python -m bearings.benchmarks.path --lengths 4096 16384 --head-dims 64 128 --out path.csv

As in benchmarks/attention.py, contenders take turns in one process, times are medians, and ratios are relative to the
baseline of the same run. Passes are replayed as CUDA graphs, so that CPU overhead is excluded; forward and backward are
also timed when launched from Python. Errors are relative to float64, for one head of `checked` tokens; those of the
baseline are of attention without an encoding. Rows with CACHED tokens measure decoding: the time of one more token, as
CUDA graphs, and the error of the last token when all are decoded one by one.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from ..kernels.choice import Implementation
from ..kernels.path.attention import path_attention
from ..kernels.path.cache import WINDOW, Turns, add_token, add_windows, by_window, new_turns
from ..kernels.path.cached import decode_in_torch, path_attention_cached
from ..kernels.path.chunks import pushed
from .attention_contenders import TOKENS, compiled_rope, heads_first, sdpa, table
from .sweep import BASELINE, print_failure, sweep, sweep_arguments
from .timing import distance, graphed, peak, time_alternating

CHECKED = 4096  # maximum tokens computed in float64 with PyTorch operations
CACHED = 32768


class Inputs(NamedTuple):
    """q, k, v, w `[B, T, H, D]` in bfloat16; beta, log-gates and their sums, `[B, T, H]`."""

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
    from fla.ops.path_attn import parallel_path_attn  # pyright: ignore[reportMissingImports]

    w, gates = (x.detach().float().requires_grad_() for x in (i.w, i.gates))  # the dtypes that it requires
    leaves = [i.q, i.k, i.v, w, i.beta] + [gates] * gated
    return lambda: parallel_path_attn(*leaves[:5], g=gates if gated else None)[0], leaves


CONTENDERS = {
    BASELINE: by_rope,
    "PaTH": by_path,
    "PaTH-FoX": by_path_fox,
    "PaTH, flash-linear-attention": lambda i: by_fla(i, False),
    "PaTH-FoX, flash-linear-attention": lambda i: by_fla(i, True),
}


def training(call: Callable[[], Tensor], leaves: list[Tensor]) -> Callable[[], tuple[Tensor, ...]]:
    grad = torch.randn_like(call())
    return lambda: torch.autograd.grad(call(), leaves, grad)


def measure(length: int, head_dim: int, chosen: list[str], rounds: int) -> list[dict]:
    """One row per contender for one shape with 16 heads and TOKENS tokens; longer sequences have fewer heads."""
    i = make_inputs(max(TOKENS // length, 1), length, 16 if length <= TOKENS else 4, head_dim)
    calls, passes, peaks, same = {}, {}, {}, {}
    for name in chosen:
        try:
            call, leaves = CONTENDERS[name](i)
            calls[name], passes[name] = call, training(call, leaves)
            peaks[name], first = peak(passes[name]), passes[name]()
            same[name] = all(torch.equal(a, b) for a, b in zip(first, passes[name](), strict=True))
            del first
        except Exception as error:
            print_failure(f"{name} at T={length} D={head_dim}", error)
            calls.pop(name, None)
            passes.pop(name, None)
    with torch.no_grad():
        forward = time_alternating({name: graphed(call, 1) for name, call in calls.items()}, rounds)
    both = time_alternating({name: graphed(call, 1) for name, call in passes.items()}, rounds)
    launched = time_alternating(passes, rounds)
    return [
        {"length": length, "head_dim": head_dim, "name": name, "forward_ms": forward[name], "training_ms": both[name]}
        | {"forward_ratio": forward[name] / forward[BASELINE], "training_ratio": both[name] / both[BASELINE]}
        | {"launched_ms": launched[name], "launched_ratio": launched[name] / launched[BASELINE]}
        | {"peak_mib": peaks[name], "peak_ratio": peaks[name] / peaks[BASELINE], "repeatable": same[name]}
        | errors(min(length, CHECKED), head_dim, name)
        for name in calls
    ]


@functools.cache
def errors(length: int, head_dim: int, name: str) -> dict[str, float]:
    """Relative errors of output and gradients, and the number of tokens `checked`. Other packages are not checked."""
    if name not in (BASELINE, "PaTH", "PaTH-FoX"):
        return {}
    i = make_inputs(1, length, 1, head_dim)
    names = {BASELINE: ("q", "k", "v"), "PaTH": ("q", "k", "v", "w", "beta"), "PaTH-FoX": Inputs._fields}[name]
    leaves = [getattr(i, x) for x in names if x != "gates"]
    exact, grad = [x.detach().double().requires_grad_() for x in leaves], torch.randn_like(i.v)

    def run(tensors: list[Tensor], implementation: Implementation) -> list[Tensor]:
        if name == BASELINE:
            q, k, v = tensors
            out = F.scaled_dot_product_attention(*heads_first(q, k, v), is_causal=True).transpose(1, 2)
        else:
            q, k, v, w, beta, *sums = tensors
            gates = sums[0] if sums else None
            out = path_attention(q, k, v, w, beta, head_dim**-0.5, None, gates, implementation=implementation)
        return [out, *torch.autograd.grad(out, tensors, grad.to(out.dtype))]

    pairs = zip(
        ("out", *(f"d{x}" for x in names if x != "gates")), run(leaves, "triton"), run(exact, "torch"), strict=True
    )
    return {"checked": length} | {f"error_{x}": distance(got, expected) for x, got, expected in pairs}


def prompted(i: Inputs, tokens: int, keys: Tensor) -> Turns:
    """The state of a cache after a prompt of `tokens`; `keys [B, T, Hkv, D]` are updated in place."""
    _, capacity, heads, head_dim = keys.shape
    turns, whole = new_turns(1, capacity, heads, head_dim, keys), tokens // WINDOW * WINDOW
    parts = (by_window(x[:, :whole]).to(turns.product.dtype) for x in (i.k, i.w, i.beta.unsqueeze(-1)))
    add_windows(turns, keys, *pushed(*parts))
    for t in range(whole, tokens):
        add_token(turns, i.k[:, t], i.w[:, t], i.beta[:, t])
    return turns


@torch.no_grad()
def decoding(head_dim: int, rounds: int) -> list[dict]:
    """Rows for one more token over CACHED keys of 16 heads, with half a window pending."""
    i, scale, held = make_inputs(1, CACHED + WINDOW, 16, head_dim), head_dim**-0.5, CACHED + WINDOW // 2
    q, k, v = (x.transpose(1, 2) for x in (i.q[:, -1:], i.k[:, :CACHED], i.v[:, :CACHED]))
    keys, calls = i.k.clone(), {BASELINE: lambda: F.scaled_dot_product_attention(q, k, v)}
    turns = prompted(i, held, keys)

    def by_kernel(sums: Tensor | None) -> Callable[[], Tensor]:
        given = i.q[:, -1:], i.w[:, -1:], i.beta[:, -1:], scale, keys, i.v

        def call() -> Tensor:
            turns.pending = WINDOW // 2  # every call decodes the same token
            return path_attention_cached(*given, turns, sums, "triton")

        return call

    calls |= {"PaTH": by_kernel(None), "PaTH-FoX": by_kernel(i.sums)}
    times = time_alternating({name: graphed(call) for name, call in calls.items()}, rounds)
    rows = [
        {"length": CACHED, "head_dim": head_dim, "name": name, "decode_us": 100 * time}
        | {"decode_ratio": time / times[BASELINE]}
        for name, time in times.items()
    ]
    for row, gated in ((rows[1], False), (rows[2], True)):
        row["error_out"] = decoded_error(head_dim, gated)
    return rows


@torch.no_grad()
def decoded_error(head_dim: int, gated: bool) -> float:
    """Relative error of the last of CACHED tokens of two heads, decoded one by one."""
    i, scale = make_inputs(1, CACHED, 2, head_dim), head_dim**-0.5
    keys, turns, sums = i.k.clone(), new_turns(1, CACHED, 2, head_dim, i.k), i.sums if gated else None
    for t in range(CACHED):
        one = slice(t, t + 1)
        out = path_attention_cached(i.q[:, one], i.w[:, one], i.beta[:, one], scale, keys, i.v, turns, sums, "triton")
    exact = Inputs(*(x.double() for x in i))
    keys = exact.k.clone()
    turns = prompted(exact, CACHED - 1, keys)
    last = exact.q[:, -1:], exact.w[:, -1], exact.beta[:, -1], scale, keys, exact.v, turns, sums
    return distance(out, decode_in_torch(*last))


def show(rows: list[dict]) -> None:
    for row in rows:
        if "decode_us" in row:
            error = f", error {row['error_out']:.1e}" if "error_out" in row else ""
            print(f"{row['name']}, D={row['head_dim']}, one token on {row['length']}:", end=" ")
            print(f"{row['decode_us']:.1f} microseconds ({row['decode_ratio']:.2f}){error}", flush=True)
            continue
        figures = (f"{row[f'{x}_ms']:9.3f} ms ({row[f'{x}_ratio']:.2f})" for x in ("forward", "training", "launched"))
        memory = f"{row['peak_mib']:6.0f} MiB ({row['peak_ratio']:.2f})"
        found = " ".join(f"{name[6:]} {value:.1e}" for name, value in row.items() if name.startswith("error_"))
        repeats = "" if row["repeatable"] else "not deterministic"
        print(f"{row['length']:6} {row['head_dim']:4} {row['name']:33}", *figures, memory, found, repeats, flush=True)


def measure_all(length: int, head_dim: int, chosen: list[str], rounds: int) -> list[dict]:
    """Measure decoding at CACHED tokens, and whole sequences at other lengths."""
    return decoding(head_dim, rounds) if length == CACHED else measure(length, head_dim, chosen, rounds)


def main() -> None:
    sweep(sweep_arguments(__doc__, CONTENDERS, [64, 128], Path("path.csv")), CONTENDERS, measure_all, show)


if __name__ == "__main__":
    main()
