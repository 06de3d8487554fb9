"""Bias by distance, windows and log-sum-exp in Triton kernels, compared with a dense computation in float64."""

import math

import pytest
import torch
from encodings_support import Inputs, attend, make_encoding, make_inputs, one_thread  # noqa: F401
from fused_support import DEVICE, DTYPES, GPU, draw, outcome, poisoned_memory  # noqa: F401

from bearings.kernels import choice
from bearings.kernels.attention.distance import distance_attention
from bearings.kernels.attention.merge import attention_lse, merge
from bearings.kernels.attention.nope import nope_attention
from bearings.kernels.attention.plain import causal_attention
from bearings.kernels.attention.rope import rope_attention
from bearings.kernels.documents import Documents

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("one_thread", "poisoned_memory")

WINDOW, PACKED = 9, [5, 1, 40, 24]
# Queries, keys, entries of the table, limits.
CASES = [(70, 70, 70, None), (70, 70, 20, PACKED), (20, 75, 80, WINDOW), (40, 130, 8, 100), (20, 40, 1, None)]
if GPU:
    CASES += [(1000, 1000, 1000, None), (1000, 1000, 114, None), (500, 1000, 300, 200), (4096, 4096, 4096, None)]


def make_limits(limits: int | list[int] | None, keys: int) -> Documents | None:
    if isinstance(limits, list):
        ids = torch.arange(len(limits)).repeat_interleave(torch.tensor(limits))
        return Documents.of(torch.stack([ids, (len(limits) - ids).flip(0)]).to(DEVICE))
    return None if limits is None else Documents.single(2, keys, DEVICE).within(limits)


def make_case(queries, keys, entries, dtype, heads=(2, 1)) -> dict:
    return {**draw("nope", queries, keys, 16, dtype, heads), "table": torch.randn(heads[0], entries, device=DEVICE)}


def kernel(i: dict, documents: Documents | None) -> torch.Tensor:
    return distance_attention(i["q"], i["k"], i["v"], i["table"], documents, implementation="triton")


def dense(i: dict, documents: Documents | None) -> torch.Tensor:
    """PyTorch's attention with a matrix of biases, in the inputs' own dtype."""
    return causal_attention(i["q"], i["k"], i["v"], documents, bias=dense_bias(i).to(i["q"].dtype))


def dense_bias(i: dict) -> torch.Tensor:
    keys = torch.arange(i["k"].shape[1], device=DEVICE)
    distances = (keys[-i["q"].shape[1] :, None] - keys).clamp(0, i["table"].shape[1] - 1)
    return i["table"][:, distances].expand(i["q"].shape[0], -1, -1, -1)


def in_float64(i: dict) -> dict:
    return {name: x.double() for name, x in i.items()}


def assert_within_budget(found: dict, low: dict, high: dict, dtype: torch.dtype, grad: torch.Tensor) -> None:
    """Errors are at most twice those of the dense computation in `dtype`, plus rounding."""
    for what, wanted in high.items():
        size = max(wanted.norm().item(), grad.norm().item())
        error, budget = ((x[what] - wanted).norm().item() / size for x in (found, low))
        assert error <= 2 * budget + 2 * torch.finfo(dtype).eps, f"{what}: error {error:.1e}, dense {budget:.1e}"


