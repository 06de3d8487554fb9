"""The PaTH cache: keys are rewritten at most twice; the products of later reflections are stored separately.

In PaTH each token transforms every earlier key, k <- H k. All keys of a piece of the sequence undergo the same later
transforms, so the cache stores one product per piece and applies it to the query:

    score(t, s) = (q_t^T H_t ... H_a) S_i k_s

H_a is the first pending reflection (at most WINDOW tokens are pending). k_s is stored as transformed to the end of its
piece i, and S_i is the product of all reflections from there to the end of the last complete window. Pieces are FRAME
tokens long, except that the newest, incomplete frame consists of pieces of WINDOW tokens. S has at least 22 bits, so
errors do not grow with the number of decoded tokens. A cached key is rounded once when its window is complete and once
when its frame is complete.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

WINDOW, FRAME = 64, 1024
PER = FRAME // WINDOW


@dataclass
class Turns:
    """The reflections of one cache, next to its keys and values.

    Attributes:
        high: S of every piece, `[B, Hkv, slots, D, D]`. Complete frames start at slot 0; the windows of the newest
            frame use the last PER slots. With 16-bit keys this is S rounded to float16, which decoding reads.
        lower: with 16-bit keys, 2^11 times the rounding error of `high`; otherwise None.
        product: product of the pending reflections, the newest on the left, `[B, Hkv, D, D]`.
        window: pending keys, transformed to the newest token, `[B, Hkv, WINDOW, D]`.
        w: directions of the pending tokens, `[B, WINDOW, Hkv, D]`.
        beta: strengths of the pending tokens, `[B, WINDOW, Hkv]`.
        spare: second buffer for `product`, for the kernel (kernels/path/decode.py).
        arrived: counters of the same kernel, `[B, Hkv]` int32, 0 between calls.
        held: number of tokens in complete windows.
        pending: number of tokens after them.
    """

    high: Tensor
    lower: Tensor | None
    product: Tensor
    window: Tensor
    w: Tensor
    beta: Tensor
    spare: Tensor
    arrived: Tensor
    held: int = 0
    pending: int = 0

    def slots(self) -> tuple[range, range]:
        """Slots in use: those of complete frames and those of windows of the newest frame, in the order of keys."""
        frames, windows = divmod(self.held // WINDOW, PER)
        base = self.high.shape[2] - PER
        return range(frames), range(base, base + windows)

    def pieces(self) -> Tensor:
        """S in float32 or wider."""
        return self.high if self.lower is None else self.high.float() + self.lower.float() / 2048

    def keep(self, pieces: Tensor) -> None:
        """Store new values of S, in the shape of `pieces()`."""
        if self.lower is not None:
            self.high.copy_(pieces)
            self.lower.copy_((pieces - self.high.float()) * 2048)


def new_turns(batch: int, capacity: int, kv_heads: int, head_dim: int, like: Tensor) -> Turns:
    """State of an empty cache. `like` is a key tensor; all fields except S are float32, or float64 for float64 keys."""
    wide = torch.promote_types(like.dtype, torch.float32)

    def zeros(*shape: int, dtype: torch.dtype = wide) -> Tensor:
        return like.new_zeros(shape, dtype=dtype)

    shape = (batch, kv_heads, capacity // FRAME + PER, head_dim, head_dim)
    product = torch.eye(head_dim, dtype=wide, device=like.device).repeat(batch, kv_heads, 1, 1)
    halves = like.dtype.itemsize == 2
    return Turns(
        zeros(*shape, dtype=torch.float16 if halves else wide),
        zeros(*shape, dtype=torch.float16) if halves else None,
        product,
        window=zeros(batch, kv_heads, WINDOW, head_dim),
        w=zeros(batch, WINDOW, kv_heads, head_dim),
        beta=zeros(batch, WINDOW, kv_heads),
        spare=torch.empty_like(product),
        arrived=zeros(batch, kv_heads, dtype=torch.int32),
    )


def add_token(turns: Turns, k: Tensor, w: Tensor, beta: Tensor) -> None:
    """Add one pending token: `k, w [B, Hkv, D]`, `beta [B, Hkv]`."""
    w, beta = w.to(turns.product.dtype), beta.to(turns.product.dtype)[..., None, None]
    # Not in place, because a backward pass may need the old values.
    turns.product = turns.product - beta * w.unsqueeze(-1) * (w.unsqueeze(-2) @ turns.product)
    turns.window = turns.window - beta * (turns.window @ w.unsqueeze(-1)) * w.unsqueeze(-2)
    turns.window[:, :, turns.pending] = k
    turns.w[:, turns.pending], turns.beta[:, turns.pending] = w, beta[..., 0, 0]
    turns.pending += 1


def add_windows(turns: Turns, keys: Tensor, ends: Tensor, products: Tensor) -> None:
    """Add n complete windows. Afterwards no token is pending.

    Args:
        turns: the state, updated in place.
        keys: key cache, `[B, capacity, Hkv, D]`, updated in place.
        ends: keys transformed to the end of their window, `[B, Hkv, n, WINDOW, D]`.
        products: products of the reflections of each window, `[B, Hkv, n, D, D]`.
    """
    pieces, start = turns.pieces(), 0
    ends, products = ends.to(pieces.dtype), products.to(pieces.dtype)
    while start < ends.shape[2]:
        frames, windows = turns.slots()
        count = min(ends.shape[2] - start, PER - len(windows))
        new = slice(start, start + count)
        after, first = torch.eye(ends.shape[-1], dtype=pieces.dtype, device=pieces.device), windows.stop
        for i in reversed(range(count)):
            pieces[:, :, first + i] = after
            after = after @ products[:, :, start + i]
        for old in (frames, windows):
            pieces[:, :, old.start : old.stop] = after.unsqueeze(2) @ pieces[:, :, old.start : old.stop]
        at, fresh = turns.held, ends[:, :, new]
        if len(windows) + count == PER:
            at = frames.stop * FRAME
            fresh = torch.cat([by_window(keys[:, at : turns.held]).to(pieces.dtype), fresh], 2)
            fresh = fresh @ pieces[:, :, windows.start : windows.start + PER].mT
            pieces[:, :, frames.stop] = torch.eye(ends.shape[-1], dtype=pieces.dtype, device=pieces.device)
        turns.held, start = turns.held + count * WINDOW, start + count
        keys[:, at : turns.held] = fresh.flatten(2, 3).transpose(1, 2)
    turns.pending = 0
    turns.product.copy_(torch.eye(ends.shape[-1], dtype=pieces.dtype, device=pieces.device))
    turns.keep(pieces)


def by_window(x: Tensor) -> Tensor:
    """Reshape `[B, n WINDOW, Hkv, D]` to `[B, Hkv, n, WINDOW, D]`."""
    return x.unflatten(1, (-1, WINDOW)).movedim(3, 1)


def spread(turns: Turns, x: Tensor) -> Tensor:
    """Expand values per piece, `[B, Hkv, slots, ...]`, to values per complete window, `[B, Hkv, n, ...]`."""
    frames, windows = turns.slots()
    return torch.cat([x[:, :, : frames.stop].repeat_interleave(PER, 2), x[:, :, windows.start : windows.stop]], 2)


def newest(turns: Turns, keys: Tensor) -> Tensor:
    """Keys of complete windows, transformed to the end of the last one, `[B, held, Hkv, D]` in float32 or wider."""
    seen = by_window(keys[:, : turns.held]).to(turns.product.dtype) @ spread(turns, turns.pieces()).mT
    return seen.flatten(2, 3).transpose(1, 2)
