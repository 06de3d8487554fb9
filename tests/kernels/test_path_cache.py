"""The PaTH cache: chunked passes, decoding in PyTorch and Triton, and bounded rounding errors."""

import pytest
import torch
from encodings_support import attend, make_encoding, make_inputs, one_thread  # noqa: F401

from bearings.kernels import reference
from bearings.kernels.attention.fox import cumulative_log_gates
from bearings.kernels.path import cache as path_cache
from bearings.kernels.path.attention import path_attention
from bearings.kernels.path.cache import WINDOW, new_turns, newest
from bearings.kernels.path.cached import path_attention_cached

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * GPU  # the interpreter computes wrong bfloat16 products
EXACT = {"rtol": 0.0, "atol": 1e-10}
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def short_frames(monkeypatch):
    """Frames of two windows, so that short sequences have several frames."""
    monkeypatch.setattr(path_cache, "FRAME", 2 * WINDOW)
    monkeypatch.setattr(path_cache, "PER", 2)


def draw(length, heads=4, kv_heads=2, head_dim=16, value_dim=None, dtype=torch.float64, gated=False, batch=2):
    """Random q, k, v, w, beta, and sums in float64."""
    torch.manual_seed(length + head_dim)

    def random(*shape):
        return torch.randn(batch, length, *shape, dtype=torch.float64, device=DEVICE)

    sizes = ((heads, head_dim), (kv_heads, head_dim), (kv_heads, value_dim or head_dim), (kv_heads, head_dim))
    q, k, v, w = (random(*size) for size in sizes)
    w = w / w.norm(dim=-1, keepdim=True)
    beta = 1.98 * torch.rand(batch, length, kv_heads, dtype=torch.float64, device=DEVICE)
    sums = cumulative_log_gates(random(heads) + 2) if gated else None
    exact = dtype == torch.float64
    return *(x.to(dtype) for x in (q, k, v)), w if exact else w.float(), beta if exact else beta.float(), sums


def in_pieces(pieces, q, k, v, w, beta, sums, implementation="auto", prefilled=()):
    """Outputs of a sequence processed in pieces, the cached keys, and the state of the cache."""
    keys, values = torch.full_like(k, torch.nan), torch.full_like(v, torch.nan)
    c = None if sums is None else torch.full_like(sums, torch.nan)
    turns = new_turns(k.shape[0], k.shape[1], *k.shape[2:], k)
    outputs, start = [], 0
    for piece in pieces:
        part = slice(start, start + piece)
        keys[:, part], values[:, part] = k[:, part], v[:, part]
        if c is not None:
            c[:, part] = sums[:, part]
        chosen = "torch" if piece > 1 else implementation
        given = (q[:, part], w[:, part], beta[:, part], q.shape[-1] ** -0.5, keys, values, turns, c, chosen)
        outputs.append(path_attention_cached(*given))
        start += piece
    return torch.cat(outputs, 1), keys, turns


