"""Fused output layer and cross entropy, which does not hold the logits of all tokens in memory at once."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..choice import INSTALLED, SMALL
from ..operator import operator
from ..precision import compute_dtype

IGNORED = -100
LOGITS = 1 << 29  # approximate number of logits in memory at a time: 1 GiB in half precision
LOGITS_ON_CPU = 1 << 24  # on CPUs larger chunks are not faster, and cross entropy makes float32 copies of them
LARGE = 1024  # vocabulary size from which chunking is faster; at 200 it was not
# Rows of logits are padded to a multiple of this for tensor cores and vector loads: GPT-2's 50,257 becomes 50,304.
ALIGNED = 64


class TokenNats(NamedTuple):
    """Scores per token.

    Attributes:
        nats: `[N]` float32, negative log-likelihood of the target; 0 for ignored targets.
        right: `[N]` bool, whether the most likely token is the target; False for ignored targets.
    """

    nats: Tensor
    right: Tensor


def summed_nats(x: Tensor, weight: Tensor, targets: Tensor, ignored: int = IGNORED) -> Tensor:
    """Sum of the negative log-likelihoods of targets under the logits `x @ weight.T`, in nats.

    In half precision on a CUDA GPU with a vocabulary of 1,024 or more, logits and gradients are computed in chunks of
    tokens with Triton, as in Liger-Kernel (Hsu et al., arXiv 2410.10989); otherwise PyTorch operations are used. Logits
    have autocast's dtype if enabled, otherwise that of x; the softmax is computed in float32.

    Args:
        x: outputs of the last layer, `[N, C]`, any floating-point dtype.
        weight: weight of the output layer, `[V, C]`.
        targets: token ids, `[N]` int64. With the chunked kernels an id outside the vocabulary gives NaN.
        ignored: target id that does not count. Default: -100.

    Returns:
        A float32 scalar, differentiable with respect to `x` and `weight`.

    Raises:
        ValueError: another number of targets than rows of `x`.
        RuntimeError: from PyTorch, for other incompatible shapes.
    """
    _check(x, targets)
    dtype = compute_dtype(x)
    if x.device.type == "cuda" and INSTALLED and dtype in SMALL and len(weight) >= LARGE:
        return summed_nats_op(x, weight, targets, dtype, ignored)[0]
    return summed_nats_of_logits(F.linear(x, weight), targets, ignored)


def summed_nats_of_logits(logits: Tensor, targets: Tensor, ignored: int = IGNORED) -> Tensor:
    """`summed_nats` of `targets [N]` from given `logits [N, V]`."""
    return F.cross_entropy(logits.float(), targets, ignore_index=ignored, reduction="sum")


@torch.no_grad()
def token_nats(x: Tensor, weight: Tensor, targets: Tensor, ignored: int = IGNORED) -> TokenNats:
    """Negative log-likelihood of each target under the logits `x @ weight.T`, computed in chunks without gradients.

    Args:
        x: outputs of the last layer, `[N, C]`, any floating-point dtype.
        weight: weight of the output layer, `[V, C]`.
        targets: token ids, `[N]` int64.
        ignored: target id that does not count. Default: -100.

    Returns:
        Nats, `[N]` float32, and whether the most likely token is the target, `[N]` bool. Ties go to the lowest id, as
        in `argmax`. An ignored target has 0 nats and is never right.

    Raises:
        ValueError: another number of targets than rows of `x`.
        RuntimeError: from PyTorch, for other incompatible shapes.
    """
    _check(x, targets)
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
    """`token_nats` of `targets [N]` from given `logits [N, V]`."""
    nats = F.cross_entropy(logits.float(), targets, ignore_index=ignored, reduction="none")
    return TokenNats(nats, (logits.argmax(-1) == targets) & (targets != ignored))


def aligned(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """`weight [V, C]` in `dtype`. On a GPU, V is zero-padded to a multiple of ALIGNED."""
    missing = -len(weight) % ALIGNED if weight.device.type == "cuda" else 0
    if not missing:
        return weight.to(dtype)
    out = torch.empty(len(weight) + missing, weight.shape[1], dtype=dtype, device=weight.device)
    out[: len(weight)], out[len(weight) :] = weight, 0.0
    return out


def logits_of(x: Tensor, weight: Tensor, vocabulary: int) -> Tensor:
    """`x [N, C] @ weight.T`, with -inf in the padding columns after `vocabulary`."""
    logits = x @ weight.T
    logits[:, vocabulary:] = float("-inf")
    return logits


@operator("bearings::summed_nats")
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
        # Accumulated in float32: adding chunks in a lower precision would lose low bits.
        torch.addmm(dweight, logits.T, x_low[part], out_dtype=torch.float32, out=dweight)
        del logits  # otherwise the logits of two chunks would be in memory
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


@operator("bearings::scaled")
def scaled_op(x: Tensor, factor: Tensor) -> Tensor:
    """`x` times a float32 scalar, rounded once."""
    from .scaled import scaled

    return scaled(x, factor)


@scaled_op.register_fake
def _(x, factor):
    return torch.empty_like(x)


summed_nats_op.register_autograd(_backward, setup_context=_setup_context)


def _check(x: Tensor, targets: Tensor) -> None:
    """Raise ValueError if kernels would read beyond the targets, or chunks would leave some out."""
    if targets.shape != x.shape[:-1]:
        raise ValueError(f"targets {list(targets.shape)} with x {list(x.shape)}: there must be one for each row of x")


def _pieces(x: Tensor, weight: Tensor) -> list[slice]:
    rows = piece_rows(len(x), len(weight), x.device.type)
    return [slice(start, start + rows) for start in range(0, len(x), rows)]


def piece_rows(tokens: int, vocabulary: int, device: str = "cuda") -> int:
    """Tokens per chunk: a multiple of 128 such that chunks are about equal and hold about LOGITS logits each.

    Every chunk reads and writes the whole weight gradient, so a small last chunk would be wasteful.
    """
    held = min(LOGITS, LOGITS_ON_CPU) if device == "cpu" else LOGITS
    pieces = max(round(tokens * vocabulary / held), 1)
    return max(-(-tokens // (128 * pieces)), 1) * 128
