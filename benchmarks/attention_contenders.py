"""The operators that the benchmark of attention compares, and their inputs."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from ..kernels.attention.distance import distance_attention
from ..kernels.attention.fox import fox_attention
from ..kernels.attention.nope import nope_attention
from ..kernels.attention.pope import cartesian, magnitude, pope_attention, pope_key, pope_query
from ..kernels.attention.rope import phases, rope_attention
from ..kernels.documents import Documents
from .sweep import BASELINE

TOKENS = 16384  # tokens per batch with 16 heads; longer sequences have fewer heads
BASE = 10000.0
SHORT = 114  # T5 has one bias from distance 113 on
PIECES = 200, 700  # shortest and longest packed document, in tokens
WINDOW = 256


class Inputs(NamedTuple):
    """q, k, v `[B, T, H, D]` in bfloat16, delta `[H, D]` of PoPE, log-gates `[B, T, H]` of FoX and their sums.

    `table [H, T]` is a bias by distance, and `short [H, SHORT]` one whose last entry applies to all greater distances.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    delta: Tensor
    gates: Tensor
    sums: Tensor
    table: Tensor
    short: Tensor


def sdpa(q: Tensor, k: Tensor, v: Tensor, backend: SDPBackend, scale: float | None = None) -> Tensor:
    """PyTorch attention with one backend, `[B, T, H, D]`."""
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(*heads_first(q, k, v), is_causal=True, scale=scale).transpose(1, 2)


