"""The laws of encodings, run for every file in encodings/."""

import subprocess
import sys

import pytest
import torch
from encodings_support import (
    ENCODINGS,
    FOLDER,
    HEADS,
    KV_HEADS,
    MECHANISMS,
    WIDTH,
    Inputs,
    attend,
    make_documents,
    make_encoding,
    make_inputs,
    one_thread,  # noqa: F401
    oracle,
    shared_by,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bearings.encodings.base import Encoding
from bearings.encodings.contract.context import Context
from bearings.kernels.documents import Documents

EXACT = {"rtol": 0.0, "atol": 1e-10}
every_encoding = pytest.mark.parametrize("name", ENCODINGS)
every_windowed = pytest.mark.parametrize("name", [name for name, kind in ENCODINGS.items() if kind.windowed])
pytestmark = pytest.mark.usefixtures("one_thread")
# Around the chunks of 32 and 64 tokens that implementations use.
lengths = st.lists(st.sampled_from([1, 2, 7, 16, 31, 33, 64]), min_size=1, max_size=5)


def in_pieces(encoding, inputs: Inputs, pieces: list[int]):
    """Outputs of one sequence given in pieces, and the final state."""
    total = sum(pieces)
    state, outputs, start = encoding.new_state(inputs.q.shape[0], total, inputs.q), [], 0
    for piece in pieces:
        out = attend(encoding, inputs.part(start, start + piece), state)
        outputs.append(out)
        start += piece
    return torch.cat(outputs, 1), state


def assert_independent_of_later_tokens(encoding, inputs: Inputs, whole, token: int):
    changed = Inputs(*(tensor.clone() for tensor in inputs))
    for tensor in changed:
        tensor[:, token] += 3.0
    out = attend(encoding, changed)
    assert torch.equal(out[:, :token], whole[:, :token])
    assert not torch.equal(out[:, token], whole[:, token])


def assert_independent_of_pieces(encoding, inputs: Inputs, whole, pieces: list[int]):
    parts, state = in_pieces(encoding, inputs, pieces)
    torch.testing.assert_close(parts, whole, **EXACT)
    assert state.length == sum(pieces)
    return state


def assert_independent_of_other_documents(encoding, inputs: Inputs, pieces: list[int]):
    packed = attend(encoding, inputs, documents=make_documents(pieces))
    for row, order in enumerate((pieces, pieces[::-1])):
        start = 0
        for piece in order:
            single = attend(encoding, [tensor[row : row + 1] for tensor in inputs.part(start, start + piece)])
            torch.testing.assert_close(packed[row : row + 1, start : start + piece], single, **EXACT)
            start += piece


@every_encoding
@settings(max_examples=3)
@given(pieces=lengths, seed=st.integers(0, 99), place=st.floats(0, 1, exclude_max=True))
@example(pieces=[64, 7, 1, 1, 1, 1], seed=0, place=0.5)
def test_causality_segmentation_and_packing(name, pieces, seed, place):
    encoding, total = make_encoding(name), sum(pieces)
    inputs = make_inputs(total, seed=seed)
    with torch.no_grad():
        whole = attend(encoding, inputs)
        assert_independent_of_later_tokens(encoding, inputs, whole, int(place * total))
        assert_independent_of_pieces(encoding, inputs, whole, pieces)
        assert_independent_of_other_documents(encoding, inputs, pieces)


@every_windowed
@settings(max_examples=3)
@given(pieces=lengths, window=st.integers(1, 12))
@example(pieces=[16, 7, 1, 1, 2], window=5)
def test_window(name, pieces, window):
    """Attention of a token within a window is attention over the tokens in it, in whole rows, pieces and documents."""
    encoding, total = make_encoding(name), sum(pieces)
    inputs = make_inputs(total)
    with torch.no_grad():
        last = attend(encoding, inputs.part(max(0, total - window), total))[:, -1]
        encoding.window = window
        whole = attend(encoding, inputs)
        state = assert_independent_of_pieces(encoding, inputs, whole, pieces)
        assert_independent_of_other_documents(encoding, inputs, pieces)
    if encoding.relative:
        torch.testing.assert_close(whole[:, -1], last, **EXACT)
    room = max(pieces) + 3 * window
    assert all(tensor.shape[1] <= room for tensor in state.read())
    assert state.keys.shape[1] <= max(room, 2 * window)


@every_encoding
def test_full_state_raises(name):
    encoding, inputs = make_encoding(name), make_inputs(5)
    state = encoding.new_state(2, 4, inputs.q)
    with torch.no_grad(), pytest.raises(ValueError, match="holds 4 tokens, 5 were given"):
        attend(encoding, inputs, state)


@every_encoding
@pytest.mark.parametrize(("rows", "tokens"), [(0, 3), (2, 0)])
def test_no_rows_or_no_tokens(name, rows, tokens):
    encoding, inputs = make_encoding(name), Inputs(*(x[:rows] for x in make_inputs(3)))
    new = inputs.part(0, tokens)
    for documents in (None, torch.zeros(rows, tokens)):
        assert attend(encoding, new, documents=documents).shape[:2] == (rows, tokens)
    for before in (0, 3 - tokens):
        state = encoding.new_state(rows, 6, inputs.q)
        with torch.no_grad():
            _, out = (attend(encoding, part, state) for part in (inputs.part(0, before), new))
        assert out.shape[:2] == (rows, tokens)


@every_encoding
@pytest.mark.parametrize("pieces", [[37], [20, 1, 16]], ids=["one document", "packed"])
def test_gradients(name, pieces):
    """gradcheck along a random direction for each input and parameter (fast mode), over two of PaTH's chunks."""
    encoding = make_encoding(name, head_dim=4)
    inputs = [tensor.requires_grad_() for tensor in make_inputs(sum(pieces), head_dim=4, batch=1)]
    names, parameters = zip(*encoding.named_parameters(), strict=True) if list(encoding.parameters()) else ((), ())
    documents = Documents.of(make_documents(pieces, batch=1)) if len(pieces) > 1 else None
    context = Context.of(encoding, inputs[1], documents=documents).sharing(shared_by(encoding))

    def outputs(x, q, k, v, *values):
        given = dict(zip(names, values, strict=True))
        return torch.func.functional_call(encoding, given, (x, q, k, v, context))

    leaves = tuple(parameter.detach().requires_grad_() for parameter in parameters)
    assert torch.autograd.gradcheck(outputs, (*inputs, *leaves), fast_mode=True)


@every_encoding
def test_everything_gets_a_gradient(name):
    encoding, inputs = make_encoding(name), Inputs(*(tensor.requires_grad_() for tensor in make_inputs(70)))
    attend(encoding, inputs).square().sum().backward()
    content = {"q": inputs.q, "k": inputs.k} if encoding.reads_content else {}
    leaves = {**content, "v": inputs.v, **dict(encoding.named_parameters())}
    for leaf_name, leaf in leaves.items():
        assert leaf.grad is not None, leaf_name
        assert leaf.grad.abs().max() > 0, leaf_name


@every_encoding
@pytest.mark.parametrize("shift", [1, 1000, 100_000])
def test_translation(name, shift):
    encoding, inputs = make_encoding(name), make_inputs(20)
    if not encoding.relative:
        pytest.skip(f"{name} is not relative")
    if ENCODINGS[name].encode_query is Encoding.encode_query:
        pytest.skip(f"{name} does not transform q and k by their positions: test_packing covers it")
    near = torch.arange(20)
    with torch.no_grad():
        scores, shifted = (
            torch.einsum(
                "bthd,bshd->bhts",
                encoding.encode_query(inputs.q, positions),
                encoding.encode_key(inputs.k, positions).repeat_interleave(encoding.heads // KV_HEADS, 2),
            )
            for positions in (near, near + shift)
        )
        torch.testing.assert_close(shifted, scores, rtol=0.0, atol=1e-14 * max(shift, 1000))
        expected = oracle(name, encoding, inputs, near + shift)
        if expected is not None:
            out = attend(encoding, inputs)
            torch.testing.assert_close(out, expected, rtol=0.0, atol=1e-14 * max(shift, 10_000))


@every_encoding
def test_four_times_the_length(name):
    encoding = make_encoding(name, dtype=torch.float32)
    short, long = (make_inputs(length, dtype=torch.float32) for length in (96, 384))
    with torch.no_grad():
        attend(encoding, short)
        out = attend(encoding, long)
        again = attend(encoding, long.part(0, 96))
    assert out.isfinite().all()
    torch.testing.assert_close(out[:, :96], again, rtol=1e-4, atol=1e-5)
    assert all(96 not in tensor.shape and 384 not in tensor.shape for tensor in encoding.state_dict().values())


def compilations():
    """Every encoding with code of its own that the compiler sees is traced, every mechanism in rows of both kinds.

    The compiler sees neither row blocks nor biases, and `forward` of an input encoding is the base's. AOTAutograd takes
    several times longer, and runs for one encoding of each mechanism.
    """
    single = {(ENCODINGS[name].forward, ENCODINGS[name].encode_query): name for name in MECHANISMS}
    for name, kind in ENCODINGS.items():
        needs = make_encoding(name).needs
        if name in MECHANISMS:
            yield pytest.param(name, True, "aot_eager", id=f"{name} packed")
        elif not (needs.rows or needs.bias) and kind.forward is not Encoding.forward:
            yield pytest.param(name, False, "eager", id=f"{name} one document")
            single.pop((kind.forward, kind.encode_query), None)
    for name in single.values():
        yield pytest.param(name, False, "eager", id=f"{name} one document")


@pytest.mark.parametrize(("name", "packed", "backend"), [*compilations()])
def test_compiled_equals_eager_in_one_graph_except_for_row_blocks(name, packed, backend):
    torch.compiler.reset()
    encoding = make_encoding(name, dtype=torch.float32)
    whole = not (encoding.needs.rows or encoding.needs.bias)
    documents = make_documents([30, 1, 39]) if packed else None
    results = []
    for call in (encoding, torch.compile(encoding, fullgraph=whole, backend=backend)):
        encoding.zero_grad()
        inputs = Inputs(*(tensor.requires_grad_() for tensor in make_inputs(70, dtype=torch.float32)))
        out = attend(call, inputs, documents=documents)
        out.square().sum().backward()
        gradients = [tensor.grad for tensor in (*inputs, *encoding.parameters()) if tensor.grad is not None]
        results.append([out.detach(), *(gradient.clone() for gradient in gradients)])
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)


@every_encoding
@pytest.mark.parametrize("how", ["autocast", "cast module"])
def test_phases_are_exact_in_low_precision(name, how):
    """At position 1,000,000 a bfloat16 key is off by its rounding, 2^-8. A rounded phase would be off by radians."""
    encoding, positions = make_encoding(name).float().double(), torch.tensor([1_000_000])  # float32 parameters
    inputs = make_inputs(1)
    rounded = [tensor.to(torch.bfloat16) for tensor in (inputs.q, inputs.k)]
    exact = [tensor.double() for tensor in rounded]
    with torch.no_grad():
        expected = encoding.encode_query(exact[0], positions), encoding.encode_key(exact[1], positions)
        encoding.float()
        if how == "cast module":
            encoding.to(torch.bfloat16)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=how == "autocast"):
            low = encoding.encode_query(rounded[0], positions), encoding.encode_key(rounded[1], positions)
            single = encoding.encode_query(exact[0].float(), positions)
    size = expected[0].abs().max()
    for got, wanted in zip(low, expected, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=2**-8, atol=1e-5 * size)
    torch.testing.assert_close(single.double(), expected[0], rtol=1e-5, atol=1e-6 * size)


