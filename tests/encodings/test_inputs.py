"""Encodings of the input: what each adds to the embeddings, in packed rows, in pieces and beyond the trained length."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from encodings_support import ENCODINGS, make_documents, one_thread  # noqa: F401

from bearings.encodings.base import Encoding
from bearings.encodings.contract.context import Context
from bearings.encodings.contract.module import INIT_STD
from bearings.encodings.nope import NoPE
from bearings.kernels.documents import Documents
from bearings.kernels.layers.moving_average import moving_average
from bearings.lightning_modules.transformer import Transformer

pytestmark = pytest.mark.usefixtures("one_thread")
INPUTS = [name for name, kind in ENCODINGS.items() if kind.input_encoding is not Encoding.input_encoding]
every_input = pytest.mark.parametrize("name", INPUTS)
EXACT = {"rtol": 0.0, "atol": 1e-12}
WIDTH = 24


def make(name, dtype=torch.float64, **options):
    """The encoding's module, with larger parameters than initial ones."""
    torch.manual_seed(0)
    module = ENCODINGS[name](WIDTH, 4, 4, 6, **options).input_encoding().to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
    return module


def context_of(x, ids=None):
    return Context.of(NoPE(WIDTH, 4, 4, 6), x, None, None if ids is None else Documents.of(ids))


@every_input
@torch.no_grad()
def test_packed_rows_and_pieces_equal_single_documents(name):
    module, lengths = make(name), [70, 1, 130, 3]
    x, ids = torch.randn(2, sum(lengths), WIDTH, dtype=torch.float64), make_documents(lengths)
    together = module(x, context_of(x, ids))
    for row, order in enumerate((lengths, lengths[::-1])):
        for part, whole in zip(x[row : row + 1].split(order, 1), together[row : row + 1].split(order, 1), strict=True):
            torch.testing.assert_close(module(part, context_of(part)), whole, **EXACT)
    state = module.new_state(2, x)
    pieces = [module(piece, context_of(piece), state) for piece in x.split([66, 1, 1, 136], 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), module(x, context_of(x)), **EXACT)


@every_input
def test_a_window_does_not_change_the_input(name):
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    module, windowed = make(name), Context.of(NoPE(WIDTH, 4, 4, 6, window=3), x)
    torch.testing.assert_close(module(x, windowed), module(x, context_of(x)), **EXACT)


@every_input
def test_gradients(name):
    module, ids = make(name), make_documents([5, 2])
    names, values = zip(*module.named_parameters(), strict=True)
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64, requires_grad=True)
    context = context_of(x, ids)

    def outputs(x, *values):
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x, context))

    assert torch.autograd.gradcheck(outputs, (x, *values), fast_mode=True)


@every_input
def test_low_precision(name):
    module, x = make(name, torch.float32), torch.randn(2, 40, WIDTH)
    exact = module.double()(x.double(), context_of(x))
    module.float()
    assert module(x, context_of(x)).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        out = module(x, context_of(x))
    assert out.dtype == torch.float32  # the residual stream
    torch.testing.assert_close(out.double(), exact, rtol=0.02, atol=0.05)
    rounded = module.to(torch.bfloat16)(x.bfloat16(), context_of(x))
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.double(), exact, rtol=0.03, atol=0.1)


@every_input
def test_the_state_dict_holds_no_table_of_the_context(name):
    module, x = make(name, torch.float32), torch.randn(1, 33, WIDTH)
    with torch.inference_mode():
        module(x, context_of(x))
    module(x, context_of(x)).sum().backward()  # what inference has cached can be trained with
    assert {*module.state_dict()} == {*dict(module.named_parameters())}


def test_a_zero_table_is_nope():
    sizes = {"vocabulary": 7, "width": WIDTH, "layers": 2, "heads": 4}
    model, plain = (Transformer(encoding=ENCODINGS[name], seed=3, **sizes) for name in ("absolute_learned", "nope"))
    tokens = torch.arange(14).view(2, 7) % 7
    assert not torch.equal(model(tokens), plain(tokens))
    torch.nn.init.zeros_(model.inputs.table)
    assert torch.equal(model(tokens), plain(tokens))
    assert model.parameter_count() - plain.parameter_count() == 2048 * WIDTH


