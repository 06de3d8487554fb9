"""The output layer and cross entropy in one: nats per token without holding the logits of all tokens at once."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..choice import INSTALLED, SMALL
from ..precision import compute_dtype

IGNORED = -100
LOGITS = 1 << 29  # held at a time, roughly: a GiB in half precision
LOGITS_ON_CPU = 1 << 24  # where larger pieces are no faster, and cross entropy keeps float32 copies of them
LARGE = 1024  # from this vocabulary on the pieces are faster, and worth their memory; at 200 they were not
# Rows of logits are padded to a multiple of this, for matrix units and vector loads: GPT-2's 50,257 becomes 50,304.
ALIGNED = 64


class TokenNats(NamedTuple):
    """Of each token: `nats [N]` float32, 0 where the target is ignored, and whether the likeliest token is `right`."""

    nats: Tensor
    right: Tensor


def summed_nats(x: Tensor, weight: Tensor, targets: Tensor, ignored: int = IGNORED) -> Tensor:
    """Summed nats of `targets [N]` (those that are not `ignored`) under the logits `x [N, C] @ weight [V, C].T`.

    In half precision on a CUDA GPU, for a vocabulary of LARGE or more, the logits are made a piece at a time, and the
    gradients with them; elsewhere by PyTorch's own operations. Logits are rounded to the dtype that autocast or x says,
    the softmax is float32.
    """
    dtype = compute_dtype(x)
    if x.device.type == "cuda" and INSTALLED and dtype in SMALL and len(weight) >= LARGE:
        return summed_nats_op(x, weight, targets, dtype, ignored)[0]
    return summed_nats_of_logits(F.linear(x, weight), targets, ignored)


def summed_nats_of_logits(logits: Tensor, targets: Tensor, ignored: int = IGNORED) -> Tensor:
    """Summed nats of `targets [N]` (those that are not `ignored`) under `logits [N, V]`."""
    return F.cross_entropy(logits.float(), targets, ignore_index=ignored, reduction="sum")


@torch.no_grad()
def token_nats(x: Tensor, weight: Tensor, targets: Tensor, ignored: int = IGNORED) -> TokenNats:
    """Nats of each of `targets [N]` under the logits `x [N, C] @ weight [V, C].T`, made a piece at a time.

    Ties of the likeliest go to the lowest id, as `argmax` has it; an ignored target is never right.
    """
    dtype, vocabulary = compute_dtype(x), len(weight)
    x, weight = x.to(dtype), aligned(weight, dtype)
    nats = torch.empty(len(x), device=x.device)
    right = torch.empty(len(x), dtype=torch.bool, device=x.device)
    for part in _pieces(x, weight):
        logits = logits_of(x[part], weight, vocabulary)
        if x.device.type == "cuda" and INSTALLED:
            from .softmax_rows import score_rows

            score_rows(logits, targets[part], nats[part], right[part], ignored, vocabulary)
        else:
            nats[part], right[part] = token_nats_of_logits(logits, targets[part], ignored)
        del logits
    return TokenNats(nats, right)


@torch.no_grad()
def token_nats_of_logits(logits: Tensor, targets: Tensor, ignored: int = IGNORED) -> TokenNats:
    """Nats of each of `targets [N]` under `logits [N, V]`, and whether it was the likeliest, as `token_nats` has it."""
    nats = F.cross_entropy(logits.float(), targets, ignore_index=ignored, reduction="none")
    return TokenNats(nats, logits.argmax(-1) == targets)


def aligned(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """`weight [V, C]` in `dtype`, on a GPU with rows of zeros added up to a multiple of ALIGNED."""
    missing = -len(weight) % ALIGNED if weight.device.type == "cuda" else 0
    if not missing:
        return weight.to(dtype)
    out = torch.empty(len(weight) + missing, weight.shape[1], dtype=dtype, device=weight.device)
    out[: len(weight)], out[len(weight) :] = weight, 0.0
    return out


def logits_of(x: Tensor, weight: Tensor, vocabulary: int) -> Tensor:
    """`x [N, C] @ weight.T`, with -inf in the columns that were added to `vocabulary`."""
    logits = x @ weight.T
    logits[:, vocabulary:] = float("-inf")
    return logits


@torch.library.custom_op("bearings::summed_nats", mutates_args=())
def summed_nats_op(
    x: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype, ignored: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum and its gradients with respect to `x` and `weight`."""
    from .softmax_rows import score_rows

    x_low, weight_low, vocabulary = x.to(dtype), aligned(weight, dtype), len(weight)
    nats = torch.empty(len(x), device=x.device)
    dx = torch.empty_like(x_low)
    dweight = torch.zeros(weight_low.shape, device=x.device)
    for part in _pieces(x, weight_low):
        logits = logits_of(x_low[part], weight_low, vocabulary)
        score_rows(logits, targets[part], nats[part], None, ignored, vocabulary)
        torch.mm(logits, weight_low, out=dx[part])
        # In float32 whatever the dtype: the pieces would lose low bits of each other.
        torch.addmm(dweight, logits.T, x_low[part], out_dtype=torch.float32, out=dweight)
        del logits  # otherwise this piece and the next one would both be in memory
    return nats.sum(), dx.to(x.dtype), dweight[:vocabulary].to(weight.dtype)


@summed_nats_op.register_fake
def _(x, weight, targets, dtype, ignored):
    return x.new_empty((), dtype=torch.float32), x.new_empty(x.shape), weight.new_empty(weight.shape)


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx, grad, *_):
    dx, dweight = (scaled_op(each, grad) for each in ctx.saved_tensors)
    return dx, dweight, None, None, None


@torch.library.custom_op("bearings::scaled", mutates_args=())
def scaled_op(x: Tensor, factor: Tensor) -> Tensor:
    """`x` times a number of float32, rounded once."""
    from .scaled import scaled

    return scaled(x, factor)


@scaled_op.register_fake
def _(x, factor):
    return torch.empty_like(x)


summed_nats_op.register_autograd(_backward, setup_context=_setup_context)


def _pieces(x: Tensor, weight: Tensor) -> list[slice]:
    rows = piece_rows(len(x), len(weight), x.device.type)
    return [slice(start, start + rows) for start in range(0, len(x), rows)]


def piece_rows(tokens: int, vocabulary: int, device: str = "cuda") -> int:
    """Tokens whose logits are made at a time: of equal pieces of about LOGITS, in multiples of the matrix unit's tiles.

    For every piece reads and writes the weight's whole gradient, and a small rest would too.
    """
    held = min(LOGITS, LOGITS_ON_CPU) if device == "cpu" else LOGITS
    pieces = max(round(tokens * vocabulary / held), 1)
    return max(-(-tokens // (128 * pieces)), 1) * 128
