"""Shared by tests of encodings: every encoding in the folder, inputs for it, and its oracle."""

import importlib
import inspect
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from content_support import content_oracle
from cumulative_support import cumulative_oracle, step_phases
from distance_support import distance_oracle
from torch import Tensor

from bearings.encodings.base import Encoding
from bearings.encodings.contract.context import Context
from bearings.encodings.contract.module import SharedModule
from bearings.encodings.contract.state import State
from bearings.kernels import reference
from bearings.kernels.attention.rope import rotate_by
from bearings.kernels.documents import Documents

FOLDER = Path(__file__).parents[2] / "encodings"
HEADS, KV_HEADS, WIDTH = 4, 2, 12


def discover() -> dict[str, type[Encoding]]:
    """The encoding that each file in encodings/ defines, by file name. The laws run for a new file automatically."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        if path.stem not in ("base", "pattern"):
            module = importlib.import_module(f"bearings.encodings.{path.stem}")
            own = [
                thing
                for thing in vars(module).values()
                if inspect.isclass(thing) and issubclass(thing, Encoding) and thing.__module__ == module.__name__
            ]
            assert len(own) == 1, f"encodings/{path.name} defines {len(own)} encodings, one is expected"
            found[path.stem] = own[0]
    return found


ENCODINGS = discover()
# The last encoding of each mechanism: of those with the same `forward` and `encode_query`.
MECHANISMS = list({(kind.forward, kind.encode_query): name for name, kind in ENCODINGS.items()}.values())


@pytest.fixture(scope="module")
def one_thread():
    """Tensors this small lose time to threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Inputs(NamedTuple):
    x: Tensor  # [B, T, C]
    q: Tensor  # [B, T, H, D]
    k: Tensor  # [B, T, Hkv, D]
    v: Tensor  # [B, T, Hkv, D]

    def part(self, start: int, end: int) -> "Inputs":
        return Inputs(*(tensor[:, start:end] for tensor in self))


def make_inputs(length: int, head_dim: int = 16, batch: int = 2, seed: int = 0, dtype=torch.float64) -> Inputs:
    draw = torch.Generator().manual_seed(seed)
    shapes = [(batch, length, WIDTH)] + [(batch, length, heads, head_dim) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    return Inputs(*(torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype) for shape in shapes))


def make_encoding(name: str, head_dim: int = 16, dtype=torch.float64, **options) -> Encoding:
    """With parameters as large as a trained model's: with initial ones, all gates and reflections are nearly equal."""
    torch.manual_seed(1)
    encoding = ENCODINGS[name](WIDTH, HEADS, KV_HEADS, head_dim, **options).to(dtype)
    with torch.no_grad():
        for parameter_name, parameter in encoding.named_parameters():
            if parameter_name != "delta":  # uniform over its range already
                parameter.normal_(std=0.5)
    return encoding


def shared_by(encoding: Encoding) -> SharedModule | None:
    """The module that layers with this encoding share, in evaluation, with the same parameters in every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = encoding.shared_module()
    return None if module is None else module.double().eval()


def attend(
    encoding: Encoding,
    inputs,
    state: State | None = None,
    documents: Tensor | None = None,
    medium: Tensor | None = None,
) -> Tensor:
    """The encoding's output in the context that a Transformer would make for it; `documents [B, T]` integers."""
    x, q, k, v = inputs
    packed = None if documents is None else Documents.of(documents)
    context = Context.of(encoding, q, state, packed, medium).sharing(shared_by(encoding))
    out = encoding(x, q, k, v, context, state)
    return out if encoding.value_dim == v.shape[-1] else with_passed_on(encoding, x, out, context)


