"""Parts of a training step around attention, in this project, torch.compile, liger-kernel and quack-kernels.

To measure another implementation, add it to a part's contenders.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels.layers.added_norm import added_norm
from ..kernels.layers.swiglu import silu_product
from ..kernels.loss.cross_entropy import ALIGNED, summed_nats
from ..lightning_modules.blocks import SwiGLU
from ..lightning_modules.options import ModelOptions
from .epilogues import EpilogueMLP
from .training import Size

Function = Callable[..., Tensor | tuple[Tensor, ...]]  # takes the inputs of a part

EPSILON = ModelOptions.norm_epsilon
LOW = torch.bfloat16
OURS = "ours"
DEVICE = "cuda"


class Part(NamedTuple):
    """A part of a training step.

    Attributes:
        inputs: makes random inputs for a size; those of floating-point dtypes receive gradients.
        plain: the part in PyTorch's operations, for any dtype.
        contenders: by name, functions that import or compile an implementation of the part.
    """

    inputs: Callable[[Size], list[Tensor]]
    plain: Function
    contenders: dict[str, Callable[[], Function]]


def normal(*shape: int, dtype: torch.dtype = LOW, scale: float = 1.0) -> Tensor:
    """Random values that receive a gradient."""
    return (torch.randn(shape, device=DEVICE) * scale).to(dtype).requires_grad_()


def weight(*shape: int) -> Tensor:
    """A float32 weight `[outputs, inputs]`."""
    return normal(*shape, dtype=torch.float32, scale=shape[1] ** -0.5)


def tokens_of(size: Size) -> int:
    """Tokens of a step."""
    return size.batch * size.length


def ids(size: Size) -> Tensor:
    """Random token ids of a step."""
    return torch.randint(size.vocabulary, (tokens_of(size),), device=DEVICE)


def loss_inputs(size: Size, aligned: int = 1) -> list[Tensor]:
    """Hidden states, the output layer's weight with rows up to a multiple of `aligned`, and targets."""
    rows = -(-size.vocabulary // aligned) * aligned
    return [normal(tokens_of(size), size.width), weight(rows, size.width), ids(size)]


def plain_loss(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, weight), targets, reduction="sum")


