"""PaTH attention by parts of a sequence, as ranks that share rows compute it, compared with the whole sequence."""

import math
from functools import partial
from importlib import import_module

import pytest
import torch
from encodings_support import Inputs, attend, make_encoding, make_inputs, one_thread  # noqa: F401
from path_support import new_launches  # noqa: F401
from torch._subclasses.fake_tensor import FakeTensorMode

from bearings.kernels.attention.fox import cumulative_log_gates
from bearings.kernels.attention.past import past_attention
from bearings.kernels.path.attention import path_attention
from bearings.kernels.path.parts import Past, joined, path_part
from bearings.lightning_modules.exchange import Exchange
from bearings.lightning_modules.gathered_states import gathered_state

pytest.importorskip("triton")
path_flash, path_sizes = (import_module(f"bearings.kernels.path.{name}") for name in ("flash", "sizes"))

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
HALF = torch.bfloat16 if GPU else torch.float16  # the interpreter computes wrong bfloat16 products
pytestmark = pytest.mark.usefixtures("one_thread", "new_launches")


def draw(length, gated=False, depth=16, value_depth=16, heads=2):
    """q, k, v, w and beta in float64, and logits of gates or None; `heads` key heads, each with two query heads."""
    torch.manual_seed(length)
    random = partial(torch.randn, dtype=torch.float64, device=DEVICE)
    sizes = (2 * heads, depth), (heads, depth), (heads, value_depth), (heads, depth)
    q, k, v, w = (random(1, length, *size) for size in sizes)
    # Reflections that keep lengths, with beta near 0 or 2, and open gates: tokens of other parts count.
    beta = 0.01 + 1.98 * torch.rand(1, length, heads, dtype=torch.float64, device=DEVICE).round()
    return q, k, v, w / w.norm(dim=-1, keepdim=True), beta, random(1, length, 2 * heads) + 6 if gated else None


def whole(q, k, v, w, beta, logits, implementation):
    sums = None if logits is None else cumulative_log_gates(logits)
    return path_attention(q, k, v, w, beta, q.shape[-1] ** -0.5, None, sums, implementation)


def by_parts(q, k, v, w, beta, logits, implementation, size):
    """`whole` of parts of `size` tokens."""
    outs, past = [], Past([], [], [], None if logits is None else [])
    for begin in range(0, q.shape[1], size):
        own = [x[:, begin : begin + size] for x in (q, k, v, w, beta)]
        sums = None if logits is None else cumulative_log_gates(logits[:, begin : begin + size])
        part = path_part(*own, q.shape[-1] ** -0.5, sums, implementation)
        outs.append(joined(part, past, sums, implementation))
        given = (part.keys, own[2], part.product, *([] if sums is None else [sums]))
        for kept, x in zip(past, given, strict=False):
            kept.append(x)
    return torch.cat(outs, 1)