@every_encoding
@pytest.mark.parametrize("how", ["autocast", "cast module"])
def test_low_precision_passes_run_and_agree(name, how):
    """Prefill and steps included. In bfloat16 plain attention is off by 0.2 %, RoPE by 0.3 %."""
    encoding, inputs = make_encoding(name), make_inputs(70, dtype=torch.bfloat16)
    inputs = inputs._replace(x=inputs.x * 0.2)
    with torch.no_grad():
        expected = attend(encoding, [tensor.double() for tensor in inputs])
        encoding.to(torch.bfloat16 if how == "cast module" else torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=how == "autocast"):
            whole = attend(encoding, inputs)
            parts, _ = in_pieces(encoding, inputs, [40, 28, 1, 1])
    assert whole.dtype == parts.dtype == torch.bfloat16
    for got in (whole, parts):
        error = (got.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
        assert error < 0.005, f"relative error {error:.4f}"


@every_encoding
@pytest.mark.parametrize(("head_dim", "longest"), [(16, 200), (48, 65), (64, 65)])
def test_agrees_with_the_oracle(name, head_dim, longest):
    """Shorter sequences are compared with the start of the oracle's output, which is causal."""
    encoding, inputs = make_encoding(name, head_dim), make_inputs(longest, head_dim)
    with torch.no_grad():
        expected = oracle(name, encoding, inputs)
        if expected is None:
            pytest.skip(f"kernels/reference.py has no {name}")
        for length in (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 200) if head_dim == 16 else (17, 65):
            out = attend(encoding, inputs.part(0, length))
            torch.testing.assert_close(out, expected[:, :length], **EXACT, msg=f"T={length}")


@every_encoding
def test_training_and_evaluation_agree(name):
    """Training may fuse operations for speed; evaluation must give the same result."""
    encoding, inputs = make_encoding(name), make_inputs(33)
    with torch.no_grad():
        torch.testing.assert_close(attend(encoding.train(), inputs), attend(encoding.eval(), inputs), **EXACT)


@every_encoding
def test_strided_inputs(name):
    encoding, inputs = make_encoding(name), make_inputs(70)
    strided = [torch.stack([tensor, torch.full_like(tensor, torch.nan)], -1)[..., 0] for tensor in inputs]
    transposed = [tensor.transpose(1, -2).contiguous().transpose(1, -2) for tensor in inputs]
    with torch.no_grad():
        expected = attend(encoding, inputs)
        for views in (strided, transposed):
            assert not views[1].is_contiguous()
            torch.testing.assert_close(attend(encoding, views), expected, **EXACT)


@every_encoding
def test_reset_parameters_draws_from_the_global_generator(name):
    encoding = ENCODINGS[name](WIDTH, HEADS, KV_HEADS, 16)
    drawn, random = [], False
    for seed in (3, 3, 4):
        with torch.no_grad():
            for tensor in (*encoding.parameters(), *encoding.buffers()):
                tensor.fill_(torch.nan)
        before = torch.manual_seed(seed).get_state()
        encoding.reset_parameters()
        random |= not torch.equal(before, torch.get_rng_state())
        drawn.append([tensor.clone() for tensor in (*encoding.parameters(), *encoding.buffers())])
    assert all(tensor.isfinite().all() for tensor in drawn[0])
    assert all(torch.equal(*pair) for pair in zip(drawn[0], drawn[1], strict=True))
    assert not random or any(not torch.equal(*pair) for pair in zip(drawn[0], drawn[2], strict=True))


@every_encoding
def test_implementation_is_honoured(name):
    """An encoding that ignores `implementation` must say so in its `plan`."""
    encoding, inputs = make_encoding(name), make_inputs(8)
    encoding.implementation = "cudnn"  # which serves no tensor of a CPU
    try:
        encoding.plan(torch.device("cpu"), inputs[0].dtype, 8, False)
    except ValueError:
        with pytest.raises(ValueError, match="implementation"):
            attend(encoding, inputs)


@every_encoding
def test_names_flops_and_diagnostics(name):
    encoding = ENCODINGS[name](WIDTH, HEADS, KV_HEADS, 64)
    assert set(encoding.no_weight_decay) <= dict(encoding.named_parameters()).keys()
    plain = 2 * HEADS * 64 * 1000 * 1001
    linear = encoding.about is not None and encoding.about.mechanism == "linear attention"
    assert (0 if linear else plain) <= encoding.attention_flops(1000) < 4 * plain
    assert encoding.attention_flops(1) > 0
    assert all(value.shape == () for value in encoding.diagnostics().values())


@every_windowed
def test_flops_of_a_window_of_one_token_are_those_of_separate_tokens(name):
    encoding = make_encoding(name)
    alone = encoding.attention_flops(1)
    encoding.window = 1
    assert encoding.attention_flops(100) == 100 * alone


def test_folder_does_not_shadow_the_standard_library():
    """With an __init__.py, this `encodings` would replace the standard library's and stop the interpreter."""
    root = FOLDER.parent
    ran = subprocess.run([sys.executable, "-c", "import sys"], cwd=root, env={"PYTHONPATH": "."}, capture_output=True)
    assert ran.returncode == 0, ran.stderr.decode()
    assert not (FOLDER / "__init__.py").exists()
