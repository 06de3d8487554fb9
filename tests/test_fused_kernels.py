"""Triton's and cuDNN's kernels against the float64 oracle: on a GPU where there is one, else Triton's interpreter."""

import math

import pytest
import torch
from encodings_support import make_documents, make_encoding, make_inputs, one_thread  # noqa: F401
from torch import Tensor

from bearings.kernels import choice, reference
from bearings.kernels.attention import causal_attention
from bearings.kernels.fox import fox_attention
from bearings.kernels.nope import nope_attention
from bearings.kernels.pope import magnitude, pope_attention
from bearings.kernels.rope import rope_attention

triton = pytest.importorskip("triton")
tl = triton.language

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
BASE = 100.0
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * GPU  # the interpreter multiplies bfloat16 wrongly
on_gpu = pytest.mark.skipif(not GPU, reason="needs a CUDA GPU")
every_operator = pytest.mark.parametrize("name", ["nope", "rope", "pope", "fox"])
pytestmark = pytest.mark.usefixtures("one_thread", "poisoned_memory")


@pytest.fixture
def poisoned_memory():
    """Memory comes filled with NaN, so that an element nobody writes shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def draw(name: str, queries: int, keys: int, head_dim: int, dtype: torch.dtype, heads=(4, 2), batch=2) -> dict:
    """Inputs of one operator, rounded to `dtype` beforehand."""
    torch.manual_seed(queries + keys + head_dim)

    def random(*shape):
        return torch.randn(*shape, device=DEVICE)

    inputs = {"q": random(batch, queries, heads[0], head_dim).to(dtype)}
    inputs |= {x: random(batch, keys, heads[1], head_dim).to(dtype) for x in "kv"}
    if name == "pope":
        inputs["delta"] = -2 * math.pi * torch.rand(heads[1], head_dim, device=DEVICE)
    if name == "fox":
        inputs["gates"] = torch.nn.functional.logsigmoid(random(batch, keys, heads[0]).double() + 2)
    return inputs


def by_kernel(name: str, i: dict, documents: Tensor | None, implementation: str) -> Tensor:
    given = {"documents": documents, "implementation": implementation}
    if name == "nope":
        return nope_attention(i["q"], i["k"], i["v"], **given)
    if name == "rope":
        return rope_attention(i["q"], i["k"], i["v"], BASE, **given)
    if name == "pope":
        return pope_attention(i["q"], i["k"], i["v"], i["delta"], BASE, **given)
    return fox_attention(i["q"], i["k"], i["v"], i["gates"].cumsum(1), **given)


def plain(name: str, i: dict, documents: Tensor | None) -> Tensor:
    """PyTorch's operations in the inputs' own dtype."""
    if name != "fox":
        return by_kernel(name, i, documents, "torch")
    sums = i["gates"].cumsum(1).transpose(1, 2)
    bias = sums[..., -i["q"].shape[1] :].unsqueeze(-1) - sums.unsqueeze(-2)
    return causal_attention(i["q"], i["k"], i["v"], documents, bias=bias)


def exact(name: str, i: dict, documents: Tensor | None) -> Tensor:
    q, k, v, positions = i["q"], i["k"], i["v"], torch.arange(i["k"].shape[1], device=DEVICE)
    if name == "nope":
        return reference.nope_attention(q, k, v, documents)
    if name == "rope":
        return reference.rope_attention(q, k, v, positions, BASE, documents)
    if name == "pope":
        return reference.pope_attention(q, k, v, positions, i["delta"], BASE, documents)
    return reference.fox_attention(q, k, v, i["gates"], documents)


def outcome(function, inputs: dict, grad: Tensor) -> dict[str, Tensor]:
    """The output and the gradient of every input, in float64."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    out = function(leaves)
    out.backward(grad.to(out.dtype))
    return {"out": out.detach().double(), **{name: x.grad.double() for name, x in leaves.items()}}


def check_budget(name: str, inputs: dict, documents: Tensor | None, implementation: str) -> None:
    """The error is at most twice that of the plain computation, plus the rounding of dP and of its mean over a row.

    Where they cancel, as in a row of one key, the plain computation happens to be exact.
    """
    grad = torch.randn(inputs["q"].shape, device=DEVICE).to(inputs["q"].dtype)
    kernel = outcome(lambda i: by_kernel(name, i, documents, implementation), inputs, grad)
    low = outcome(lambda i: plain(name, i, documents), inputs, grad)
    high = outcome(lambda i: exact(name, i, documents), {n: x.double() for n, x in inputs.items()}, grad.double())
    for what, wanted in high.items():
        size = max(wanted.norm().item(), grad.norm().item())
        error, budget = ((found[what] - wanted).norm().item() / size for found in (kernel, low))
        rounding = 2 * torch.finfo(inputs["q"].dtype).eps
        assert error <= 2 * budget + rounding, f"{what}: error {error:.1e}, of the plain computation {budget:.1e}"


