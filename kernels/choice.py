"""Which implementation of an operator runs, and why."""

import importlib.util
import os
from dataclasses import dataclass
from typing import Literal, get_args

import torch

Implementation = Literal["auto", "triton", "cudnn", "torch"]
HEAD_DIMS = (16, 32, 48, 64, 96, 128)
SMALL = (torch.float16, torch.bfloat16)
INSTALLED = importlib.util.find_spec("triton") is not None
CUDNN = torch.backends.cudnn.is_available()  # asked once: torch.compile cannot follow the question
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own switch: kernels run on a CPU, slowly


@dataclass(frozen=True)
class Plan:
    """What computes the attention of a run.

    Attributes:
        implementation, gradient: triton, cudnn or torch; or the name of what an encoding brings.
        reason: completes "because".
        decoding: what computes it behind a cache, and why, where it is something else.
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
    head_dim: int,
    queries: int,
    keys: int,
    documents: bool = False,
    gates: bool = False,
    polar: bool = False,
) -> Plan:
    """Pick for `queries` tokens at the end of `keys`, with packed documents, FoX's gates, PoPE's doubled heads.

    cuDNN's attention takes no single token. A sequence of one needs no kernel: its softmax over one key is 1 and its
    output the value, which `cudnn` leaves to PyTorch.

    Raises:
        ValueError: a named implementation does not serve these inputs. It never falls back to another.
    """
    check_implementation(implementation)
    if implementation == "torch":
        return Plan("torch", "torch", "it was asked for")
    no_triton, width = _against_triton(device, dtype, head_dim), 2 * head_dim if polar else head_dim
    no_cudnn = no_triton or _against_cudnn(device, dtype, width, queries, keys, documents, gates)
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


def _against_triton(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    if not INSTALLED:
        return "Triton is not installed"
    if device.type != "cuda" and not INTERPRETED:
        return f"the tensors are on {device.type}, Triton's kernels need a CUDA device"
    if dtype not in (*SMALL, torch.float32):
        return f"Triton's kernels take float32, float16 and bfloat16, not {_name(dtype)}"
    if dtype == torch.bfloat16 and INTERPRETED:
        return "Triton's interpreter multiplies bfloat16 wrongly"
    if head_dim not in HEAD_DIMS:
        return f"head_dim={head_dim} is none of the {', '.join(map(str, HEAD_DIMS))} that Triton's kernels take"
    if not INTERPRETED and torch.cuda.get_device_capability(device) < (8, 0):
        return "Triton's kernels need compute capability 8.0 or newer"
    return None


def _against_cudnn(device, dtype, width, queries, keys, documents, gates) -> str | None:
    if gates:
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
    if width > 128 and torch.cuda.get_device_capability(device) != (9, 0):
        return f"cuDNN's attention on vectors {width} wide is used on compute capability 9.0 alone"
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