def results(function, inputs, dtype, implementation):
    """The output, and gradients of all inputs. beta and the logits are not rounded to 16 bits."""
    wide = torch.promote_types(dtype, torch.float32)
    dtypes = (*[dtype] * 4, wide, torch.float64)
    leaves = [x.to(each).requires_grad_() for x, each in zip(inputs, dtypes, strict=True) if x is not None]
    out = function(*leaves, *[None] * (6 - len(leaves)), implementation)
    torch.manual_seed(0)
    grad = torch.randn(out.shape, dtype=torch.float64, device=DEVICE).to(dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def error(got, expected):
    return ((got.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("length", "size"), [(90, 90), (90, 45), (100, 33), (7, 1)])
def test_parts_equal_the_whole_sequence(length, size, gated):
    inputs = draw(length, gated, value_depth=24)
    expected = results(whole, inputs, torch.float64, "torch")
    got = results(partial(by_parts, size=size), inputs, torch.float64, "torch")
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("length", "size", "longest", "short", "gated", "dtype"),
    [
        *((60, 20, None, 2048, True, dtype) for dtype in (torch.float32, HALF)),  # parts of one block, two key heads
        (280, 140, None, 2048, False, torch.float32),  # of one chunk of the kernels
        *((320, 300, 2, 2048, True, dtype) for dtype in (torch.float32, HALF)),  # of three and one, not all full
        *((300, 140, 2, 0, True, dtype) for dtype in (torch.float32, HALF)),  # of two, two and one, which are not saved
    ],
)
def test_kernels_by_parts_are_as_precise_as_on_the_whole(length, size, longest, short, gated, dtype, monkeypatch):
    for module in (path_flash, path_sizes):
        monkeypatch.setattr(module, "SHORT", short)
    monkeypatch.setattr(path_flash, "sizes_of", partial(path_flash.sizes_of, longest=longest))
    inputs = draw(length, gated, depth=48 if longest is None else 16, heads=2 if length == 60 else 1)
    expected = results(whole, inputs, torch.float64, "torch")
    got = results(partial(by_parts, size=size), inputs, dtype, "triton")
    budget = results(whole, inputs, dtype, "triton")
    names = ("out", "dq", "dk", "dv", "dw", "dbeta", "dlogits")
    for name, a, b, c in zip(names, got, expected, budget, strict=False):
        assert a.isfinite().all(), name
        assert error(a, b) < 2 * error(c, b) + torch.finfo(dtype).eps, name


def test_strong_gates_by_parts(monkeypatch):
    """Gates for which the sums fall by 1e5 within a part, after which nothing before it is seen."""
    *inputs, logits = draw(256, gated=True, heads=1)
    logits[:, 40] -= 1e5
    inputs = (*inputs, logits)
    expected = results(whole, inputs, torch.float64, "torch")
    for dtype, limit in ((torch.float32, 1e-5), (HALF, 1e-2)):
        got = results(partial(by_parts, size=128), inputs, dtype, "triton")
        for a, b in zip(got[:5], expected, strict=False):
            assert error(a, b) < limit


@pytest.mark.parametrize("name", ["path", "path_fox"])
def test_layer_by_chunks_with_kernels(name):
    """The kernels also convolve the inputs at the end of the chunk before, and give them gradients."""
    found = []
    for dtype, implementation, size in ((torch.float64, "torch", 90), (torch.float32, "triton", 30)):
        encoding = make_encoding(name, implementation=implementation).to(DEVICE, dtype)
        inputs = Inputs(*(x.to(DEVICE).requires_grad_() for x in make_inputs(90, dtype=dtype)))
        state, outs = None, []
        if size < 90:
            exchange = Exchange(1, lambda *given: given)  # one process computes all chunks in order
            state = gathered_state(encoding.new_state(1, 1, inputs.q), exchange)
        for begin in range(0, 90, size):
            if state is not None:
                state.length = begin
            outs.append(attend(encoding, inputs.part(begin, begin + size), state))
        out = torch.cat(outs, 1)
        found.append([out, *torch.autograd.grad(out.square().sum(), [*inputs, *encoding.parameters()])])
    for a, b in zip(*found, strict=True):
        assert error(b, a) < 1e-5


@pytest.mark.parametrize("implementation", ["torch", "triton"])
def test_autocast_does_not_round_products(implementation):
    def under_autocast(*given):
        with torch.autocast(DEVICE.type, torch.bfloat16):
            return by_parts(*given, size=40)

    plain = partial(by_parts, size=40)
    found = [
        results(each, draw(150, gated=True, heads=1), torch.float32, implementation) for each in (plain, under_autocast)
    ]
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(33, 150), (70, 40), (64, 64)])
def test_attention_to_the_past(queries, keys, gated):
    """Outputs, log-sum-exp and the gradients of both, with several query heads per key head."""
    torch.manual_seed(0)
    random = partial(torch.randn, dtype=torch.float64, device=DEVICE)
    q, k, v = random(2, queries, 4, 24), random(2, keys, 2, 24), random(2, keys, 2, 16)
    sums = random(2, keys, 4).abs().cumsum(1) if gated else None
    grads, found = (random(2, queries, 4, 16), random(2, queries, 4)), []
    for dtype, by_kernel in ((torch.float64, False), (torch.float32, True)):
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        leaves += [] if sums is None else [sums.clone().requires_grad_()]
        out, lse = past_attention(*leaves[:3], *leaves[3:] or [None], by_kernel)
        given = [x.to(y.dtype) for x, y in zip(grads, (out, lse), strict=True)]
        found.append([out, lse, *torch.autograd.grad((out, lse), leaves, given)])
    for a, b in zip(*found, strict=True):
        assert error(b, a) < 2e-6
    out, lse = past_attention(q.float(), k[:, :0].float(), v[:, :0].float(), None, True)
    assert (out.abs().sum(), lse.max()) == (0, -math.inf)
    scores = torch.einsum("bthd,bshd->bths", q, k.repeat_interleave(2, 2))
    scores = scores if sums is None else scores - sums.transpose(1, 2).unsqueeze(1)
    expected = torch.einsum("bths,bshd->bthd", scores.softmax(-1), v.repeat_interleave(2, 2))
    torch.testing.assert_close(found[0][0], expected, rtol=0.0, atol=1e-12)


def test_operators_are_registered():
    inputs = [x if x is None else x.float().requires_grad_() for x in draw(70)[:5]]
    utils = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(path_flash.path_forward.registered, (*inputs, 0.25, None, None, True), test_utils=utils)
    q, k, v = inputs[:3]
    past = import_module("bearings.kernels.attention.flash_past").past_forward
    torch.library.opcheck(past.registered, (q, k, v, None), test_utils=utils)


def test_a_part_with_gates_runs_only_operators():
    """A kernel that is launched elsewhere runs on the current GPU instead of that of its inputs."""
    *inputs, logits = draw(70, gated=True)
    given = *(x.to(HALF) for x in inputs), cumulative_log_gates(logits)
    with FakeTensorMode() as mode:  # lets operators of PyTorch pass, but no launch
        *fake, sums = map(mode.from_tensor, given)
        part = path_part(*fake, 0.25, sums, "triton")
    assert part.lse.shape == logits.shape
