"""Selects the implementation of an operator and records the reason."""

import importlib.metadata
import importlib.util
import os
from dataclasses import dataclass
from typing import NamedTuple, get_args

import torch

from .gpus import capability_of
from .implementations import Implementation

HEAD_DIMS = (16, 32, 48, 64, 96, 128)
WIDEST = 256  # most channels of the dot product, which may have more than the values
SMALL = (torch.float16, torch.bfloat16)
INSTALLED = importlib.util.find_spec("triton") is not None
CUDNN = torch.backends.cudnn.is_available()  # evaluated once because torch.compile cannot trace the call
LIBRARIES = {"cudnn": "cuDNN attention", "fa4": "FlashAttention-4"}
FA4 = "4.0.0b36"  # the version of flash-attn-4 whose internal functions kernels/attention/fa4.py calls
# Tested numbers of score and value channels. With others, gradients of that version are wrong or fail to compile.
FA4_CHANNELS = ((32, 32), (64, 64), (96, 96), (128, 128), (128, 64), (192, 96), (256, 128))
# Tokens per row from which FlashAttention-4 was measured to be faster, by (whether there are documents or a window,
# whether gradients must be deterministic) and numbers of channels. Missing where it is slower or was not measured.
FA4_FASTER: dict[tuple[bool, bool], dict[tuple[int, int], int]] = {
    (False, False): {
        **{(32, 32): 1024, (64, 64): 1024, (96, 96): 1024, (128, 128): 1024},
        **{(128, 64): 1024, (256, 128): 4096},
    },
    (False, True): {(64, 64): 1024, (128, 64): 4096},
    (True, False): {(128, 128): 4096, (128, 64): 1024},
}
# Minimum number of queries for FlashAttention-4, by value channels, if earlier keys are cached or on other GPUs.
FA4_CONTINUES = {64: 1024, 128: 1024}
FA4_HERE = next((found.version for found in importlib.metadata.distributions(name="flash-attn-4")), None)  # installed
UNBOUNDED = "FlashAttention-4 needs a bound on the number of documents (`most` of `Documents.of`)"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own switch: kernels run on a CPU, slowly


class Needs(NamedTuple):
    """What an encoding requires from the attention operator.

    Attributes:
        head_dim: channels per head of the queries and keys passed to the operator.
        score_dim: channels per head in the dot product (PoPE: twice `head_dim`).
        value_dim: channels per head of the values, at most twice `head_dim`.
        gates: whether forget gates are added to the scores (FoX).
        reflections: whether Householder transforms are applied between query and key (PaTH).
        rows: whether only PyTorch computes the scores, as `attend_rows` does.
        bias: whether a bias that depends on the distance is added to the scores.
        lse: whether the log-sum-exp of the scores is returned and has a gradient.
    """

    head_dim: int
    score_dim: int
    value_dim: int
    gates: bool = False
    reflections: bool = False
    rows: bool = False
    bias: bool = False
    lse: bool = False


@dataclass(frozen=True)
class Plan:
    """The implementations of attention for the forward and backward pass, which layers of the same kind share.

    Attributes:
        implementation: "triton", "cudnn", "fa4" or "torch", or a name that an encoding defines for its own
            implementation.
        gradient: the same for the backward pass.
        reason: why this implementation was chosen; a clause that follows "because".
        decoding: implementation and reason for passes with a cache, if they use a different implementation.
        rows: whether PyTorch computes the scores in row blocks because no kernel supports them.
    """

    implementation: str
    gradient: str
    reason: str
    decoding: str | None = None
    rows: bool = False

    @property
    def by_kernel(self) -> bool:
        """Whether a kernel computes the attention, not PyTorch operations."""
        return self.implementation != "torch"

    @property
    def compiles(self) -> bool:
        """Whether torch.compile supports rows of varying length: it does not look into kernels or row blocks."""
        return self.by_kernel or self.rows

    def __str__(self) -> str:
        gradient = "" if self.gradient == self.implementation else f", backward pass: {self.gradient}"
        decoding = f"; decoding: {self.decoding}" if self.decoding else ""
        return f"{self.implementation}{gradient}, because {self.reason}{decoding}"