def heads_first(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Transpose `[B, T, H, D]` to `[B, H, T, D]`."""
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def table(length: int, count: int) -> Tensor:
    """Cosines and sines `[2, T, 1, count]` in float32, computed from float64 phases."""
    angle = phases(torch.arange(length, device="cuda"), count, BASE).unsqueeze(1)
    return torch.stack([angle.cos(), angle.sin()]).float()


@torch.compile(dynamic=False)
def compiled_rope(q: Tensor, k: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    def turn(x: Tensor) -> Tensor:
        (cos, sin), (first, second) = table, x.float().chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)

    return turn(q), turn(k)


@torch.compile(dynamic=False)
def compiled_pope(q: Tensor, k: Tensor, delta: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    (cos, sin), (turn_cos, turn_sin) = table, (delta.cos(), delta.sin())
    k_cos, k_sin = cos * turn_cos - sin * turn_sin, sin * turn_cos + cos * turn_sin
    return cartesian(magnitude(q), cos, sin).to(q.dtype), cartesian(magnitude(k), k_cos, k_sin).to(k.dtype)


def baseline(i: Inputs) -> Callable[[], Tensor]:
    ready = table(i.q.shape[1], i.q.shape[-1] // 2)
    return lambda: sdpa(*compiled_rope(*i[:2], ready), i.v, SDPBackend.CUDNN_ATTENTION)


def rope_by_fa4(i: Inputs) -> Callable[[], Tensor]:
    from flash_attn.cute import flash_attn_func  # pyright: ignore[reportMissingImports]

    ready = table(i.q.shape[1], i.q.shape[-1] // 2)
    return lambda: flash_attn_func(*compiled_rope(*i[:2], ready), i.v, causal=True)[0]


def pope_by_cudnn(i: Inputs) -> Callable[[], Tensor]:
    ready, scale = table(i.q.shape[1], i.q.shape[-1]), i.q.shape[-1] ** -0.5
    return lambda: sdpa(*compiled_pope(*i[:2], i.delta, ready), i.v, SDPBackend.CUDNN_ATTENTION, scale)


compiled_flex = torch.compile(flex_attention, dynamic=False)


def by_flex(i: Inputs) -> Callable[[], Tensor]:
    length = i.q.shape[1]
    mask = create_block_mask(lambda b, h, t, s: t >= s, None, None, length, length, device=i.q.device)
    return lambda: compiled_flex(*heads_first(*i[:3]), block_mask=mask).transpose(1, 2)


def flex_with_bias(i: Inputs) -> Callable[[], Tensor]:
    length = i.q.shape[1]
    mask = create_block_mask(lambda b, h, t, s: t >= s, None, None, length, length, device=i.q.device)

    def add_bias(score: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return score + i.table[h, (t - s).clamp(min=0)]

    return lambda: compiled_flex(*heads_first(*i[:3]), score_mod=add_bias, block_mask=mask).transpose(1, 2)


def ready_pope(i: Inputs) -> Callable[[], Tensor]:
    """cuDNN attention on precomputed q and k with 2D channels: a lower bound for methods that encode first."""
    positions = torch.arange(i.q.shape[1], device=i.q.device)
    q, k = pope_query(i.q.detach(), positions, BASE), pope_key(i.k.detach(), positions, i.delta.detach(), BASE)
    q, k, scale = q.requires_grad_(), k.requires_grad_(), i.q.shape[-1] ** -0.5

    def call() -> Tensor:
        return sdpa(q, k, i.v, SDPBackend.CUDNN_ATTENTION, scale)

    call.leaves = (q, k)  # in addition to the inputs
    return call


def pope_pytorch(i: Inputs) -> Callable[[], Tensor]:
    from PoPE_pytorch.triton_pope_flash_attn import flash_attn  # pyright: ignore[reportMissingImports]

    positions = torch.arange(i.q.shape[1], device=i.q.device)
    theta = BASE ** (-torch.arange(i.q.shape[-1], device=i.q.device) / i.q.shape[-1])
    freqs, scale = positions[:, None] * theta, i.q.shape[-1] ** -0.5
    return lambda: flash_attn(i.q, i.k, i.v, freqs=freqs, pope_bias=i.delta, causal=True, softmax_scale=scale)


def fla_fox(i: Inputs) -> Callable[[], Tensor]:
    from fla.ops.forgetting_attn import parallel_forgetting_attn  # pyright: ignore[reportMissingImports]

    gates = i.gates.detach().float().requires_grad_()
    return lambda: parallel_forgetting_attn(i.q, i.k, i.v, gates)


def ours(operator: Callable[..., Tensor], implementation: str, *names: str) -> Callable[[Inputs], Callable[[], Tensor]]:
    """One of this project's operators on q, k, v and the named inputs."""
    return lambda i: lambda: operator(*i[:3], *(getattr(i, n) for n in names), implementation=implementation)


def packed(batch: int, length: int) -> Documents:
    """Documents of random lengths that fill `batch` rows of `length` tokens, cut where a row ends."""
    generator, longest = torch.Generator().manual_seed(0), batch * length
    sizes = torch.randint(PIECES[0], PIECES[1] + 1, (longest // PIECES[0] + 1,), generator=generator)
    ids = torch.arange(len(sizes)).repeat_interleave(sizes)[:longest].view(batch, length)
    return Documents.of(ids.cuda(), int(ids[-1, -1]) + batch)


def windowed(batch: int, length: int) -> Documents:
    return Documents.single(batch, length, torch.device("cuda")).within(WINDOW)


def limited(
    limits: Callable[[int, int], Documents], operator: Callable[..., Tensor], implementation: str, *names: str
) -> Callable[[Inputs], Callable[[], Tensor]]:
    """`ours` with documents or a window."""

    def contender(i: Inputs) -> Callable[[], Tensor]:
        documents = limits(*i.q.shape[:2])
        call = ours(partial(operator, documents=documents), implementation, *names)(i)
        call.documents = documents
        return call

    return contender


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Deterministic algorithms, as with trainer.deterministic=true."""
    # Filling memory helps to find bugs, but takes time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def deterministic(make: Callable[[Inputs], Callable[[], Tensor]]) -> Callable[[Inputs], Callable[[], Tensor]]:
    """The contender with deterministic algorithms in both passes."""

    def contender(i: Inputs) -> Callable[[], Tensor]:
        call = deterministic_algorithms()(make(i))
        call.mode = deterministic_algorithms  # for the backward pass
        return call

    return contender


CONTENDERS: dict[str, tuple[str, Callable[[Inputs], Callable[[], Tensor]]]] = {
    BASELINE: ("rope", baseline),
    "RoPE, cudnn": ("rope", ours(rope_attention, "cudnn")),
    "RoPE, compiled + FlashAttention-4": ("rope", rope_by_fa4),
    "RoPE, fa4": ("rope", ours(rope_attention, "fa4")),
    "RoPE, fa4, deterministic": ("rope", deterministic(ours(rope_attention, "fa4"))),
    "RoPE, auto, deterministic": ("rope", deterministic(ours(rope_attention, "auto"))),
    "RoPE, triton": ("rope", ours(rope_attention, "triton")),
    "RoPE, packed, fa4": ("rope", limited(packed, rope_attention, "fa4")),
    "RoPE, packed, triton": ("rope", limited(packed, rope_attention, "triton")),
    "RoPE, window, fa4": ("rope", limited(windowed, rope_attention, "fa4")),
    "RoPE, window, triton": ("rope", limited(windowed, rope_attention, "triton")),
    "NoPE, SDPA cuDNN": ("nope", lambda i: lambda: sdpa(*i[:3], SDPBackend.CUDNN_ATTENTION)),
    "NoPE, SDPA FlashAttention-2": ("nope", lambda i: lambda: sdpa(*i[:3], SDPBackend.FLASH_ATTENTION)),
    "NoPE, flex_attention": ("nope", by_flex),
    "NoPE, cudnn": ("nope", ours(nope_attention, "cudnn")),
    "NoPE, fa4": ("nope", ours(nope_attention, "fa4")),
    "NoPE, triton": ("nope", ours(nope_attention, "triton")),
    "PoPE floor, cuDNN on ready 2D": ("pope", ready_pope),
    "PoPE, compiled + cuDNN": ("pope", pope_by_cudnn),
    "PoPE, cudnn": ("pope", ours(pope_attention, "cudnn", "delta")),
    "PoPE, auto": ("pope", ours(pope_attention, "auto", "delta")),
    "PoPE, auto, deterministic": ("pope", deterministic(ours(pope_attention, "auto", "delta"))),
    "PoPE, fa4": ("pope", ours(pope_attention, "fa4", "delta")),
    "PoPE, fa4, deterministic": ("pope", deterministic(ours(pope_attention, "fa4", "delta"))),
    "PoPE, triton": ("pope", ours(pope_attention, "triton", "delta")),
    "PoPE, packed, fa4": ("pope", limited(packed, pope_attention, "fa4", "delta")),
    "PoPE, packed, triton": ("pope", limited(packed, pope_attention, "triton", "delta")),
    "PoPE, window, fa4": ("pope", limited(windowed, pope_attention, "fa4", "delta")),
    "PoPE, window, triton": ("pope", limited(windowed, pope_attention, "triton", "delta")),
    "PoPE-pytorch": ("pope", pope_pytorch),
    "FoX, triton": ("fox", ours(fox_attention, "triton", "sums")),
    "FoX, flash-linear-attention": ("fox", fla_fox),
    "bias by distance, triton": ("table", ours(distance_attention, "triton", "table")),
    "bias by distance, fixed table": ("table", lambda i: ours(distance_attention, "triton", "table")(without_grad(i))),
    "bias by distance, short table": ("short", ours(distance_attention, "triton", "short")),
    "bias by distance, flex_attention": ("table", flex_with_bias),
}
# One new token over a cache of T keys. The baseline gets a rotated query and rotated keys. This project's caches hold
# raw keys, or magnitudes for PoPE.
DECODERS: dict[str, Callable[[Inputs], Callable[[], Tensor]]] = {
    BASELINE: lambda i: lambda: sdpa_decode(i),
    "RoPE, triton": ours(rope_attention, "triton"),
    "NoPE, triton": ours(nope_attention, "triton"),
    "PoPE, triton": lambda i: decode_pope(i),
    "FoX, triton": ours(fox_attention, "triton", "sums"),
    "bias by distance, triton": ours(distance_attention, "triton", "table"),
    "bias by distance, short table": ours(distance_attention, "triton", "short"),
}


def without_grad(i: Inputs) -> Inputs:
    """The inputs with a table that needs no gradient, such as Sandwich's."""
    return i._replace(table=i.table.detach())


def sdpa_decode(i: Inputs) -> Tensor:
    """PyTorch attention with its default backend."""
    return F.scaled_dot_product_attention(*heads_first(*i[:3])).transpose(1, 2)


def decode_pope(i: Inputs) -> Callable[[], Tensor]:
    magnitudes = magnitude(i.k).to(i.k.dtype)
    return lambda: pope_attention(i.q, magnitudes, i.v, i.delta, implementation="triton", magnitudes=True)


def make_inputs(length: int, head_dim: int, new: int | None = None) -> Inputs:
    """Random inputs of TOKENS tokens with 16 heads; if `new` is given, one sequence with that many queries."""
    batch, heads = (max(TOKENS // length, 1), 16 if length <= TOKENS else 4) if new is None else (1, 16)
    q, k, v = (
        torch.randn(batch, n, heads, head_dim, device="cuda", dtype=torch.bfloat16)
        for n in (new or length, length, length)
    )
    gates = F.logsigmoid(torch.randn(batch, length, heads, device="cuda", dtype=torch.float64) + 4)
    delta = -2 * math.pi * torch.rand(heads, head_dim, device="cuda")
    tables = [torch.randn(heads, n, device="cuda") for n in (length, SHORT)]
    if new:
        return Inputs(q, k, v, delta, gates, gates.cumsum(1).mT.contiguous().mT, *tables)  # as in FoX's cache
    return Inputs(*(x.requires_grad_() for x in (q, k, v, delta, gates, gates.cumsum(1), *tables)))