if GPU:
    SHAPES = [(length, length, 64) for length in (1, 2, 15, 16, 17, 63, 64, 65, 127, 200, 1000)]
    SHAPES += [(40, 40, head_dim) for head_dim in choice.HEAD_DIMS]
    SHAPES += [(40, 70, 64), (33, 130, 48), (17, 500, 128), (300, 1000, 96)]
else:
    SHAPES = [(1, 1, 16), (33, 33, 48), (20, 40, 16), (8, 8, 128)]


@every_operator
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("queries", "keys", "head_dim"), SHAPES)
def test_triton_keeps_its_budget(name, dtype, queries, keys, head_dim):
    if not GPU and dtype != torch.float32 and (queries, keys) != (20, 40):
        pytest.skip("one shape in half precision is enough for the interpreter")
    check_budget(name, draw(name, queries, keys, head_dim, dtype), None, "triton")


@every_operator
@pytest.mark.parametrize("heads", [(4, 4), (4, 1), (3, 3)] if GPU else [(3, 1)])
def test_triton_groups_heads(name, heads):
    check_budget(name, draw(name, 35, 35, 16, DTYPES[-1] if GPU else torch.float32, heads), None, "triton")


@every_operator
@pytest.mark.parametrize("lengths", [[5, 1, 29, 14], [70], [64, 6]] if GPU else [[5, 1, 29, 14]])
def test_triton_keeps_packed_documents_apart(name, lengths):
    ids = torch.arange(len(lengths), device=DEVICE).repeat_interleave(torch.tensor(lengths, device=DEVICE))
    documents = torch.stack([ids, (len(lengths) - ids).flip(0)])
    for dtype in DTYPES if GPU else DTYPES[:1]:
        check_budget(name, draw(name, sum(lengths), sum(lengths), 16, dtype), documents, "triton")