def as_seen_by(token, k, w, beta):
    """Keys up to a token, each transformed by all later reflections."""
    keys = k[:, : token + 1].clone()
    for t in range(token + 1):
        reflected = beta[:, t, None, :, None] * (keys[:, :t] * w[:, t, None]).sum(-1, keepdim=True) * w[:, t, None]
        keys[:, :t] -= reflected
    return keys


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    "pieces",
    [
        [1, 1, 1],
        [0, 70, 0, 1, 0, 57, 0, 1],
        [70, 1, 1],
        [33, 90, 2],
        [3, 1, 59, 1, 1],
        [1, 62, 1, 30, 140],
        [300, 1, 130, 27],
    ],
)
def test_chunked_passes_match_full_pass(pieces, gated, short_frames):
    q, k, v, w, beta, sums = draw(sum(pieces), gated=gated)
    operator = reference.path_fox_attention if gated else reference.path_attention
    gates = (torch.diff(sums, dim=1, prepend=torch.zeros_like(sums[:, :1])),) if gated else ()
    out, keys, turns = in_pieces(pieces, q, k, v, w, beta, sums)
    torch.testing.assert_close(out, operator(q, k, v, w, beta, *gates), **EXACT)
    assert (turns.held, turns.pending) == (sum(pieces) // WINDOW * WINDOW, sum(pieces) % WINDOW)
    if turns.held:
        torch.testing.assert_close(newest(turns, keys), as_seen_by(turns.held - 1, k, w, beta), **EXACT)


def test_keys_are_rewritten_at_complete_windows_and_frames(short_frames):
    length = 4 * WINDOW + 3
    encoding, inputs = make_encoding("path"), make_inputs(length)
    state, changes, before = encoding.new_state(2, length, inputs.q), [], inputs.k[:, :0]
    with torch.no_grad():
        for t in range(length):
            attend(encoding, inputs.part(t, t + 1), state)
            changed = (state.keys[:, :t] != before).any(-1).any(-1).any(0).nonzero()
            changes += [(t, changed.min().item())] if len(changed) else []
            before = state.keys[:, : t + 1].clone()
    ends = [n * WINDOW - 1 for n in (1, 2, 3, 4)]
    assert changes == list(zip(ends, [0, 0, 2 * WINDOW, 2 * WINDOW], strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("gated", "heads"), [(False, (2, 2)), (True, (6, 2))])
@pytest.mark.parametrize(("head_dim", "value_dim"), [(48, 40)] + [(16, 16), (64, 64), (128, 128)] * GPU)
def test_kernel_decoding_matches_full_pass(head_dim, value_dim, gated, heads, dtype, short_frames):
    """The error is at most twice that of PyTorch in the same dtype, with pending tokens, windows and whole frames."""
    pytest.importorskip("triton")
    if not GPU and dtype != torch.float32 and gated:
        pytest.skip("one shape in half precision is enough for the interpreter")
    inputs = draw(5 * WINDOW + 3, *heads, head_dim, value_dim, dtype, gated)
    exact = path_attention(*(x.double() for x in inputs[:5]), head_dim**-0.5, None, inputs[5], "torch")
    prompts = (0, 2 * WINDOW - 1, 3 * WINDOW + 1, 5 * WINDOW - 2)
    for prompt in prompts if GPU or gated else prompts[1::2]:
        pieces = [prompt] * (prompt > 0) + [1] * 4
        part = [None if x is None else x[:, : prompt + 4] for x in inputs]
        found = [in_pieces(pieces, *part, implementation)[0][:, -4:] for implementation in ("triton", "torch")]
        wanted = exact[:, prompt : prompt + 4]
        mine, plain = ((x.double() - wanted).norm() / wanted.norm() for x in found)
        assert mine < 2 * plain + 4 * torch.finfo(dtype).eps, f"after {prompt}: {mine:.1e}, PyTorch's {plain:.1e}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cached_keys_do_not_drift(dtype, short_frames):
    """A bfloat16 key rewritten by each of 512 tokens would be off by 3.8 %; cached keys are rounded only twice."""
    q, k, v, w, beta, _ = draw(9 * WINDOW, 1, 1, dtype=dtype, batch=1)
    _, keys, turns = in_pieces([1] * k.shape[1], q, k, v, w, beta, None)
    wanted = as_seen_by(turns.held - 1, *(x.double() for x in (k, w, beta)))
    windows = (
        ((newest(turns, keys).double() - wanted).norm(dim=-1) / wanted.norm(dim=-1)).flatten().unflatten(0, (-1, 64))
    )
    assert keys.dtype == dtype
    assert windows.mean(1).max() < torch.finfo(dtype).eps  # one rounding is at most half of it


def test_first_cached_token_has_gradients():
    leaves = [x.detach().requires_grad_() for x in draw(1, gated=True, batch=1)]
    in_pieces((1,), *leaves)[0].sum().backward()
    assert leaves[2].grad.isfinite().all()


def test_autocast_does_not_round_cached_products(short_frames):
    inputs = draw(4 * WINDOW, dtype=torch.float32, batch=1)
    plain = in_pieces([1] * 4 * WINDOW, *inputs)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(in_pieces([1] * 4 * WINDOW, *inputs)[0], plain)


@pytest.mark.parametrize("implementation", ["torch", "triton"])
@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("q", (1, None, 4, 16), r"keys \[2, 6, 2, 16\]"),
        ("q", (2, None, 4, 8), r"keys \[2, 6, 2, 16\]"),
        ("values", (2, 4, 2, 16), r"values \[2, 4, 2, 16\]"),
        ("w", (1, None, 2, 16), r"w \[1, "),
        ("w", (2, None, 1, 16), r"w \[2, "),
        ("beta", (2, None, 1), r"beta \[2, "),
        ("sums", (2, 4, 4), r"sums \[2, 4, 4\]"),
        ("sums", (2, 6, 2), r"sums \[2, 6, 2\]"),
    ],
)
def test_wrong_shapes_raise(name, shape, wanted, tokens, implementation):
    """The decoding kernel would read beyond a tensor that is too small."""
    shapes = {"q": (2, tokens, 4, 16), "w": (2, tokens, 2, 16), "beta": (2, tokens, 2)}
    shapes |= {"keys": (2, 6, 2, 16), "values": (2, 6, 2, 16), "sums": (2, 6, 4)}
    shapes[name] = tuple(tokens if size is None else size for size in shape)
    given = {each: torch.zeros(size, device=DEVICE) for each, size in shapes.items()}
    turns = new_turns(2, 6, 2, 16, given["keys"])
    with pytest.raises(ValueError, match=wanted + r".* with q \[.*: the shape must be \["):
        path_attention_cached(**given, scale=0.25, turns=turns, implementation=implementation)


@pytest.mark.parametrize("implementation", ["torch", "triton"])
@pytest.mark.parametrize("tokens", [1, 2])
def test_a_full_cache_raises(tokens, implementation):
    q, k, v, w, beta, _ = draw(5, dtype=torch.float32)
    turns = new_turns(2, 5, 2, 16, k)
    with torch.no_grad():
        path_attention_cached(q, w, beta, 0.25, k, v, turns)
        new = (x[:, :tokens] for x in (q, w, beta))
        with pytest.raises(ValueError, match=f"{tokens} tokens after 5 in a cache of 5: create a larger cache"):
            path_attention_cached(*new, 0.25, k, v, turns, None, implementation)
