"""The kernels of PaTH for Hopper: which calls they are chosen for, and their results beside the portable kernels."""

from importlib import import_module

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")
call, calls, far, forward, prepare, pull, sizes = (
    import_module(f"bearings.kernels.path.{name}")
    for name in ("call", "hopper_calls", "far", "forward", "prepare", "pull", "sizes")
)
gates_of = import_module("bearings.kernels.attention.gates").gates_of
row_of = import_module("bearings.kernels.layout").row_of
LENGTHS = [(128, 1, False), (200, 2, True), (1000, 4, True), (2100, 2, False)]
CHANGES = {
    "float32": {"dtype": torch.float32},
    "a single block": {"length": 64},
    "padded heads": {"head_dim": 96},
    "wider values": {"value_dim": 128},
    "documents": {"first": torch.zeros(1)},
    "borders": {"bordered": True},
}


HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
on_hopper_only = pytest.mark.skipif(
    not HOPPER or not calls.triton.__version__.startswith(calls.GLUON),
    reason=f"needs compute capability 9.0 and Triton {calls.GLUON}x",
)


@pytest.fixture
def always(monkeypatch):
    """Rows of any length are long enough."""
    monkeypatch.setattr(forward, "HOPPER_FROM", {64: 1, 128: 1})
    monkeypatch.setattr(forward, "GATED_HOPPER_FROM", {64: 1, 128: 1})
    monkeypatch.setattr(far, "HOPPER_FROM", {128: 1})


class OnGPU(torch.Tensor):
    """A tensor on the CPU that claims to be on a GPU."""

    device = torch.device("cuda")


def example(
    length=256, head_dim=64, value_dim=None, dtype=torch.float16, kv_heads=2, fused=False, device="cpu",
    bordered=False, batch=2, gated=False, **more,
):  # fmt: skip
    """A call with 4 query heads."""
    generator = torch.Generator(device).manual_seed(length + head_dim)
    widths = head_dim, head_dim, value_dim or head_dim, head_dim
    heads = 4, kv_heads, kv_heads, kv_heads
    q, k, v, w = (
        torch.randn(batch, length, *size, device=device, generator=generator)
        for size in zip(heads, widths, strict=True)
    )
    if fused:
        q, k, v = torch.cat([q, k, v], 2).to(dtype).split(heads[:3], 2)
    q, k, v, w = (x.to(dtype) for x in (q, k, v, F.normalize(w, dim=-1)))
    beta = 1.98 * torch.rand(batch, length, kv_heads, device=device, generator=generator)
    own = sizes.sizes_of(q, k, v, bordered=bordered)._replace(q_row=row_of(q), kv_row=row_of(k))
    if gated:
        steps = torch.rand(batch, length, 4, device=device, dtype=torch.float64, generator=generator)
        more["high"], more["low"] = gates_of((-0.005 * steps).cumsum(1), own.padded)
    return call.Call(q, k, v, w, beta, head_dim**-0.5, own, **more)


def distance(x, y):
    return ((x.double() - y.double()).norm() / y.double().norm()).item()


def on_hopper(made, monkeypatch, capability=(9, 0), version="3.6.0"):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(calls.triton, "__version__", version)
    return forward.suits_hopper(made._replace(q=made.q.as_subclass(OnGPU)))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_chosen_on_hopper_for_long_rows(head_dim, monkeypatch):
    monkeypatch.setitem(forward.HOPPER_FROM, head_dim, 257)
    assert on_hopper(example(257, head_dim), monkeypatch)
    assert not on_hopper(example(256, head_dim), monkeypatch)


@pytest.mark.parametrize("change", CHANGES)
def test_portable_kernel_for_other_calls(change, always, monkeypatch):
    assert not on_hopper(example(**CHANGES[change]), monkeypatch)


@pytest.mark.parametrize("other", [{"capability": (10, 0)}, {"capability": (8, 0)}, {"version": "3.7.0"}])
def test_portable_kernel_elsewhere(other, always, monkeypatch):
    assert not on_hopper(example(), monkeypatch, **other)


def test_portable_kernel_on_the_cpu(always):
    assert not forward.suits_hopper(example())