@on_gpu
@pytest.mark.parametrize("name", ["nope", "rope", "pope"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("implementation", ["cudnn", "auto"])
@pytest.mark.parametrize(("queries", "keys", "head_dim"), [s for s in SHAPES if s[0] == s[1] > 1])
def test_cudnn_keeps_its_budget(name, dtype, implementation, queries, keys, head_dim):
    check_budget(name, draw(name, queries, keys, head_dim, dtype), None, implementation)


@every_operator
@pytest.mark.parametrize(("new", "heads"), [(1, (2, 2)), (1, (4, 1)), (3, (4, 2))])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decoding_keeps_its_budget(name, new, heads, dtype):
    for keys, head_dim in [(new + 1, 16), (140, 48)] if not GPU else [(new + 1, 16), (70, 48), (5000, 128)]:
        inputs = draw(name, new, keys, head_dim, dtype, heads)
        with torch.no_grad():
            out, low = by_kernel(name, inputs, None, "triton").double(), plain(name, inputs, None).double()
            wanted = exact(name, {n: x.double() for n, x in inputs.items()}, None)
        error, budget = ((found - wanted).norm() / wanted.norm() for found in (out, low))
        assert error <= 2 * budget + torch.finfo(dtype).eps, f"T={keys} D={head_dim}: {error:.1e}, plain {budget:.1e}"


@every_operator
def test_decoding_by_a_length_on_the_device_ignores_the_rest_of_the_cache(name):
    from bearings.kernels.decode import decode

    inputs = draw(name, 2, 90, 32, torch.float32)
    with torch.no_grad():
        wanted = by_kernel(name, inputs, None, "triton")
    k, v = (torch.cat([inputs[x], torch.full_like(inputs[x], math.nan)], 1) for x in "kv")
    sums = inputs["gates"].cumsum(1) if name == "fox" else None
    sums = None if sums is None else torch.cat([sums, torch.full_like(sums, math.nan)], 1)
    form, delta = {"rope": "rotary", "pope": "polar"}.get(name, "plain"), inputs.get("delta")
    length = torch.tensor(90, device=DEVICE, dtype=torch.int32)
    got = decode(inputs["q"], k, v, delta, sums, length, form, BASE, 32**-0.5)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("implementation", ["triton", "torch"])
@pytest.mark.parametrize("queries", [1, 3, 20])
def test_pope_of_magnitudes_is_pope_of_keys(queries, implementation):
    inputs = draw("pope", queries, 40, 16, torch.float32)
    grad = torch.randn(inputs["q"].shape, device=DEVICE)

    def attend(i, magnitudes):
        k = magnitude(i["k"]) if magnitudes else i["k"]
        given = {"implementation": implementation, "magnitudes": magnitudes}
        return pope_attention(i["q"], k, i["v"], i["delta"], BASE, **given)

    wanted, got = (outcome(lambda i, m=m: attend(i, m), inputs, grad) for m in (False, True))
    with torch.no_grad():
        got["decoded"], wanted["decoded"] = attend(inputs, True).double(), wanted["out"]
    for name, x in wanted.items():
        torch.testing.assert_close(got[name], x, rtol=1e-4, atol=1e-5)


@on_gpu
@every_operator
def test_a_cuda_graph_decodes_while_the_cache_fills(name):
    from bearings.kernels.decode import decode

    inputs = draw(name, 1, 300, 64, torch.bfloat16, heads=(4, 4))
    sums = inputs["gates"].cumsum(1) if name == "fox" else None
    form, delta = {"rope": "rotary", "pope": "polar"}.get(name, "plain"), inputs.get("delta")
    length = torch.tensor(1, device=DEVICE, dtype=torch.int32)
    arguments = (*(inputs[x] for x in "qkv"), delta, sums, length, form, BASE, 0.125)
    decode(*arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = decode(*arguments)
    for filled in (1, 2, 64, 65, 299, 300):
        length.fill_(filled)
        graph.replay()
        part = {n: x[:, :filled] if n in ("k", "v", "gates") else x for n, x in inputs.items()}
        with torch.no_grad():
            wanted = by_kernel(name, part, None, "triton")
        torch.testing.assert_close(out, wanted, rtol=2e-2, atol=2e-3)


@every_operator
def test_strided_inputs_and_an_expanded_gradient(name):
    inputs = draw(name, 20, 20, 16, torch.float32)
    strided = {
        n: torch.stack([x, torch.full_like(x, math.nan)], -1)[..., 0] if n in "qkv" else x for n, x in inputs.items()
    }
    transposed = {n: x.transpose(1, 2).contiguous().transpose(1, 2) if n in "qkv" else x for n, x in inputs.items()}
    results = []
    for given in (inputs, strided, transposed):
        leaves = {n: x.detach().requires_grad_() for n, x in given.items()}
        by_kernel(name, leaves, None, "triton").sum().backward()
        results.append([x.grad for x in leaves.values()])
    for result in results[1:]:
        for got, wanted in zip(result, results[0], strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@every_operator
def test_two_runs_of_the_same_gradient_agree_bit_for_bit(name):
    length = 2000 if GPU else 20
    inputs = draw(name, length, length, 64 if GPU else 16, DTYPES[-1])
    grad = torch.randn(inputs["q"].shape, device=DEVICE)
    first, *others = (
        outcome(lambda i: by_kernel(name, i, None, "triton"), inputs, grad) for _ in range(4 if GPU else 2)
    )
    assert all(torch.equal(other[what], first[what]) for other in others for what in first)


def test_phases_are_exact_far_out():
    from bearings.kernels.angles import cos_sin, turns_per_token

    global angles_kernel

    @triton.jit
    def angles_kernel(POSITIONS, TURNS, COS, SIN):
        i = tl.arange(0, 16)
        cos, sin = cos_sin(tl.load(POSITIONS + i)[:, None] * tl.load(TURNS + i)[None, :])
        tl.store(COS + i[:, None] * 16 + i[None, :], cos)
        tl.store(SIN + i[:, None] * 16 + i[None, :], sin)

    angles_kernel.fn.__globals__["cos_sin"] = cos_sin
    positions = torch.cat([torch.arange(8), 10 ** torch.arange(8)]).to(DEVICE)
    cos, sin = torch.empty(2, 16, 16, device=DEVICE)
    angles_kernel[(1,)](positions, turns_per_token(16, 10000.0, DEVICE), cos, sin)
    angle = positions.double()[:, None] * 10000.0 ** (-torch.arange(16, device=DEVICE).double() / 16)
    torch.testing.assert_close(cos.double(), angle.cos(), rtol=0, atol=4e-7)
    torch.testing.assert_close(sin.double(), angle.sin(), rtol=0, atol=4e-7)


@pytest.mark.parametrize(("form", "documents"), [("plain", False), ("rotary", True), ("polar", False)])
def test_opcheck_of_attention(form, documents):
    from bearings.kernels.fused import attention

    inputs = draw("pope", 20, 20, 16, torch.float32)
    q, k, v = (inputs[x].requires_grad_() for x in "qkv")
    delta = inputs["delta"].requires_grad_() if form == "polar" else None
    sums = torch.zeros(2, 20, 4, device=DEVICE, dtype=torch.float64, requires_grad=True) if form == "plain" else None
    ids = make_documents([12, 8]).to(DEVICE) if documents else None
    torch.library.opcheck(attention, (q, k, v, delta, sums, ids, form, BASE, 0.25, "triton", "triton"))


def test_opcheck_of_decoding():
    from bearings.kernels.decode import decode

    i = draw("pope", 2, 20, 16, torch.float32)
    torch.library.opcheck(decode, (i["q"], i["k"], i["v"], i["delta"], None, None, "polar", BASE, 0.25))


@every_operator
def test_compiled_in_one_graph_equals_eager(name):
    torch.compiler.reset()
    encoding = make_encoding(name, dtype=torch.float32, implementation="triton").to(DEVICE)
    results = []
    for call in (encoding, torch.compile(encoding, fullgraph=True, backend="inductor" if GPU else "aot_eager")):
        encoding.zero_grad()
        inputs = [x.to(DEVICE).requires_grad_() for x in make_inputs(20, dtype=torch.float32)]
        out, _ = call(*inputs, documents=make_documents([10, 1, 9]).to(DEVICE))
        out.square().sum().backward()
        results.append([out.detach(), *(x.grad.clone() for x in (*inputs[1:], *encoding.parameters()))])
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)


@every_operator
def test_an_encoding_by_triton_prefills_and_decodes_as_one_pass(name):
    encoding = make_encoding(name, dtype=torch.float32, implementation="triton").to(DEVICE)
    inputs = [x.to(DEVICE) for x in make_inputs(40, dtype=torch.float32)]
    with torch.no_grad():
        whole, _ = encoding(*inputs)
        state, parts = encoding.new_state(2, 40, inputs[1]), []
        for start, end in ((0, 20), (20, 37), (37, 39), (39, 40)):
            parts.append(encoding(*(x[:, start:end] for x in inputs), state=state)[0])
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("implementation", "dtype", "head_dim", "message"),
    [
        (
            "triton",
            torch.float32,
            16,
            "the tensors are on cpu, Triton's kernels need a CUDA device; use implementation=",
        ),
        ("cudnn", torch.bfloat16, 16, "implementation=cudnn: the tensors are on cpu"),
        ("fast", torch.float32, 16, "implementation=fast: it must be auto, triton, cudnn, torch"),
    ],
)
def test_a_named_implementation_never_gives_way(monkeypatch, implementation, dtype, head_dim, message):
    monkeypatch.setattr(choice, "INTERPRETED", False)
    q = torch.zeros(1, 4, 2, head_dim, dtype=dtype)
    with pytest.raises(ValueError, match=message):
        nope_attention(q, q, q, implementation=implementation)
    with pytest.raises(ValueError, match=message):
        make_encoding("nope", implementation=implementation).describe_attention(q.device, dtype, 4, False)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "message"),
    [
        (torch.float64, 16, "Triton's kernels take float32, float16 and bfloat16, not float64"),
        (torch.float32, 24, "head_dim=24 is none of the 16, 32, 48, 64, 96, 128"),
    ],
)
def test_what_triton_does_not_take(dtype, head_dim, message):
    q = torch.zeros(1, 4, 2, head_dim, dtype=dtype, device=DEVICE)
    with pytest.raises(ValueError, match=message):
        nope_attention(q, q, q, implementation="triton")