def test_contexts_beyond_a_learned_table_raise():
    encoding = partial(ENCODINGS["absolute_learned"], length=6)
    model = Transformer(7, encoding=encoding, width=WIDTH, layers=1, heads=4).eval()
    assert model.longest == 6
    tokens = torch.zeros(1, 7, dtype=torch.int64)
    message = "length=6: AbsoluteLearned has no positions for a context of 7 tokens"
    with pytest.raises(ValueError, match=message):
        model(tokens)
    state = model.new_state(1, 7)
    model(tokens[:, :6], state)
    with pytest.raises(ValueError, match=message):
        model(tokens[:, 6:], state)


def test_a_step_rotates_sinusoids():
    table = make("absolute_sinusoidal").compute(50)
    sines, cosines = table.chunk(2, 1)
    angles = 10000.0 ** -(torch.arange(0, WIDTH, 2).double() / WIDTH)
    turned = torch.cat(
        [sines * angles.cos() + cosines * angles.sin(), cosines * angles.cos() - sines * angles.sin()], 1
    )
    torch.testing.assert_close(table[1:], turned[:-1], **EXACT)
    first = torch.tensor([0, math.sin(1), math.sin(2)], dtype=torch.float64)
    torch.testing.assert_close(table[:3, 0], first, **EXACT)


def test_legendre_polynomials_equal_numpy_s():
    x = -1 + 2 * np.arange(WIDTH) / WIDTH
    table = make("legendre").compute(120)
    for t in (0, 1, 2, 17, 119):
        expected = torch.from_numpy(np.polynomial.legendre.Legendre.basis(t + 1)(x))
        torch.testing.assert_close(table[t], expected, rtol=0.0, atol=1e-11)


@pytest.mark.parametrize("name", ["absolute_sinusoidal", "legendre"])
def test_the_learned_scale_starts_at_the_size_of_the_embeddings(name):
    module, x = ENCODINGS[name](512, 4, 4, 128).input_encoding(), torch.zeros(1, 1, 512)
    rms = module(x, context_of(x)).square().mean().sqrt().item()
    assert rms == pytest.approx(INIT_STD, rel=0.02)
    raw = ENCODINGS[name](512, 4, 4, 128, scale="raw").input_encoding()
    assert not list(raw.parameters())
    ones = torch.ones(1, 1, 512)
    torch.testing.assert_close(raw(ones, context_of(ones)) - raw(x, context_of(x)), ones * 512**0.5)
    torch.testing.assert_close(raw(x, context_of(x))[0, 0].double(), module.compute(1)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("length", [1, 64, 65, 200])
def test_a_moving_average_equals_a_double_loop(length):
    x, log_decay = torch.randn(2, length, 6, dtype=torch.float64), torch.tensor([-0.01, -0.7]).double()
    ids = make_documents([length // 3, 1, length - length // 3 - 1])
    decay, before = log_decay.exp().repeat_interleave(3), torch.randn(2, 6, dtype=torch.float64)
    for positions, first in ((None, None), (None, before), (Documents.of(ids).positions, None)):
        expected, y = [], torch.zeros_like(before) if first is None else first
        for t in range(length):
            starts = positions is not None and t > 0
            kept = (ids[:, t] == ids[:, t - 1])[:, None] if starts else torch.ones(2, 1)
            y = x[:, t] + decay * y * kept
            expected.append(y)
        actual = moving_average(x, log_decay, positions, first)
        torch.testing.assert_close(actual, torch.stack(expected, 1), **EXACT)


def test_tpe_starts_with_the_authors_values():
    module = ENCODINGS["tpe"](512, 4, 4, 128).input_encoding()
    x = torch.randn(1, 3, 512)
    average = x.clone()
    for t in (1, 2):
        average[:, t] += average[:, t - 1] / 2
    normed = average / average.square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(module(x, context_of(x)), normed @ module.output.weight.T, rtol=1e-4, atol=1e-6)
    assert module.output.weight.std().item() == pytest.approx(0.01 / 512**0.5, rel=0.01)