def liger_loss() -> Function:
    from liger_kernel.ops import LigerCrossEntropyFunction  # pyright: ignore[reportMissingImports]

    def call(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return LigerCrossEntropyFunction.apply(F.linear(x, weight), targets, None, -100, 0.0, 0.0, "sum")[0]

    return call


def liger_fused_loss() -> Function:
    from liger_kernel.ops import LigerFusedLinearCrossEntropyFunction  # pyright: ignore[reportMissingImports]

    def call(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        settings = (None, None, -100, 0.0, 0.0, "sum", None, False, torch.float32)  # accumulated in float32, as ours
        return LigerFusedLinearCrossEntropyFunction.apply(x, weight.to(x.dtype), targets, *settings)[0]

    return call


def quack_loss() -> Function:
    from quack.cross_entropy import cross_entropy  # pyright: ignore[reportMissingImports]

    return lambda x, weight, targets: cross_entropy(
        F.linear(x, weight), targets, reduction="sum", inplace_backward=True
    )


def quack_fused_loss(scaled: bool) -> Function:
    from quack.linear_cross_entropy import chunked_linear_cross_entropy  # pyright: ignore[reportMissingImports]

    settings = {"reduction": "sum", "tuned": False, "use_scaled_exp": scaled}
    return partial(chunked_linear_cross_entropy, chunk_size=8192, **settings)  # 0.8 GB of logits; ours holds 1 GiB


def norm_inputs(size: Size, dtype: torch.dtype) -> list[Tensor]:
    """The residual stream in `dtype`, a branch, and the gain of the norm."""
    shape = tokens_of(size), size.width
    return [normal(*shape, dtype=dtype), normal(*shape), torch.ones(size.width, device=DEVICE).requires_grad_()]


def plain_norm(x: Tensor, branch: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + branch
    normed = F.rms_norm(total, weight.shape, weight.to(total.dtype), EPSILON)
    return total, normed.to(branch.dtype)


def liger_norm() -> Function:
    from liger_kernel.ops import LigerFusedAddRMSNormFunction  # pyright: ignore[reportMissingImports]

    def call(x: Tensor, branch: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        normed, total = LigerFusedAddRMSNormFunction.apply(x, branch, weight, EPSILON, 0.0, "gemma", False)
        return total, normed.to(branch.dtype)  # both have the dtype of the first argument

    return call


def quack_norm() -> Function:
    from quack.rmsnorm import rmsnorm  # pyright: ignore[reportMissingImports]

    def call(x: Tensor, branch: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        normed, total = rmsnorm(
            branch, weight, residual=x, out_dtype=branch.dtype, residual_dtype=x.dtype, eps=EPSILON, prenorm=True
        )
        return total, normed

    return call


def plain_product(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def liger_halves() -> Function:
    from liger_kernel.ops import LigerSiLUMulFunction  # pyright: ignore[reportMissingImports]

    return lambda x: LigerSiLUMulFunction.apply(*x.chunk(2, -1))


def liger_product() -> Callable[[Tensor], Tensor]:
    from liger_kernel.ops import LigerFusedGateUpSiLUMulFunction  # pyright: ignore[reportMissingImports]

    return LigerFusedGateUpSiLUMulFunction.apply


def mlp_inputs(size: Size) -> list[Tensor]:
    hidden = SwiGLU.usual_hidden(size.width)
    return [normal(tokens_of(size), size.width), weight(2 * hidden, size.width), weight(size.width, hidden)]


def mlp(product: Callable[[Tensor], Tensor], x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """The MLP with one of the implementations of SwiGLU's product."""
    return F.linear(product(F.linear(x, gate_up)), down)


def quack_mlp() -> Function:
    from quack.mlp import mlp_func  # pyright: ignore[reportMissingImports]

    return partial(mlp_func, activation="swiglu", concat_layout=True, tuned=False)


def quack_epilogues() -> Function:
    import quack.gemm_interface  # noqa: F401  # pyright: ignore[reportMissingImports]

    return EpilogueMLP.apply


def chain_inputs(size: Size) -> list[Tensor]:
    """The stream, SwiGLU's product before the last layer of an MLP, its weight, the gain of a norm, the next weight."""
    x, _, gain = norm_inputs(size, LOW)
    _, following, down = mlp_inputs(size)
    return [x, normal(tokens_of(size), SwiGLU.usual_hidden(size.width)), down, gain, following]


def chain(norm: Function, x: Tensor, product: Tensor, down: Tensor, gain: Tensor, following: Tensor) -> Tensor:
    """Two products with an addition and norm between them."""
    return F.linear(norm(x, F.linear(product, down), gain)[1], following)


def quack_chain() -> Function:
    from quack.gemm_interface import gemm_norm_act, gemm_rms  # pyright: ignore[reportMissingImports]

    def call(x: Tensor, product: Tensor, down: Tensor, gain: Tensor, following: Tensor) -> Tensor:
        x, product, gain = x.detach(), product.detach(), gain.detach()  # quack has no gradient of these
        down, following = down.detach().to(x.dtype), following.detach().to(x.dtype)
        total = torch.empty_like(x)
        scaled, rstd = gemm_rms(product, down.T, x, gain, premult_out=total, eps=EPSILON, tuned=False)
        return gemm_norm_act(scaled, following.T, rstd, tuned=False)[1]

    return call


def liger_embedding() -> Function:
    from liger_kernel.ops.experimental.embedding import (  # pyright: ignore[reportMissingImports]
        LigerEmbeddingFunction,
    )

    return LigerEmbeddingFunction.apply


def compiled(plain: Function) -> dict[str, Callable[[], Function]]:
    return {"torch.compile": lambda: torch.compile(lambda *inputs: plain(*inputs), dynamic=False)}


our_norm = partial(added_norm, eps=EPSILON)
LOSSES = {
    OURS: lambda: summed_nats,
    **compiled(plain_loss),
    "liger": liger_loss,
    "liger, with the product": liger_fused_loss,
}
NORMS = {OURS: lambda: our_norm, **compiled(plain_norm), "liger": liger_norm, "quack": quack_norm}
PARTS = {
    "loss": Part(loss_inputs, plain_loss, LOSSES),
    "loss, padded vocabulary": Part(
        partial(loss_inputs, aligned=ALIGNED),
        plain_loss,
        {
            **LOSSES,
            "quack": quack_loss,
            "quack, with the product": partial(quack_fused_loss, False),
            "quack, scaled exponentials": partial(quack_fused_loss, True),
        },
    ),
    "norm": Part(partial(norm_inputs, dtype=torch.float32), plain_norm, NORMS),
    "norm, bf16 stream": Part(partial(norm_inputs, dtype=LOW), plain_norm, NORMS),
    "swiglu": Part(
        lambda size: [normal(tokens_of(size), 2 * SwiGLU.usual_hidden(size.width))],
        plain_product,
        {
            OURS: lambda: silu_product,
            **compiled(plain_product),
            "liger": liger_product,
            "liger, separate halves": liger_halves,
        },
    ),
    "mlp": Part(
        mlp_inputs,
        partial(mlp, plain_product),
        {
            OURS: lambda: partial(mlp, silu_product),
            **compiled(partial(mlp, plain_product)),
            "liger": lambda: partial(mlp, liger_product()),
            "quack": quack_mlp,
            "quack's epilogues, cuBLAS": quack_epilogues,
        },
    ),
    "product, norm, product": Part(
        chain_inputs,
        partial(chain, plain_norm),
        {OURS: lambda: partial(chain, our_norm), "quack's epilogues": quack_chain},
    ),
    # PyTorch's operation, not a kernel of this project; see `Embedding` in lightning_modules/transformer.py.
    "embedding": Part(
        lambda size: [weight(size.vocabulary, size.width), ids(size)],
        lambda weight, tokens: F.embedding(tokens, weight),
        {
            OURS: lambda: lambda weight, tokens: weight.index_select(0, tokens),
            **compiled(lambda weight, tokens: F.embedding(tokens, weight)),
            "liger": liger_embedding,
        },
    ),
}
