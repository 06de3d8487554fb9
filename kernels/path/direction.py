"""Triton: the directions w of PaTH from their projection u, in one forward and two backward kernels.

w = s / sqrt(|s|^2 + EPSILON) per key head, s = SiLU(sum_j taps_j u_{t-j}). The convolution is depthwise, causal and
does not cross documents. Only u is saved for the backward pass, which recomputes the rest.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launching import LAYOUTS, Launch
from ..operator import operator

EPSILON = tl.constexpr(1e-6)
ROWS, SPREAD = 32, 128  # tokens and channels per program
STEPS = 4  # times ROWS tokens per program in the backward kernel that sums gradients of the taps


@triton.jit
def convolved(U, TAPS, PLACES, b, t, channel, length, width, there, TAPS_N: tl.constexpr, PACKED: tl.constexpr):
    """The convolution at tokens t, `[rows, channels]`. `there` is the mask of existing tokens and channels."""
    if TAPS_N == 0:
        return tl.load(U + (b * length + t)[:, None] * width + channel[None, :], mask=there, other=0.0).to(tl.float32)
    out = tl.zeros([t.shape[0], channel.shape[0]], tl.float32)
    for back in tl.static_range(TAPS_N):
        tap = tl.load(TAPS + back * width + channel, mask=channel < width, other=0.0).to(tl.float32)
        out += before(U, PLACES, b, t, back, channel, length, width, there, PACKED) * tap[None, :]
    return out


@triton.jit
def before(U, PLACES, b, t, back: tl.constexpr, channel, length, width, there, PACKED: tl.constexpr):
    """u of the token `back` positions earlier, zero before the start of the document."""
    inside = there & (t >= back)[:, None]
    if PACKED:
        place = tl.load(PLACES + b * length + t, mask=t < length, other=0)
        inside = inside & (place >= back)[:, None]
    at = (b * length + t - back)[:, None] * width + channel[None, :]
    return tl.load(U + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def unit(x, SILU: tl.constexpr):
    """w, the factor 1 / sqrt(|s|^2 + EPSILON), and the derivative of the SiLU."""
    slope = tl.full(x.shape, 1.0, tl.float32)
    if SILU:
        gate = 1 / (1 + tl.exp(-x))
        slope = gate * (1 + x * (1 - gate))
        x *= gate
    factor = tl.rsqrt(tl.sum(x * x, 1) + EPSILON)[:, None]
    return x * factor, factor, slope


@triton.jit
def direct_kernel(
    U, TAPS, PLACES, OUT, length, width, kv_heads,
    D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr, TAPS_N: tl.constexpr, SILU: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(length, BT)
    head, block, b = (
        tl.program_id(0) % kv_heads,
        tl.program_id(0) // kv_heads % blocks,
        tl.program_id(0) // kv_heads // blocks,
    )
    b = b.to(tl.int64)
    t, c = block * BT + tl.arange(0, BT), tl.arange(0, BD)
    there = (t < length)[:, None] & (c < D)[None, :]
    w, _, _ = unit(convolved(U, TAPS, PLACES, b, t, head * D + c, length, width, there, TAPS_N, PACKED), SILU)
    tl.store(OUT + (b * length + t)[:, None] * width + (head * D + c)[None, :], w, mask=there)


@triton.jit
def direct_backward_kernel(
    U, TAPS, PLACES, DW, DX, DTAPS, length, width, kv_heads,
    D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr, TAPS_N: tl.constexpr, SILU: tl.constexpr,
    PACKED: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Gradient of the output of the convolution for STEPS * BT tokens, and their part of the gradient of the taps."""
    blocks = tl.cdiv(length, BT * STEPS)
    head, place = tl.program_id(0) % kv_heads, tl.program_id(0) // kv_heads
    block, b = place % blocks, (place // blocks).to(tl.int64)
    c = tl.arange(0, BD)
    channel, taps, shares = head * D + c, (), ()
    for back in tl.static_range(TAPS_N):  # Triton does not support star expressions
        tap = tl.load(TAPS + back * width + channel, mask=c < D, other=0.0).to(tl.float32)[None, :]
        taps, shares = taps + (tap,), shares + (tl.zeros([BT, BD], tl.float32),)  # noqa: RUF005
    for step in range(STEPS):
        t = (block * STEPS + step) * BT + tl.arange(0, BT)
        there = (t < length)[:, None] & (c < D)[None, :]
        at = (b * length + t)[:, None] * width + channel[None, :]
        dw = tl.load(DW + at, mask=there, other=0.0).to(tl.float32)
        x = tl.zeros([BT, BD], tl.float32)
        if TAPS_N == 0:
            x = tl.load(U + at, mask=there, other=0.0).to(tl.float32)
        for back in tl.static_range(TAPS_N):
            x += before(U, PLACES, b, t, back, channel, length, width, there, PACKED) * taps[back]
        w, factor, slope = unit(x, SILU)
        dx = factor * (dw - w * tl.sum(w * dw, 1)[:, None]) * slope
        tl.store(DX + at, dx, mask=there)
        old, shares = shares, ()
        for back in tl.static_range(TAPS_N):
            u = before(U, PLACES, b, t, back, channel, length, width, there, PACKED)
            shares = shares + (old[back] + dx * u,)  # noqa: RUF005
    for back in tl.static_range(TAPS_N):
        share = DTAPS + (place.to(tl.int64) * TAPS_N + back) * width + channel
        tl.store(share, tl.sum(shares[back], 0), mask=c < D)


@triton.jit
def spread_kernel(
    DX, TAPS, PLACES, DU, length, width,
    BW: tl.constexpr, BT: tl.constexpr, TAPS_N: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """dU of BT tokens from the outputs that depend on them: their own and those of the next TAPS_N - 1 tokens."""
    parts, blocks = tl.cdiv(width, BW), tl.cdiv(length, BT)
    part, place = tl.program_id(0) % parts, tl.program_id(0) // parts
    block, b = place % blocks, (place // blocks).to(tl.int64)
    t, channel = block * BT + tl.arange(0, BT), part * BW + tl.arange(0, BW)
    inside = (channel < width)[None, :]
    at = (b * length + t)[:, None] * width + channel[None, :]
    du = tl.zeros([BT, BW], tl.float32)
    for ahead in tl.static_range(TAPS_N):
        tap = tl.load(TAPS + ahead * width + channel, mask=channel < width, other=0.0).to(tl.float32)
        reads = t + ahead < length
        if PACKED:
            reads = reads & (tl.load(PLACES + b * length + t + ahead, mask=reads, other=0) >= ahead)
        dx = tl.load(DX + at + ahead * width, mask=reads[:, None] & inside, other=0.0)
        du += dx.to(tl.float32) * tap[None, :]
    tl.store(DU + at, du, mask=(t < length)[:, None] & inside)


@functools.lru_cache(LAYOUTS)
def unit_launch(shape: tuple[int, int, int], taps: int, packed: bool, kv_heads: int, silu: bool, back: bool) -> Launch:
    """The launch of `direct_kernel`, or of `direct_backward_kernel` if `back`, for `u [B, T, Hkv D]` of this shape."""
    batch, length, width = shape
    depth = width // kv_heads
    padded = triton.next_power_of_2(depth)
    settings = {"length": length, "width": width, "kv_heads": kv_heads, "D": depth, "BD": padded, "BT": ROWS}
    settings |= {"TAPS_N": taps, "SILU": silu, "PACKED": packed, "num_warps": max(padded // 16, 1)}
    if back:
        settings["STEPS"] = STEPS
    programs = batch * triton.cdiv(length, ROWS * STEPS if back else ROWS) * kv_heads
    return Launch(direct_backward_kernel if back else direct_kernel, ((programs,), settings))


@functools.lru_cache(LAYOUTS)
def spread_launch(shape: tuple[int, int, int], taps: int, packed: bool) -> Launch:
    """The launch of `spread_kernel`."""
    batch, length, width = shape
    settings = {"length": length, "width": width, "BW": SPREAD, "BT": ROWS, "TAPS_N": taps, "PACKED": packed}
    grid = (batch * triton.cdiv(length, ROWS) * triton.cdiv(width, SPREAD),)
    return Launch(spread_kernel, (grid, settings | {"num_warps": 4}))


@operator("bearings::path_directions")
def path_directions(u: Tensor, taps: Tensor | None, places: Tensor | None, kv_heads: int, silu: bool) -> Tensor:
    """Directions of PaTH from their projection, computed in float32.

    Args:
        u: projection, `[B, T, Hkv D]`.
        taps: weights of the convolution, `[n, Hkv D]`, that of the newest token first; None for no convolution.
        places: position of each token within its document, `[B, T]`; None for one document.
        kv_heads: number of key heads, Hkv.
        silu: whether to apply SiLU before normalisation.

    Returns:
        w, `[B, T, Hkv, D]` in the dtype of u.
    """
    u, taps, places = u.contiguous(), *(None if x is None else x.contiguous() for x in (taps, places))
    out = u.new_empty(*u.shape[:2], kv_heads, u.shape[2] // kv_heads)
    launch = unit_launch(u.shape, 0 if taps is None else len(taps), places is not None, kv_heads, silu, False)
    launch(U=u, TAPS=taps, PLACES=places, OUT=out)
    return out


@operator("bearings::path_directions_backward")
def path_directions_backward(
    u: Tensor, taps: Tensor | None, places: Tensor | None, kv_heads: int, silu: bool, dw: Tensor
) -> tuple[Tensor, Tensor]:
    """du, and dtaps in float32 (empty without taps)."""
    u, dw = u.contiguous(), dw.contiguous()
    taps, places = (None if x is None else x.contiguous() for x in (taps, places))
    given = u.shape, 0 if taps is None else len(taps), places is not None
    programs = u.shape[0] * triton.cdiv(u.shape[1], ROWS * STEPS)
    dx, shares = torch.empty_like(u), torch.empty(programs, given[1], u.shape[2], device=u.device)
    launch = unit_launch(*given, kv_heads, silu, True)
    launch(U=u, TAPS=taps, PLACES=places, DW=dw, DX=dx, DTAPS=shares)
    if taps is None:
        return dx, shares.sum(0)
    du = torch.empty_like(u)
    spread_launch(*given)(DX=dx, TAPS=taps, PLACES=places, DU=du)
    return du, shares.sum(0)  # summed in a fixed order: atomics would make results differ between runs


@path_directions.register_fake
def _(u, taps, places, kv_heads, silu):
    return u.new_empty(*u.shape[:2], kv_heads, u.shape[2] // kv_heads)


@path_directions_backward.register_fake
def _(u, taps, places, kv_heads, silu, dw):
    count = 0 if taps is None else len(taps)
    return torch.empty_like(u, memory_format=torch.contiguous_format), u.new_empty(
        count, u.shape[2], dtype=torch.float32
    )


def save_for_backward(ctx, inputs, output) -> None:
    u, taps, places, ctx.kv_heads, ctx.silu = inputs
    ctx.save_for_backward(u, taps, places)


def differentiate(ctx, dw: Tensor):
    u, taps, places = ctx.saved_tensors
    du, dtaps = path_directions_backward(u, taps, places, ctx.kv_heads, ctx.silu, dw)
    return du, None if taps is None else dtaps.to(taps.dtype), None, None, None


path_directions.register_autograd(differentiate, setup_context=save_for_backward)