def test_what_cudnn_does_not_take():
    device, half = torch.device("cuda"), torch.float16
    for given, message in (
        ({"gates": True}, "no gates"),
        ({"documents": True}, "no packed documents"),
        ({"dtype": torch.float32}, "takes float16 and bfloat16, not float32"),
        ({"queries": 3}, "whole sequences of 2 tokens or more, not 3 of 8"),
    ):
        settings = {"dtype": half, "head_dim": 64, "queries": 8, "keys": 8, **given}
        if GPU:
            with pytest.raises(ValueError, match=message):
                choice.choose("cudnn", device, **settings)
        else:
            keys = {x: settings[x] for x in ("dtype", "queries", "keys")} | {"width": settings["head_dim"]}
            flags = {x: given.get(x, False) for x in ("documents", "gates")}
            assert message in choice._against_cudnn(device, **keys, **flags)


def test_cudnn_takes_wide_heads_where_that_was_measured(monkeypatch):
    monkeypatch.setattr(choice, "CUDNN", True)
    monkeypatch.setattr(choice, "INTERPRETED", False)
    given = (torch.device("cuda"), torch.bfloat16, 128, 8, 8)
    for capability, polar, taken in (((9, 0), True, "cudnn"), ((10, 0), False, "cudnn"), ((10, 0), True, "triton")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        assert choice.choose("auto", *given, polar=polar).implementation == taken


def test_a_gpu_with_too_little_shared_memory_is_told_the_way_out(monkeypatch):
    from triton.runtime.errors import OutOfResources

    from bearings.kernels import flash

    class Full:
        def __getitem__(self, grid):
            raise OutOfResources(262144, 101376, "shared memory")

    monkeypatch.setattr(flash, "forward_kernel", Full())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a small GPU")
    q = torch.zeros(1, 4, 2, 16, device=DEVICE)
    with pytest.raises(RuntimeError, match=r"a small GPU has too little shared memory .* use implementation=torch"):
        nope_attention(q, q, q, implementation="triton")


def test_auto_takes_pytorch_on_a_cpu():
    taken = choice.choose("auto", torch.device("cpu"), torch.float32, 64, 8, 8)
    assert str(taken) == "torch, because Triton's interpreter is for tests" or taken.reason.startswith("the tensors")


@pytest.mark.parametrize("encoding", ["rope", "pope"])
def test_a_subclass_that_transforms_q_and_k_its_own_way_is_heeded(encoding):
    from encodings_support import ENCODINGS, make_inputs

    kind = ENCODINGS[encoding]

    class Slower(kind):
        def encode_query(self, q, positions):
            return super().encode_query(q, positions / 4)

        def encode_key(self, k, positions):
            return super().encode_key(k, positions / 4)

    inputs = make_inputs(9, dtype=torch.float32)
    torch.manual_seed(0)
    plain = kind(12, 4, 2, 16)
    slower = Slower(12, 4, 2, 16)
    slower.load_state_dict(plain.state_dict())
    whole, _ = slower(*inputs)
    assert not torch.allclose(whole, plain(*inputs)[0], atol=1e-3)
    state = slower.new_state(2, 9, inputs.k)
    parts = [slower(*inputs.part(a, b), state)[0] for a, b in ((0, 5), (5, 6), (6, 9))]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)


