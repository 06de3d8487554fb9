"""Triton: applies RoPE or PoPE to q and k in one pass, and computes their gradients in another.

Encoded heads are `[first, second]` halves of COUNT channels each, with one phase per channel:

    rotary (RoPE):  x has 2 COUNT channels;  [x1 cos - x2 sin, x2 cos + x1 sin]
    polar (PoPE):   x has COUNT channels;    [mu cos, mu sin], mu = softplus(x); delta is added to the phase of keys
    magnitude:      like polar, but keys already hold mu
"""

import functools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..angles import cos_sin, softplus, softplus_and_slope, turns_per_token
from ..common import strides
from ..launching import LAYOUTS, Launch
from ..layout import Layout, layout_of

# Per program: elements per head, heads that share the phases, heads in flight, warps; for up to 64 phases and for more.
# Measured on an H200 with PoPE.
FORWARD = {64: (1024, 8, 3, 4), 128: (2048, 32, 3, 8)}
BACKWARD = {64: (512, 16, 4, 2), 128: (1024, 16, 4, 2)}


@triton.jit
def turn(X, OUT, at, out_at, kept, cos, sin, c, COUNT: tl.constexpr, POLAR: tl.constexpr, SOFT: tl.constexpr):
    """Encode one head of a block of tokens with rows `at` and `out_at [BT, 1]` and channels `c`."""
    if POLAR:
        mu = tl.load(X + at + c, mask=kept, other=0.0).to(tl.float32)
        if SOFT:
            mu = softplus(mu, OUT.dtype.element_ty == tl.bfloat16)
        first, second = mu * cos, mu * sin
    else:
        x1 = tl.load(X + at + c, mask=kept, other=0.0).to(tl.float32)
        x2 = tl.load(X + at + c + COUNT, mask=kept, other=0.0).to(tl.float32)
        first, second = x1 * cos - x2 * sin, x2 * cos + x1 * sin
    tl.store(OUT + out_at + c, first.to(OUT.dtype.element_ty), mask=kept)
    tl.store(OUT + out_at + c + COUNT, second.to(OUT.dtype.element_ty), mask=kept)


@triton.jit
def turn_back(
    G, X, DX, at, g_at, dx_at, kept, cos, sin, c, COUNT: tl.constexpr, POLAR: tl.constexpr, SOFT: tl.constexpr
):  # fmt: skip
    """Store the gradient of the input of `turn` in DX. Returns the gradient of the phase, which only PoPE uses."""
    g1 = tl.load(G + g_at + c, mask=kept, other=0.0).to(tl.float32)
    g2 = tl.load(G + g_at + c + COUNT, mask=kept, other=0.0).to(tl.float32)
    first, second = g1 * cos + g2 * sin, g2 * cos - g1 * sin
    if POLAR:
        mu = tl.load(X + at + c, mask=kept, other=0.0).to(tl.float32)
        if SOFT:
            mu, slope = softplus_and_slope(mu, DX.dtype.element_ty == tl.bfloat16)
            first *= slope
        tl.store(DX + dx_at + c, first.to(DX.dtype.element_ty), mask=kept)
        second *= mu
    else:
        tl.store(DX + dx_at + c, first.to(DX.dtype.element_ty), mask=kept)
        tl.store(DX + dx_at + c + COUNT, second.to(DX.dtype.element_ty), mask=kept)
    return second


@triton.jit
def add_delta(cos, sin, DELTA, h, KV, c, COUNT: tl.constexpr):
    """The phases of key head `h`. The angle addition formulas reuse the cosines of the tokens for all heads."""
    turn_cos = tl.load(DELTA + h * COUNT + c, mask=c < COUNT, other=0.0)
    turn_sin = tl.load(DELTA + (KV + h) * COUNT + c, mask=c < COUNT, other=0.0)
    return cos * turn_cos - sin * turn_sin, sin * turn_cos + cos * turn_sin


