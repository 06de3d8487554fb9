"""The two passes of FlashAttention-4 (package flash-attn-4), for the operators in kernels/attention/fused.py.

The package's public function is an autograd function. An operator that PyTorch can compile needs its passes separately;
they are internal, so kernels/choice.py accepts one version of the package.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import Lock
from typing import Any

import torch
from torch import Tensor

# Tile sizes that are faster than the package's own if scores have more channels than values, as in PoPE, by channels of
# scores and of values: queries and keys per tile of the forward pass, and arguments of the package's `BwdConfig`. See
# benchmarks/results/attention_log.md.
FORWARD_TILES = {(128, 64): (192, 128), (256, 128): (128, 96)}
BACKWARD_TILES: dict[tuple[int, int], dict[str, Any]] = {
    (128, 64): {
        **{"m_block_size": 96, "n_block_size": 128, "num_stages_Q": 2, "num_stages_dO": 2, "num_stages_PdS": 2},
        **{"SdP_swapAB": True, "dKV_swapAB": False, "dQ_swapAB": True},
        **{"AtomLayoutMSdP": 1, "AtomLayoutNdKV": 2, "AtomLayoutMdQ": 1},
    },
    (256, 128): {
        **{"m_block_size": 64, "n_block_size": 80, "num_stages_Q": 2, "num_stages_dO": 1, "num_stages_PdS": 1},
        **{"SdP_swapAB": False, "dKV_swapAB": True, "dQ_swapAB": False},
        **{"AtomLayoutMSdP": 1, "AtomLayoutNdKV": 1, "AtomLayoutMdQ": 1},
    },
}

EXCHANGING = Lock()  # PyTorch runs the backward pass of each GPU in a separate thread


def fa4_forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float, cu_seqlens: Tensor | None = None, window: int | None = None
) -> tuple[Tensor, Tensor]:
    """Causal attention of `q [B, T, H, W]` over `k [B, S, Hkv, W]` and `v [B, S, Hkv, D]`, in float16 or bfloat16.

    The queries are at the last T of S positions; with `cu_seqlens`, S = T.

    Compiles for several seconds when it is first called with new head dimensions, with documents or with a window.

    Args:
        cu_seqlens, window: see `Documents`. Default: None, each row is one document.

    Returns:
        The output `[B, T, H, D]`, and the natural log-sum-exp in float32: `[B, H, T]`, with `cu_seqlens` `[H, B * T]`.
    """
    from flash_attn.cute.interface import _flash_attn_fwd  # pyright: ignore[reportMissingImports]  # slow import

    shape, limits = q.shape[:2], _limits(q.shape[1], cu_seqlens, window)
    if cu_seqlens is not None:
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    elif q.shape[1] == k.shape[1] and (tiles := FORWARD_TILES.get((q.shape[-1], v.shape[-1]))):
        limits = {"tile_mn": tiles}
    out, lse, *_ = _flash_attn_fwd(q, k, v, softmax_scale=scale, causal=True, return_lse=True, **limits)
    return out.view(*shape, *out.shape[-2:]), lse


def fa4_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    cu_seqlens: Tensor | None = None,
    window: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v from `grad [B, T, H, D]` and the results of `fa4_forward`.

    Deterministic, and slower, with `torch.use_deterministic_algorithms`.
    """
    interface = import_module("flash_attn.cute.interface")  # slow import

    heads, shared = k.shape[2], q.shape[2] // k.shape[2]
    split = shared > 1 and k.shape[-1] != v.shape[-1]  # the package has no grouped heads for this case
    if split:
        k, v = (x.repeat_interleave(shared, 2) for x in (k, v))
    shapes, limits = [x.shape[:2] for x in (q, k, v)], _limits(q.shape[1], cu_seqlens, window)
    if cu_seqlens is not None:
        q, k, v, out, grad = (x.flatten(0, 1) for x in (q, k, v, out, grad))
    deterministic = torch.are_deterministic_algorithms_enabled()
    tested = not deterministic and not limits and q.shape[1] == k.shape[1]
    tiles = BACKWARD_TILES.get((q.shape[-1], v.shape[-1])) if tested else None
    with _tiles(interface, tiles):
        found = interface._flash_attn_bwd(
            q, k, v, out, grad, lse, scale, causal=True, deterministic=deterministic, **limits
        )
    dq, dk, dv = (x.view(*shape, *x.shape[-2:]) for x, shape in zip(found, shapes, strict=True))
    if split:
        dk, dv = (x.unflatten(2, (heads, shared)).sum(3, dtype=torch.float32).to(x.dtype) for x in (dk, dv))
    return dq, dk, dv


@contextmanager
def _tiles(interface: Any, tiles: dict[str, Any] | None) -> Iterator[None]:
    """Make the package use these tile sizes in its backward pass; on Hopper it has no argument for them."""
    with EXCHANGING:
        chosen = interface._tile_size_bwd_sm90
        if tiles is not None:
            interface._tile_size_bwd_sm90 = lambda *_, **__: interface.BwdConfig(**tiles)
        try:
            yield
        finally:
            interface._tile_size_bwd_sm90 = chosen


def _limits(length: int, cu_seqlens: Tensor | None, window: int | None) -> dict[str, Any]:
    """The package's arguments for documents and a window, in rows of `length` tokens. Its windows do not count
    the token itself."""
    if cu_seqlens is None:
        return {}
    given = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens, "max_seqlen_q": length, "max_seqlen_k": length}
    return given if window is None else given | {"window_size_left": window - 1}