@pytest.mark.parametrize(("queries", "keys", "entries", "limits"), CASES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bias_error_is_within_budget(queries, keys, entries, limits, dtype):
    if not GPU and dtype != torch.float32 and entries != 8:
        pytest.skip("one case in half precision is enough for the interpreter")
    inputs, documents = make_case(queries, keys, entries, dtype), make_limits(limits, keys)
    grad = torch.randn(inputs["q"].shape, device=DEVICE).to(dtype)
    found, low = (outcome(lambda i, f=f: f(i, documents), inputs, grad) for f in (kernel, dense))
    high = outcome(lambda i: dense(i, documents), in_float64(inputs), grad.double())
    assert_within_budget(found, low, high, dtype, grad)


@pytest.mark.parametrize(("new", "heads"), [(1, (2, 2)), (3, (2, 1))])
@pytest.mark.parametrize("limits", [None, 20])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decoding_with_bias(new, heads, limits, dtype):
    inputs, documents = make_case(new, 140, 30 if limits is None else 140, dtype, heads=heads), make_limits(limits, 140)
    with torch.no_grad():
        found, low = ({"out": f(inputs, documents).double()} for f in (kernel, dense))
        high = {"out": dense(in_float64(inputs), documents)}
    assert_within_budget(found, low, high, dtype, torch.zeros(1))


@pytest.mark.parametrize("operator", [nope_attention, rope_attention], ids=["nope", "rope"])
@pytest.mark.parametrize(("queries", "needs_gradient"), [(20, True), (3, True), (3, False), (1, False)])
def test_window_with_cache(operator, queries, needs_gradient):
    inputs, documents = draw("nope", queries, 75, 16, torch.float32, (2, 2)), make_limits(40, 75)
    grad = torch.randn(inputs["q"].shape, device=DEVICE)

    def attend(implementation):
        call = lambda i: operator(i["q"], i["k"], i["v"], documents=documents, implementation=implementation)  # noqa: E731
        with torch.set_grad_enabled(needs_gradient):
            return outcome(call, inputs, grad) if needs_gradient else {"out": call(inputs)}

    found, wanted = attend("triton"), attend("torch")
    for what, x in wanted.items():
        torch.testing.assert_close(found[what], x, rtol=1e-4, atol=1e-5)


def test_infinite_biases_equal_a_window():
    inputs = make_case(40, 40, 40, torch.float32)
    inputs["table"][:, WINDOW:] = -math.inf
    grad = torch.randn(inputs["q"].shape, device=DEVICE)
    short = {**inputs, "table": inputs["table"][:, : WINDOW + 1]}
    hidden = outcome(lambda i: kernel(i, None), inputs, grad)
    limited = outcome(lambda i: kernel(i, make_limits(WINDOW, 40)), inputs, grad)
    tail = outcome(lambda i: kernel(i, None), short, grad)
    assert not hidden["table"][:, WINDOW:].any()
    for what, x in limited.items():
        torch.testing.assert_close(hidden[what], x, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(tail[what], x[:, : WINDOW + 1] if what == "table" else x, rtol=1e-4, atol=1e-5)


def test_agrees_with_torch_implementation():
    inputs, documents = make_case(9, 20, 6, torch.float32), make_limits(12, 20)
    grad = torch.randn(inputs["q"].shape, device=DEVICE)
    found = outcome(lambda i: kernel(i, documents), inputs, grad)
    wanted = outcome(
        lambda i: distance_attention(*i.values(), documents, implementation="torch"), in_float64(inputs), grad.double()
    )
    for what, x in wanted.items():
        torch.testing.assert_close(found[what], x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("implementation", ["triton", "torch"])
def test_merge_equals_one_softmax(implementation):
    """Merge attention to a window with attention to the keys before it."""
    inputs = make_case(40, 40, 40, torch.float32)
    documents, grad = make_limits(WINDOW, 40), torch.randn(2, 40, 2, 16, device=DEVICE)
    keys = torch.arange(40, device=DEVICE)
    before = keys[:, None] - keys >= WINDOW

    def merged(i):
        near = attention_lse(*i.values(), documents, implementation=implementation)
        scores = torch.einsum("bthd,bshd->bhts", i["q"], i["k"].repeat_interleave(2, 2)) / 4 + dense_bias(i)
        scores = scores.masked_fill(~before, -1e30)
        lse = scores.logsumexp(-1)
        far = torch.einsum("bhts,bshd->bthd", (scores - lse.unsqueeze(-1)).exp(), i["v"].repeat_interleave(2, 2))
        lse = lse.masked_fill(~before.any(-1), -math.inf)
        return merge([near, (far, lse.mT)])[0]

    found = outcome(merged, inputs, grad)
    wanted = outcome(lambda i: dense(i, None), in_float64(inputs), grad.double())
    for what, x in wanted.items():
        torch.testing.assert_close(found[what], x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 7])
def test_prefill_and_decoding_of_an_encoding(window):
    """The kernels in an encoding, with a cache, equal a full pass in PyTorch."""
    options = {"dtype": torch.float32, "window": window, "buckets": 4, "max_distance": 9}
    inputs = Inputs(*(x.to(DEVICE) for x in make_inputs(20, dtype=torch.float32)))
    with torch.no_grad():
        wanted = attend(make_encoding("t5", implementation="torch", **options).to(DEVICE), inputs)
        encoding = make_encoding("t5", implementation="triton", **options).to(DEVICE)
        state = encoding.new_state(2, 20, inputs.q)
        parts = [attend(encoding, inputs.part(*part), state) for part in ((0, 12), (12, 15), (15, 19), (19, 20))]
    torch.testing.assert_close(torch.cat(parts, 1), wanted, rtol=1e-4, atol=1e-5)


def test_gradients_are_deterministic():
    length = 2000 if GPU else 40
    inputs, documents = make_case(length, length, 50, DTYPES[-1]), make_limits(30, length)
    grad = torch.randn(inputs["q"].shape, device=DEVICE)
    first, *others = (outcome(lambda i: kernel(i, documents), inputs, grad) for _ in range(4 if GPU else 2))
    assert all(torch.equal(other[what], first[what]) for other in others for what in first)


def test_table_without_gradient_is_not_differentiated(monkeypatch):
    from bearings.kernels.attention import flash

    monkeypatch.setattr(flash, "sums_by_distance", None)
    i = make_case(5, 5, 5, torch.float32)
    i["q"].requires_grad_()
    kernel(i, None).sum().backward()
    assert i["q"].grad.any()


def test_opcheck_with_bias():
    from bearings.kernels.attention.decode import decode
    from bearings.kernels.attention.fused import attention

    i, borders = make_case(4, 8, 6, torch.float32), make_limits(5, 8).borders
    leaves = [i[x].requires_grad_() for x in ("q", "k", "v")]
    given = (*leaves, None, None, i["table"].requires_grad_(), borders, None, None)
    given += ("plain", (), 0.25, "triton", "triton")
    torch.library.opcheck(attention.registered, given)
    i = {name: x.detach() for name, x in i.items()}
    torch.library.opcheck(
        decode.registered, (i["q"], i["k"], i["v"], None, None, i["table"], borders, "plain", (), 0.25)
    )


def test_compiled_in_one_graph_equals_eager():
    torch.compiler.reset()
    inputs, documents = make_case(8, 8, 6, torch.float32), make_limits(5, 8)
    grad = torch.randn(inputs["q"].shape, device=DEVICE)
    call = lambda i: kernel(i, documents)  # noqa: E731
    compiled = torch.compile(call, fullgraph=True, backend="inductor" if GPU else "aot_eager")
    wanted, found = (outcome(f, inputs, grad) for f in (call, compiled))
    for what, x in wanted.items():
        torch.testing.assert_close(found[what], x, rtol=1e-4, atol=1e-5)


def test_cudnn_is_refused():
    device, needs = torch.device("cuda"), choice.Needs(64, 64, 64)
    for given, reason in (({"bias": True}, "a bias by distance"), ({"lse": True}, "gradient of the log-sum-exp")):
        inputs = torch.float16, needs._replace(**given), 8, 8, False, True
        assert reason in choice._against_library("cudnn", device, *inputs)
    with pytest.raises(ValueError, match="table \\[3, 5\\] with 4 query heads: it needs one row per query head"):
        distance_attention(*draw("nope", 5, 5, 16, torch.float32).values(), torch.zeros(3, 5, device=DEVICE))
