"""A Triton driver for a GPU that is not present: kernels are compiled for tensors on the CPU, but not launched."""

import itertools
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver

# Bytes of shared memory that a block can use, by compute capability (CUDA C++ Programming Guide, technical
# specifications per compute capability).
SHARED_MEMORY = {"8.0": 163 << 10, "8.6": 99 << 10, "8.9": 99 << 10, "9.0": 227 << 10, "10.0": 227 << 10}
SHARED_MEMORY |= {"12.0": 99 << 10}
TENSOR_MEMORY = 512  # columns, on GPUs that have tensor memory
TILES = re.compile(r"(B[A-Z]{1,2}|DP|DVP|BLOCK|ROWS|COLUMNS|DEPTH|KEPT|STAGES)")  # names of kernel constants


class AbsentGPU(DriverBase):
    """A driver for Triton that records what each compiled kernel needs.

    Args:
        capability: compute capability, such as "8.0".

    Attributes:
        rows: one dictionary per compiled kernel.
    """

    number = itertools.count()

    def __init__(self, capability: str):
        super().__init__()
        self.index = next(self.number)  # Triton keeps compiled kernels by device, so that each driver sees all of them
        self.capability, self.limit = capability, SHARED_MEMORY[capability]
        self.rows: list[dict[str, Any]] = []
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": self.limit}, load_binary=self.load_binary
        )

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        """Called by Triton for each compiled kernel, before it compares the memory with the limits."""
        kernel, names = source.fn.fn, source.fn.arg_names
        constants = {names[index[0]]: value for index, value in source.constants.items() if len(index) == 1}
        tiles = [f"{name}={value}" for name, value in constants.items() if TILES.fullmatch(name)]
        row = {"kernel": f"{kernel.__module__.partition('.kernels.')[2]}.{kernel.__name__}", "tiles": " ".join(tiles)}
        row |= {"warps": metadata.num_warps, "stages": metadata.num_stages}
        columns = getattr(metadata, "tmem_size", None) or 0
        row |= {"shared_bytes": metadata.shared, "limit_bytes": self.limit, "tensor_memory_columns": columns}
        self.rows.append(row | {"fits": metadata.shared <= self.limit and columns <= TENSOR_MEMORY})
        return lambda *arguments: None

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple:
        """Called by Triton for each kernel that fits."""
        self.rows[-1] |= resources(binary)
        return object(), 0, 0, 0, 1024

    @classmethod
    def is_active(cls) -> bool:
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", int(self.capability.replace(".", "")), 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_current_device(self) -> int:
        return self.index

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_benchmarker(self):
        raise NotImplementedError


def absent_gpu(capability: str) -> AbsentGPU:
    """Make Triton compile for a GPU of this compute capability from now on."""
    found = AbsentGPU(capability)
    driver.set_active(found)
    return found


def resources(binary: bytes) -> dict[str, int]:
    """Registers and bytes of local memory (mostly spilled registers) per thread of a compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary)
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]  # comes with Triton
        printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout  # noqa: S603 (see above)
    found = dict(re.findall(r"(REG|STACK):(\d+)", printed))
    return {"registers": int(found["REG"]), "local_bytes": int(found["STACK"])}