def test_inputs_that_no_kernel_serves_are_told_or_left_to_torch():
    q, k, v = (torch.randn(2, 4, heads, 16, device=DEVICE) for heads in (2, 1, 1))
    with pytest.raises(ValueError, match="scale=0"):
        nope_attention(q, k, v, scale=0.0)
    with pytest.raises(ValueError, match=r"documents \[1, 4\]"):
        nope_attention(q, k, v, torch.zeros(1, 4, dtype=torch.int64, device=DEVICE))
    wide = torch.randn(2, 4, 1, 32, device=DEVICE)
    with pytest.raises(ValueError, match="served by torch alone"):
        nope_attention(q, k, wide, implementation="triton")
    assert nope_attention(q, k, wide).shape == (2, 4, 2, 32)
    assert nope_attention(q[:0], k[:0], v[:0]).shape == (0, 4, 2, 16)


def test_a_delta_shared_by_heads_decodes_as_it_attends():
    q, k, v = (torch.randn(1, n, 2, 16, device=DEVICE) for n in (1, 20, 20))
    delta = -torch.rand(1, 16, device=DEVICE).expand(2, 16)
    fused, plain = (pope_attention(q, k, v, delta, implementation=name) for name in ("triton", "torch"))
    torch.testing.assert_close(fused, plain, rtol=1e-3, atol=1e-4)


def test_a_cache_in_float32_under_autocast():
    q, k, v = (torch.randn(1, n, 2, 16, device=DEVICE) for n in (3, 40, 40))
    dtype = torch.float16
    with torch.autocast(DEVICE.type, dtype):
        fused = rope_attention(q.to(dtype), k, v, implementation="triton")
    assert fused.dtype == dtype
    torch.testing.assert_close(fused.float(), rope_attention(q, k, v, implementation="torch"), rtol=2e-2, atol=5e-3)
