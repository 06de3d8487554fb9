"""PaTH's cache: keys written once or twice and never rewritten, with what later tokens made of them kept beside.

A token rewrites every earlier key, k <- H k. All keys between two marks are rewritten alike, so their product is kept
instead, and a query is pulled back by it:

    score(t, s) = (q_t^T H_t ... H_a) S_i k_s,

with H_a the first pending reflection (at most WINDOW tokens are pending), k_s as the end of its own piece i saw it and
S_i the product of all reflections from there to the last whole window. Pieces are FRAME tokens long; the newest,
unfinished frame is held in pieces of WINDOW. S has 22 bits at least, so nothing drifts, however long one decodes: a
cached key is rounded when its window is whole, and once more when its frame is.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

WINDOW, FRAME = 64, 1024
PER = FRAME // WINDOW


@dataclass
class Turns:
    """Beside the keys of one cache.

    Attributes:
        high: `[B, Hkv, slots, D, D]`, S of every piece: of whole frames from slot 0 on, of the windows of the newest
            frame in the last PER slots. Beside 16-bit keys its upper half in float16, which is what decoding reads;
        lower: then, 2^11 times what it lacks; else None.
        product: `[B, Hkv, D, D]`, of the pending reflections, the newest on the left.
        window: `[B, Hkv, WINDOW, D]`, the pending keys as the newest token sees them.
        w: `[B, WINDOW, Hkv, D]`, beta: `[B, WINDOW, Hkv]`, of the pending tokens.
        spare: a second place for `product`; arrived: `[B, Hkv]` int32, 0. Both for the kernel (kernels/path/decode.py).
        held: tokens before the pending ones, whole windows; pending: how many those are.
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
        """Of the whole frames and of the newest one's windows, in the order of their keys."""
        frames, windows = divmod(self.held // WINDOW, PER)
        base = self.high.shape[2] - PER
        return range(frames), range(base, base + windows)

    def pieces(self) -> Tensor:
        """S in float32 at least."""
        return self.high if self.lower is None else self.high.float() + self.lower.float() / 2048

    def keep(self, pieces: Tensor) -> None:
        """Take what `pieces` has become."""
        if self.lower is not None:
            self.high.copy_(pieces)
            self.lower.copy_((pieces - self.high.float()) * 2048)


def new_turns(batch: int, capacity: int, kv_heads: int, head_dim: int, like: Tensor) -> Turns:
    """Of no token. `like` is a key; everything but S is float32, or float64 for a float64 one."""
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
    """One token more is pending: `k, w [B, Hkv, D]`, `beta [B, Hkv]`."""
    w, beta = w.to(turns.product.dtype), beta.to(turns.product.dtype)[..., None, None]
    # Not in place: a gradient may want what they were.
    turns.product = turns.product - beta * w.unsqueeze(-1) * (w.unsqueeze(-2) @ turns.product)
    turns.window = turns.window - beta * (turns.window @ w.unsqueeze(-1)) * w.unsqueeze(-2)
    turns.window[:, :, turns.pending] = k
    turns.w[:, turns.pending], turns.beta[:, turns.pending] = w, beta[..., 0, 0]
    turns.pending += 1


def add_windows(turns: Turns, keys: Tensor, ends: Tensor, products: Tensor) -> None:
    """Whole windows join those held; nothing is pending then.

    Args:
        keys: `[B, capacity, Hkv, D]`, written in place.
        ends: `[B, Hkv, n, WINDOW, D]`, keys as their window's end sees them; products: `[B, Hkv, n, D, D]`.
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
    """`[B, n WINDOW, Hkv, D]` as `[B, Hkv, n, WINDOW, D]`."""
    return x.unflatten(1, (-1, WINDOW)).movedim(3, 1)


def spread(turns: Turns, x: Tensor) -> Tensor:
    """`[B, Hkv, slots, ...]` of every piece as `[B, Hkv, n, ...]` of every window held."""
    frames, windows = turns.slots()
    return torch.cat([x[:, :, : frames.stop].repeat_interleave(PER, 2), x[:, :, windows.start : windows.stop]], 2)


def newest(turns: Turns, keys: Tensor) -> Tensor:
    """The keys held `[B, held, Hkv, D]` as the last whole window saw them, in float32 at least."""
    seen = by_window(keys[:, : turns.held]).to(turns.product.dtype) @ spread(turns, turns.pieces()).mT
    return seen.flatten(2, 3).transpose(1, 2)