def gradients_on_hopper(made, monkeypatch, since):
    on_hopper(made, monkeypatch)
    up = call.Upstream(torch.empty_like(made.q), *[torch.empty(0)] * 2)
    return calls.gradients_on_hopper(made._replace(q=made.q.as_subclass(OnGPU)), up, since)


def test_gradients_chosen_on_hopper_for_long_rows(monkeypatch):
    assert gradients_on_hopper(example(2049, 128, batch=1), monkeypatch, {128: 2049})
    assert not gradients_on_hopper(example(2048, 128, batch=1), monkeypatch, {128: 2049})
    assert not gradients_on_hopper(example(8192, 64, batch=1), monkeypatch, {128: 2049})


def test_gradients_of_several_sequences_need_complete_chunks(monkeypatch):
    assert gradients_on_hopper(example(2048, 128), monkeypatch, {128: 1})
    assert not gradients_on_hopper(example(2047, 128), monkeypatch, {128: 1})


def test_gradients_of_a_part_of_a_sequence_are_not_supported(monkeypatch):
    assert not gradients_on_hopper(example(4096, 128, bordered=True, batch=1), monkeypatch, {128: 1})


def test_gradients_of_a_single_chunk_are_not_supported(monkeypatch):
    assert not gradients_on_hopper(example(1024, 128), monkeypatch, {128: 1})


def test_gates_have_their_own_lengths(monkeypatch):
    monkeypatch.setattr(forward, "HOPPER_FROM", {64: 1})
    monkeypatch.setattr(forward, "GATED_HOPPER_FROM", {64: 257})
    assert on_hopper(example(257, 64, high=torch.zeros(1)), monkeypatch)
    assert not on_hopper(example(256, 64, high=torch.zeros(1)), monkeypatch)
    assert on_hopper(example(256, 64), monkeypatch)


@pytest.mark.gpu
@on_hopper_only
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(("length", "kv_heads", "fused"), LENGTHS)
def test_agrees_with_portable_kernel(length, kv_heads, fused, keep, head_dim, dtype, gated, always):
    made = example(length, head_dim, None, dtype, kv_heads, fused, "cuda", gated=gated)
    assert forward.suits_hopper(made)
    prepared = prepare.prepare(made.k, made.w, made.beta, made.sizes, keep)
    got, expected = forward.forward(made, prepared, keep), forward.portable_forward(made, prepared, keep)
    eps = torch.finfo(dtype).eps
    assert distance(got[0], expected[0]) < eps
    live = torch.arange(made.sizes.padded, device="cuda") < length
    assert (got[1][:, live] - expected[1][:, live]).abs().max() < 1e-2
    assert (got[1][:, ~live] == float("inf")).all()
    if keep and made.sizes.pairs:
        assert distance(got[2].q_bar, expected[2].q_bar) < eps


@pytest.mark.gpu
@on_hopper_only
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("length", "batch", "kv_heads", "fused"), [(2048, 2, 4, True), (3500, 1, 2, False)])
def test_far_gradients_agree_with_portable_kernels(length, batch, kv_heads, fused, dtype, gated, always, monkeypatch):
    made = example(length, 128, None, dtype, kv_heads, fused, "cuda", batch=batch, gated=gated)
    prepared = prepare.prepare(made.k, made.w, made.beta, made.sizes, True)
    out, lse, pulled = forward.portable_forward(made, prepared, True)
    dout = torch.randn(out.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(0)).to(dtype)
    (_, q_bar), up = pull.pull(made, prepared, pulled, out, dout, lse)
    m = prepare.pairs_of(prepared.nodes, made.sizes, dtype)
    assert calls.gradients_on_hopper(made, up, far.HOPPER_FROM)

    def gradients():
        dv, dc = torch.empty_like(made.v), torch.ones_like(up.lse) if gated else None
        dq_bar, dproduct = far.far_queries(made, up, prepared, m, q_bar)
        dk_bar = far.far_keys(made, up, prepared, m, q_bar, dv, dc)
        return dq_bar, dproduct, dk_bar, dv, *([dc] if gated else [])

    got, again = gradients(), gradients()
    monkeypatch.setattr(far, "HOPPER_FROM", {})
    for x, same, y in zip(got, again, gradients(), strict=True):
        assert torch.equal(x, same)
        assert (x.double() - y.double()).norm() <= torch.finfo(dtype).eps * y.double().norm()