def check_implementation(implementation: str) -> None:
    """Raise ValueError for an unknown implementation."""
    if implementation not in get_args(Implementation):
        raise ValueError(f"implementation={implementation}: it must be one of {', '.join(get_args(Implementation))}")


def choose(
    implementation: str,
    device: torch.device,
    dtype: torch.dtype,
    needs: Needs,
    queries: int,
    keys: int,
    documents: bool = False,
    bounded: bool = True,
) -> Plan:
    """Choose the implementation for one set of inputs.

    cuDNN attention does not support single tokens. With one query and one key the softmax is 1 and the output equals
    the value, so "cudnn" and "fa4" use PyTorch in that case.

    Args:
        implementation: "auto", or the implementation to use.
        device: device of the inputs.
        dtype: dtype of the matrix products.
        needs: requirements of the encoding.
        queries: number of queries, T.
        keys: number of keys, S >= T.
        documents: whether rows hold several packed documents, or have a window.
        bounded: whether the number of documents is bounded: `Documents.cu_seqlens` is known.

    Returns:
        The chosen plan.

    Raises:
        ValueError: unknown implementation, or a requested implementation that does not support these inputs. There is
            no silent fallback.
    """
    check_implementation(implementation)
    if implementation == "torch":
        return Plan("torch", "torch", "it was requested", rows=needs.rows)
    if implementation in LIBRARIES and needs.reflections:
        problem = f"{LIBRARIES[implementation]} does not support Householder transforms"
        raise ValueError(f"implementation={implementation}: {problem}; use implementation=auto, triton or torch")
    no_triton = _against_triton(device, dtype, needs)
    lengths, limits = (queries, keys), (documents, bounded)
    if implementation != "auto":
        problem = no_triton
        if implementation in LIBRARIES:
            problem = problem or _against_library(implementation, device, dtype, needs, *lengths, *limits)
        if implementation == "fa4":
            problem = problem or _against_fa4_package()
        if problem:
            raise ValueError(f"implementation={implementation}: {problem}; use implementation=auto or torch")
        if implementation in LIBRARIES and keys == 1:
            return Plan("torch", "torch", "the softmax over one key is 1")
        return Plan(implementation, implementation, "it was requested")
    if no_triton or device.type != "cuda":
        return Plan("torch", "torch", no_triton or "the Triton interpreter is for tests only", rows=needs.rows)
    no_cudnn, no_fa4 = (_against_library(name, device, dtype, needs, *lengths, *limits) for name in ("cudnn", "fa4"))
    deterministic, missing = torch.are_deterministic_algorithms_enabled(), _against_fa4_package()
    begin = FA4_FASTER.get((documents, deterministic), {}).get((needs.score_dim, needs.value_dim))
    favoured = not no_fa4 and begin is not None and queries >= begin
    fastest = "it is the fastest" if deterministic else "it is the fastest (its backward pass is not deterministic)"
    if favoured and not missing:
        return Plan("fa4", "fa4", fastest)
    note = f"; FlashAttention-4 would be faster, but {missing}" if favoured else ""
    if no_cudnn or keys == 1:
        return Plan("triton", "triton", (no_cudnn or "cuDNN attention does not support single tokens") + note)
    if deterministic:
        return Plan("cudnn", "triton", "the cuDNN backward pass is not deterministic" + note)
    return Plan("cudnn", "cudnn", fastest + note)


