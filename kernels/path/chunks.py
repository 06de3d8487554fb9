"""PaTH attention in PyTorch: chunks in UT form, joined into blocks with the products of their reflections.

Inside one chunk (rows of W are w_s, Dg = diag(beta)), with the UT transform
U = (I + strict_lower(Dg W W^T))^{-1} Dg W and Z = (I + strict_lower(Dg W W^T))^{-1} Dg strict_lower(W K^T):

    scores                                lower(Q K^T) - lower(Q W^T) Z
    queries pulled back to its start      Q - lower(Q W^T) U
    keys pushed forward to its end        K - Z^T W
    its whole product H_last ... H_first  P = I - W^T U

For two neighbouring blocks, with queries pulled back and keys pushed forward to their common border, q^T k is the
score. The pair is again a block, with P = P_right P_left. In addition to the scores this costs O(T D^2 log T). Padding
tokens have w = 0, so H = I exactly.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..attention.blocks import Blocks, Chunks, attend_in_blocks, by_group
from ..documents import Documents


def one_block(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Reshape `[B, L, Hkv, ...]` to one block `[B, Hkv, 1, L, ...]` in `dtype`."""
    return x.to(dtype).transpose(1, 2).unsqueeze(2)


def path_block(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    scale: float,
    documents: Documents | None,
    sums: Tensor | None,
) -> Blocks:
    """All tokens as one block: attention, queries pulled back to the start, keys pushed to the end, the product."""

    def first(queries: Tensor, keys: Tensor, chunked: Callable[[Tensor], Tensor]) -> Chunks:
        return ut_form(queries, keys, chunked(w), chunked(beta.unsqueeze(-1)))

    return attend_in_blocks(q, k, v, first, scale, documents, sums)


def ut_form(queries: Tensor, keys: Tensor, w: Tensor, beta: Tensor) -> Chunks:
    """UT form of chunks. Shapes: `queries [B, Hkv, n, G, L, D]`, `keys, w [B, Hkv, n, L, D]`, `beta [..., n, L, 1]`."""
    u, z = solved(keys, w, beta)
    read = by_group(queries, w.mT).tril()
    return Chunks(by_group(queries, keys.mT) - by_group(read, z), queries - by_group(read, u), *ends(keys, w, u, z))


def pushed(keys: Tensor, w: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Keys pushed to the end of their chunk, and the product of the chunk."""
    return ends(keys, w, *solved(keys, w, beta))


def solved(keys: Tensor, w: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """U and Z."""
    right = beta * torch.cat([w, (w @ keys.mT).tril(-1)], -1)
    # With `unitriangular`, only the strictly lower part is read, and the diagonal is taken as ones.
    both = torch.linalg.solve_triangular(beta * (w @ w.mT), right, upper=False, unitriangular=True)
    return both.split([w.shape[-1], keys.shape[-2]], -1)


def moved(x: Tensor, products: Tensor) -> Tensor:
    """`x [..., L, D] @ products [..., D, D]` in the dtype of x, without rounding the products to it.

    The wide copy of x is not saved for the backward pass.
    """

    def multiply(x: Tensor, products: Tensor) -> Tensor:
        return (x.to(products.dtype) @ products).to(x.dtype)

    return checkpoint(multiply, x, products, use_reentrant=False, preserve_rng_state=False)


def ends(keys: Tensor, w: Tensor, u: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    return keys - z.mT @ w, torch.eye(w.shape[-1], dtype=w.dtype, device=w.device) - w.mT @ u