def with_passed_on(encoding: Encoding, x: Tensor, out: Tensor, context: Context) -> Tensor:
    """Attention's output and what the layer passes on if its MLP returns x, relative to what it started from."""
    start = encoding.start(context, out)
    passed = encoding.updated(start, out[..., encoding.head_dim :], x)
    cos, sin = start.chunk(2, -1)
    relative = rotate_by(passed, cos, -sin).repeat_interleave(encoding.heads // encoding.kv_heads, 2)
    return torch.cat([out[..., : encoding.head_dim], relative.to(out.dtype)], -1)


def make_documents(lengths: list[int], batch: int = 2) -> Tensor:
    """`[batch, sum(lengths)]`, with reversed lengths in the second row. The first id occurs again at the end."""
    rows = [lengths if row % 2 == 0 else lengths[::-1] for row in range(batch)]
    ids = [[n % 3 for n, length in enumerate(row) for _ in range(length)] for row in rows]
    return torch.tensor(ids)


def oracle(name: str, encoding: Encoding, inputs: Inputs, positions: Tensor | None = None) -> Tensor | None:
    """`kernels/reference.py` with the encoding's own parameters; None for an encoding that it does not know."""
    x, q, k, v = inputs
    positions = torch.arange(q.shape[1]) if positions is None else positions
    if name == "nope":
        return reference.nope_attention(q, k, v)
    if name == "rope":
        return reference.rope_attention(q, k, v, positions, encoding.base)
    if name in ("partial_rope", "p_rope", "hope_high_frequency", "gridpe"):
        return reference.rope_attention(q, k, v, positions, encoding.frequencies())
    if name == "pope":
        return reference.pope_attention(q, k, v, positions, encoding.delta.clamp(-2 * torch.pi, 0), encoding.base)
    if name == "fox":
        return reference.fox_attention(q, k, v, encoding.gate.projection(x).sigmoid().log())
    if name in TURNED:
        return reference.turned_attention(q, k, v, TURNED[name](encoding, x))
    if name == "axial_rope":
        return reference.turned_attention(q, k, v, axial_phases(encoding, positions))
    if name == "path":
        return reference.path_attention(q, k, v, *reflections(encoding, x))
    if name == "path_fox":
        log_gates = encoding.gate.projection(x).sigmoid().log()
        return reference.path_fox_attention(q, k, v, *reflections(encoding, x), log_gates)
    expected = content_oracle(name, encoding, q, k, v)
    if expected is None:
        expected = cumulative_oracle(name, encoding, x, q, k, v)
    return distance_oracle(name, encoding, q, k, v) if expected is None else expected


def carope_phases(encoding: Encoding, x: Tensor) -> Tensor:
    frequency = 1 / (1 + torch.log1p((x @ encoding.projection.weight.T + encoding.projection.bias).exp()))
    return torch.stack([frequency**c for c in range(1, encoding.head_dim // 2 + 1)], -1).cumsum(1)


def selective_rope_phases(encoding: Encoding, x: Tensor) -> Tensor:
    """With the default options, by PyTorch's convolution."""
    slices = x.unflatten(-1, (encoding.kv_heads, -1))
    x = (slices / (slices.square().sum(-1, keepdim=True) + 1e-6).sqrt()).flatten(-2)
    omega = convolved(x @ encoding.down.weight.T @ encoding.up.weight.T, encoding.taps)
    omega = omega.unflatten(-1, (encoding.kv_heads, encoding.head_dim // 2)).cumsum(1)
    return omega * rope_frequencies(encoding)


def axial_phases(encoding: Encoding, positions: Tensor) -> Tensor:
    """Of one row, for all key heads."""
    size, columns = encoding.head_dim, encoding.columns
    places = [divmod(position - 1, columns) for position in positions.tolist()]
    table = [[axis * encoding.base ** (-4 * c / size) for axis in place for c in range(size // 4)] for place in places]
    return torch.tensor(table, dtype=torch.float64)[None, :, None].expand(1, -1, encoding.kv_heads, -1)


def rope_frequencies(encoding: Encoding) -> Tensor:
    return encoding.base ** (-torch.arange(0, encoding.head_dim, 2, dtype=torch.float64) / encoding.head_dim)


def repo_phases(encoding: Encoding, x: Tensor) -> Tensor:
    gate = x @ encoding.gate.weight.T
    position = (gate * gate.sigmoid() * (x @ encoding.content.weight.T)) @ encoding.position.weight.T
    return position.unsqueeze(-1) * rope_frequencies(encoding)


TURNED = {
    "carope": carope_phases,
    "selective_rope": selective_rope_phases,
    "repo": repo_phases,
    "grape_multiplicative": step_phases,
}


def convolved(u: Tensor, taps: Tensor) -> Tensor:
    """Causal depthwise convolution of `u [B, T, channels]` by PyTorch; row 0 of `taps` weighs the newest token."""
    weight = taps.flip(0).T.unsqueeze(1)
    return torch.nn.functional.conv1d(u.mT, weight, padding=len(taps) - 1, groups=u.shape[-1])[..., : u.shape[1]].mT


def reflections(encoding: Encoding, x: Tensor) -> tuple[Tensor, Tensor]:
    """PaTH's w and beta from its parameters, by PyTorch's convolution."""
    weights = encoding.projection.parts()
    w = x @ weights["direction"].T
    if encoding.direction is not None:
        w = w @ encoding.direction.weight.T
    w = convolved(w, encoding.taps)
    w = (w * w.sigmoid()).unflatten(-1, (encoding.kv_heads, encoding.head_dim))
    w = w / (w.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    return w, encoding.beta_max * (x @ weights["strength"].T + encoding.strength_bias).sigmoid()