def _against_triton(device: torch.device, dtype: torch.dtype, needs: Needs) -> str | None:
    if needs.rows:
        return "only torch computes these scores"
    if not INSTALLED:
        return "Triton is not installed"
    if device.type != "cuda" and not INTERPRETED:
        return "the tensors are not on a CUDA device"
    if dtype not in (*SMALL, torch.float32):
        return f"Triton kernels support float32, float16 and bfloat16, not {_name(dtype)}"
    if dtype == torch.bfloat16 and INTERPRETED:
        return "the Triton interpreter computes wrong bfloat16 products"
    sized = needs.head_dim if needs.reflections else needs.value_dim
    if sized not in HEAD_DIMS:
        name = "head_dim" if sized == needs.head_dim else "value_dim"
        return f"Triton kernels support {name} {', '.join(map(str, HEAD_DIMS))}, not {sized}"
    wider = needs.value_dim < needs.head_dim <= WIDEST and needs.head_dim % 16 == 0
    halved = 2 * needs.head_dim == needs.value_dim and needs.head_dim in HEAD_DIMS
    if needs.head_dim != needs.value_dim and not needs.reflections and not wider and not halved:
        allowed = f"multiples of 16 from {needs.value_dim} to {WIDEST}, or half of {needs.value_dim},"
        return f"Triton kernels support {allowed} as the number of score channels, not {needs.head_dim}"
    if device.type == "cuda" and capability_of(device)[0] < 8:
        return "Triton kernels need compute capability 8.0 or newer"
    if needs.reflections and needs.value_dim > HEAD_DIMS[-1]:
        return f"PaTH kernels support value_dim up to {HEAD_DIMS[-1]}, not {needs.value_dim}"
    wide = needs.reflections and dtype == torch.float32 and max(needs.head_dim, needs.value_dim) > 64
    if device.type == "cuda" and wide and capability_of(device) != (9, 0):
        # Elsewhere they exceed the shared or tensor memory, or (8.0) spill up to 29 KB per thread, which the GPU
        # reserves for every resident thread: see benchmarks/results/shared_memory.csv.
        return "PaTH kernels in float32 with more than 64 channels need compute capability 9.0"
    return None


def _against_library(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    needs: Needs,
    queries: int,
    keys: int,
    documents: bool,
    bounded: bool,
) -> str | None:
    library = LIBRARIES[name]
    if needs.reflections:
        return f"{library} does not support Householder transforms"
    if needs.gates:
        return f"{library} does not support gates"
    if needs.bias:
        return f"{library} does not support a bias by distance"
    if needs.lse:
        return f"{library} is not used with a gradient of the log-sum-exp"
    if documents and name == "cudnn":
        return f"{library} is not used with packed documents or windows"
    if not bounded and name == "fa4":
        return UNBOUNDED
    if dtype not in SMALL:
        return f"{library} supports float16 and bfloat16, not {_name(dtype)}"
    fewest = FA4_CONTINUES.get(needs.value_dim, keys)
    continues = name == "fa4" and not documents and fewest <= queries
    if queries != keys and not continues:
        return f"{library} needs whole sequences, not {queries} of {keys} tokens"
    return _against_fa4(device, needs) if name == "fa4" else _against_cudnn(device, needs)


def _against_fa4_package() -> str | None:
    if FA4_HERE is None:
        return f'the package flash-attn-4 is not installed (pip install "flash-attn-4[cu13]=={FA4}")'
    return None if FA4_HERE == FA4 else f"flash-attn-4 {FA4_HERE} is installed, but only {FA4} is supported"


def _against_fa4(device: torch.device, needs: Needs) -> str | None:
    if device.type != "cuda" or capability_of(device) != (9, 0):
        return "FlashAttention-4 is used on compute capability 9.0 only"
    if (needs.score_dim, needs.value_dim) not in FA4_CHANNELS:
        channels = f"{needs.score_dim} score and {needs.value_dim} value channels"
        return f"FlashAttention-4 is not used with {channels} (only {', '.join(f'{s}/{v}' for s, v in FA4_CHANNELS)})"
    return None


def _against_cudnn(device: torch.device, needs: Needs) -> str | None:
    if not CUDNN:
        return "cuDNN is not available"
    if device.type != "cuda" or capability_of(device) < (9, 0):
        return "cuDNN attention is used on compute capability 9.0 or newer"
    if needs.score_dim not in (needs.value_dim, 2 * needs.value_dim):
        return f"cuDNN attention is not used with {needs.score_dim} score channels for {needs.value_dim} of the values"
    if needs.score_dim > 128 and capability_of(device) != (9, 0):
        return f"cuDNN attention with {needs.score_dim} score channels is used only on compute capability 9.0"
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