@triton.jit
def program_tokens(TURNS, S, COUNT: tl.constexpr, BC: tl.constexpr, BT: tl.constexpr):
    """Sequence, positions `[BT, 1]`, channels `[1, BC]` and token phases of a program."""
    blocks = tl.cdiv(S, BT)
    b = (tl.program_id(0) // blocks).to(tl.int64)
    s = (tl.program_id(0) % blocks * BT + tl.arange(0, BT)).to(tl.int64)[:, None]
    c = tl.arange(0, BC)[None, :]
    cos, sin = cos_sin(s * tl.load(TURNS + c, mask=c < COUNT, other=0))
    return b, s, c, cos, sin


@triton.jit
def encode_kernel(
    Q, K, DELTA, TURNS, Q_OUT, K_OUT, q_b, q_t, q_h, k_b, k_t, k_h, T, S, H, KV,
    COUNT: tl.constexpr, BC: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr, POLAR: tl.constexpr,
    SOFT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    b, s, c, cos, sin = program_tokens(TURNS, S, COUNT, BC, BT)
    t = s - (S - T)
    group = tl.program_id(1)
    if group * BH < H:
        kept = (t >= 0) & (s < S) & (c < COUNT)
        for head in tl.range(group * BH, min(group * BH + BH, H), num_stages=STAGES):
            h = tl.cast(head, tl.int64)
            out_at = ((b * T + t) * H + h) * (2 * COUNT)
            turn(Q, Q_OUT, b * q_b + t * q_t + h * q_h, out_at, kept, cos, sin, c, COUNT, POLAR, True)
    else:
        first, kept = (group - tl.cdiv(H, BH)) * BH, (s < S) & (c < COUNT)
        for head in tl.range(first, min(first + BH, KV), num_stages=STAGES):
            h = tl.cast(head, tl.int64)
            at, out_at = b * k_b + s * k_t + h * k_h, ((b * S + s) * KV + h) * (2 * COUNT)
            if POLAR:
                k_cos, k_sin = add_delta(cos, sin, DELTA, h, KV, c, COUNT)
                turn(K, K_OUT, at, out_at, kept, k_cos, k_sin, c, COUNT, POLAR, SOFT)
            else:
                turn(K, K_OUT, at, out_at, kept, cos, sin, c, COUNT, POLAR, SOFT)


@triton.jit
def encode_backward_kernel(
    Q, K, DELTA, TURNS, Q_GRAD, K_GRAD, DQ, DK, DDELTA, q_b, q_t, q_h, k_b, k_t, k_h, T, S, H, KV,
    dq_b, dq_t, dk_b, dk_t,
    COUNT: tl.constexpr, BC: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr, POLAR: tl.constexpr,
    SOFT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    b, s, c, cos, sin = program_tokens(TURNS, S, COUNT, BC, BT)
    t = s - (S - T)
    width = COUNT if POLAR else 2 * COUNT
    group = tl.program_id(1)
    if group * BH < H:
        kept = (t >= 0) & (s < S) & (c < COUNT)
        for head in tl.range(group * BH, min(group * BH + BH, H), num_stages=STAGES):
            h = tl.cast(head, tl.int64)
            at, wide = b * q_b + t * q_t + h * q_h, ((b * T + t) * H + h) * (2 * COUNT)
            dq_at = b * dq_b + t * dq_t + h * width
            turn_back(Q_GRAD, Q, DQ, at, wide, dq_at, kept, cos, sin, c, COUNT, POLAR, True)
    else:
        first, kept = (group - tl.cdiv(H, BH)) * BH, (s < S) & (c < COUNT)
        for head in tl.range(first, min(first + BH, KV), num_stages=STAGES):
            h = tl.cast(head, tl.int64)
            at, wide = b * k_b + s * k_t + h * k_h, ((b * S + s) * KV + h) * (2 * COUNT)
            dk_at = b * dk_b + s * dk_t + h * width
            if POLAR:
                k_cos, k_sin = add_delta(cos, sin, DELTA, h, KV, c, COUNT)
                phase = turn_back(K_GRAD, K, DK, at, wide, dk_at, kept, k_cos, k_sin, c, COUNT, POLAR, SOFT)
                # One row per program, summed later in a fixed order: atomics would make results differ between runs.
                total = tl.sum(tl.where(kept, phase, 0.0), 0)[None, :]
                program = tl.program_id(0).to(tl.int64)
                tl.store(DDELTA + (program * KV + h) * COUNT + c, total, mask=c < COUNT)
            else:
                turn_back(K_GRAD, K, DK, at, wide, dk_at, kept, cos, sin, c, COUNT, POLAR, SOFT)


def unit_circle(delta: Tensor) -> Tensor:
    """Cosine and sine of `delta [Hkv, D]`, `[2, Hkv, D]`."""
    pair = delta.new_empty(2, *delta.shape)
    cos, sin = pair.unbind(0)
    torch.cos(delta, out=cos)
    torch.sin(delta, out=sin)
    return pair


@functools.lru_cache(LAYOUTS)
def prepared(form: str, q: Layout, k: Layout, *gradients: Layout) -> Launch:
    """The launch of `encode_kernel`, or of `encode_backward_kernel` if `gradients` are the layouts of dq and dk."""
    kernel, tiles = (encode_backward_kernel, BACKWARD) if gradients else (encode_kernel, FORWARD)
    polar = form != "rotary"
    (batch, length, heads, width), (keys, kv_heads) = q.shape, k.shape[1:3]
    count = width if polar else width // 2
    padded = triton.next_power_of_2(count)
    elements, shared, stages, warps = tiles[max(padded, 64)]
    tokens = max(elements // padded, 4)
    grid = batch * triton.cdiv(keys, tokens), triton.cdiv(heads, shared) + triton.cdiv(kv_heads, shared)
    steps = strides(q=q, k=k)
    for name, x in zip(("dq", "dk"), gradients, strict=False):
        steps |= {f"{name}_b": x.strides[0], f"{name}_t": x.strides[1]}
    sizes = {"T": length, "S": keys, "H": heads, "KV": kv_heads, "COUNT": count, "BC": padded, "BT": tokens}
    flags = {"BH": shared, "POLAR": polar, "SOFT": form == "polar", "STAGES": stages, "num_warps": warps}
    return Launch(kernel, (grid, steps | sizes | flags))


def encode(
    q: Tensor, k: Tensor, circle: Tensor | None, frequencies: Sequence[float], form: str
) -> tuple[Tensor, Tensor]:
    """Encode `q [B, T, H, D]`, at the last T of S positions, and `k [B, S, Hkv, D]` for the dot product.

    For the polar forms `circle` is `unit_circle(delta)` and results have 2D channels. For the rotary form it is None
    and results have D channels.
    """
    width = q.shape[3] if form == "rotary" else 2 * q.shape[3]
    turned_q, turned_k = q.new_empty(*q.shape[:3], width), k.new_empty(*k.shape[:3], width)
    prepared(form, layout_of(q), layout_of(k))(
        Q=q, K=k, DELTA=circle, TURNS=turns_per_token(tuple(frequencies), q.device), Q_OUT=turned_q, K_OUT=turned_k
    )
    return turned_q, turned_k


def encode_backward(
    q: Tensor,
    k: Tensor,
    circle: Tensor | None,
    frequencies: Sequence[float],
    form: str,
    q_grad: Tensor,
    k_grad: Tensor,
    dq: Tensor,
    dk: Tensor,
) -> Tensor | None:
    """Fill `dq` and `dk` from contiguous gradients of the results of `encode`. Returns the gradient of delta.

    In `dq` and `dk` the heads of each token are contiguous; tokens may have any stride.
    """
    launch = prepared(form, *map(layout_of, (q, k, dq, dk)))
    partial = None if circle is None else circle.new_empty(launch.choices[0][0][0], *circle.shape[1:])
    launch(
        Q=q, K=k, DELTA=circle, TURNS=turns_per_token(tuple(frequencies), q.device), Q_GRAD=q_grad, K_GRAD=k_grad,
        DQ=dq, DK=dk, DDELTA=partial,
    )  # fmt: skip
    return None if partial is None else partial.sum(0)
