"""Which implementation of an operator runs, and why."""

import importlib.util
import os
from dataclasses import dataclass
from typing import NamedTuple, get_args

import torch

from .implementations import Implementation

HEAD_DIMS = (16, 32, 48, 64, 96, 128)
SMALL = (torch.float16, torch.bfloat16)
INSTALLED = importlib.util.find_spec("triton") is not None
CUDNN = torch.backends.cudnn.is_available()  # asked once: torch.compile cannot follow the question
REFLECTIONS = "cuDNN's attention knows no reflections between query and key"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own switch: kernels run on a CPU, slowly


class Needs(NamedTuple):
    """What an encoding needs of the operator that computes its attention.

    Attributes:
        head_dim: channels of queries and keys as the operator is given them.
        score_dim: channels of them in the dot product: twice as many for PoPE.
        value_dim: channels of values.
        gates: FoX's are added to the scores.
        reflections: PaTH's stand between query and key.
    """

    head_dim: int
    score_dim: int
    value_dim: int
    gates: bool = False
    reflections: bool = False


@dataclass(frozen=True)
class Plan:
    """What computes the attention of a forward pass and of its backward pass: decided once, and handed to the layers.

    Attributes:
        implementation, gradient: triton, cudnn or torch; or the name of what an encoding brings.
        reason: completes "because".
        decoding: what computes passes with a state, and why, where it is something else.
    """

    implementation: str
    gradient: str
    reason: str
    decoding: str | None = None

    def __str__(self) -> str:
        gradient = "" if self.gradient == self.implementation else f", its gradient by {self.gradient}"
        decoding = f"; decoding by {self.decoding}" if self.decoding else ""
        return f"{self.implementation}{gradient}, because {self.reason}{decoding}"


def check_implementation(implementation: str) -> None:
    """Raise ValueError for a name that there is not."""
    if implementation not in get_args(Implementation):
        raise ValueError(f"implementation={implementation}: it must be {', '.join(get_args(Implementation))}")


def choose(
    implementation: str,
    device: torch.device,
    dtype: torch.dtype,
    needs: Needs,
    queries: int,
    keys: int,
    documents: bool = False,
) -> Plan:
    """Pick for `queries` tokens at the end of `keys`, with packed `documents` or not.

    cuDNN's attention takes no single token. A sequence of one needs no kernel: its softmax over one key is 1 and its
    output the value, which `cudnn` leaves to PyTorch.

    Raises:
        ValueError: a named implementation does not serve these inputs. It never falls back to another.
    """
    check_implementation(implementation)
    if implementation == "torch":
        return Plan("torch", "torch", "it was asked for")
    if implementation == "cudnn" and needs.reflections:
        raise ValueError(f"implementation=cudnn: {REFLECTIONS}; use implementation=auto, triton or torch")
    no_triton = _against_triton(device, dtype, needs)
    no_cudnn = no_triton or _against_cudnn(device, dtype, needs, queries, keys, documents)
    if implementation != "auto":
        problem = no_triton if implementation == "triton" else no_cudnn
        if problem:
            raise ValueError(f"implementation={implementation}: {problem}; use implementation=auto or torch")
        if implementation == "cudnn" and keys == 1:
            return Plan("torch", "torch", "the softmax over one key is 1")
        return Plan(implementation, implementation, "it was asked for")
    if no_triton or device.type != "cuda":
        return Plan("torch", "torch", no_triton or "Triton's interpreter is for tests")
    if no_cudnn or keys == 1:
        return Plan("triton", "triton", no_cudnn or "cuDNN's attention takes no single token")
    if torch.are_deterministic_algorithms_enabled():
        return Plan("cudnn", "triton", "cuDNN's own gradient is not repeatable bit for bit")
    return Plan("cudnn", "cudnn", "it was fastest (its gradient is not repeatable bit for bit)")


def _against_triton(device: torch.device, dtype: torch.dtype, needs: Needs) -> str | None:
    if not INSTALLED:
        return "Triton is not installed"
    if device.type != "cuda" and not INTERPRETED:
        return f"the tensors are on {device.type}, Triton's kernels need a CUDA device"
    if dtype not in (*SMALL, torch.float32):
        return f"Triton's kernels take float32, float16 and bfloat16, not {_name(dtype)}"
    if dtype == torch.bfloat16 and INTERPRETED:
        return "Triton's interpreter multiplies bfloat16 wrongly"
    if needs.value_dim != needs.head_dim and not needs.reflections:
        return f"queries and keys are {needs.head_dim} wide and values {needs.value_dim}, which torch alone serves"
    if needs.head_dim not in HEAD_DIMS:
        return f"head_dim={needs.head_dim} is none of the {', '.join(map(str, HEAD_DIMS))} that Triton's kernels take"
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)
    if capability[0] < 8 and not INTERPRETED:
        return "Triton's kernels need compute capability 8.0 or newer"
    if needs.reflections and needs.value_dim > HEAD_DIMS[-1]:
        return f"PaTH's kernels take heads of up to {HEAD_DIMS[-1]}, not {needs.value_dim}"
    if needs.reflections and capability[0] not in (9, 10):
        return "PaTH's kernels need the shared memory of compute capability 9.0 or 10.0"
    return None


def _against_cudnn(
    device: torch.device, dtype: torch.dtype, needs: Needs, queries: int, keys: int, documents: bool
) -> str | None:
    if needs.reflections:
        return REFLECTIONS
    if needs.gates:
        return "cuDNN's attention has no gates"
    if documents:
        return "cuDNN's attention has no packed documents"
    if dtype not in SMALL:
        return f"cuDNN's attention takes float16 and bfloat16, not {_name(dtype)}"
    if queries != keys:
        return f"cuDNN's attention takes whole sequences, not {queries} of {keys} tokens"
    if not CUDNN:
        return "cuDNN is not there"
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return "cuDNN's attention is used from compute capability 9.0 on"
    if needs.score_dim > 128 and torch.cuda.get_device_capability(device) != (9, 0):
        return f"cuDNN's attention on vectors {needs.score_dim} wide is used on compute capability 9.0 alone"
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
