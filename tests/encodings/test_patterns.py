"""Patterns over layers in configs/encoding, and the scaling of scores with the length in their NoPE layers."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from conftest import composed
from encodings_support import attend, make_encoding, make_inputs, one_thread  # noqa: F401
from omegaconf import OmegaConf

from bearings.core.errors import UserError
from bearings.encodings.base import Encoding
from bearings.encodings.comrope import ComRoPE
from bearings.encodings.contract.context import contexts_of
from bearings.encodings.nope import NoPE
from bearings.encodings.pattern import PATTERNS, LayerPattern
from bearings.encodings.pope import PoPE
from bearings.encodings.rope import RoPE
from bearings.lightning_modules.transformer import Transformer
from bearings.session.banner import pattern_text, rotation_text
from bearings.session.configuration import build
from bearings.session.overrides import choices_of
from bearings.session.session import Session
from bearings.session.settings import file_of

pytestmark = pytest.mark.usefixtures("one_thread")


def block_of(name):
    return OmegaConf.to_container(file_of("encoding", name))


def test_every_pattern_is_described():
    target = f"{LayerPattern.__module__}.{LayerPattern.__name__}"
    assert {*PATTERNS} == {name for name in choices_of("encoding") if block_of(name)["_target_"] == target}


LOCAL = [("RoPE", 128, 1e4)]
NAMED = {
    "sliding_window": LOCAL,
    "local_global": 5 * LOCAL + [("RoPE", None, 1e6)],
    "rnope_swa": 3 * LOCAL + [("NoPE", None, "none")],
    "swan": [("NoPE", None, "log"), *3 * LOCAL],
    "irope": 3 * LOCAL + [("NoPE", None, "llama4")],
}


@pytest.mark.parametrize("name", NAMED)
@torch.no_grad()
def test_named_patterns(name):
    layers = NAMED[name]
    sizes = {"vocabulary": 11, "width": 8, "layers": len(layers), "heads": 2}
    model = Transformer(encoding=partial(build, block_of(name), "encoding"), **sizes).double().eval()
    assert [
        (type(each).__name__, each.window, getattr(each, "base", None) or each.length_scaling)
        for each in model.encodings
    ] == layers
    tokens = torch.randint(11, (1, 300))
    full, state = model(tokens), model.new_state(1, 300)
    pieces = [model(piece, state) for piece in tokens.split([200, 1, 99], 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), full, rtol=0.0, atol=1e-9)
    packed = model(tokens, documents=(torch.arange(300) >= 140)[None].long())
    torch.testing.assert_close(packed[:, 140:], model(tokens[:, 140:]), rtol=0.0, atol=1e-9)


@torch.no_grad()
def test_three_layers_make_four_patterns_one_model():
    """As docs/how-to/windows.md and the pages of results say of models with three layers."""
    tokens = torch.randint(11, (1, 300))

    def logits(encoding, length):
        sizes = {"vocabulary": 11, "width": 8, "layers": 3, "heads": 2}
        return Transformer(encoding=encoding, **sizes).eval()(tokens[:, :length])

    same = [partial(build, block_of(name), "encoding") for name in NAMED if name != "swan"]
    for length in (128, 300):
        found = [logits(encoding, length) for encoding in same]
        assert all(torch.equal(each, found[0]) for each in found)
        assert torch.equal(found[0], logits(RoPE, length)) == (length <= 128)


@pytest.mark.parametrize("scaling", ["log", "llama4"])
def test_scores_of_nope_grow_with_the_position(scaling):
    encoding, inputs = make_encoding("nope", length_scaling=scaling, scaling_length=5), make_inputs(23)
    assert not encoding.relative
    factors = {
        "log": [math.log(5 + t, 5) for t in range(23)],
        "llama4": [math.log(math.floor((t + 1.0) / 5) + 1.0) * 0.1 + 1.0 for t in range(23)],
    }[scaling]
    scaled = inputs._replace(q=inputs.q * torch.tensor(factors, dtype=torch.float64)[:, None, None])
    torch.testing.assert_close(attend(encoding, inputs), attend(make_encoding("nope"), scaled), rtol=0.0, atol=1e-12)
    state = encoding.new_state(2, 23, inputs.q)
    pieces = [attend(encoding, inputs.part(*part), state) for part in ((0, 20), (20, 21), (21, 23))]
    torch.testing.assert_close(torch.cat(pieces, 1), attend(encoding, inputs), rtol=0.0, atol=1e-12)


def test_published_length_factors():
    """SWAN's fit is 1 at the first token and 2 at a^2 - a; Llama 4's factor starts to grow at 8,192 tokens."""
    swan = make_encoding("nope", length_scaling="log", scaling_length=362)
    positions = torch.tensor([0.0, 362.0**2 - 362], dtype=torch.float64)
    torch.testing.assert_close(swan.length_factor(positions), torch.tensor([1.0, 2.0], dtype=torch.float64))
    llama = make_encoding("nope", length_scaling="llama4", scaling_length=8192)
    factors = llama.length_factor(torch.tensor([0.0, 8190.0, 8191.0, 16383.0]))
    torch.testing.assert_close(factors, torch.tensor([1.0, 1.0, 1 + 0.1 * math.log(2), 1 + 0.1 * math.log(3)]))


def test_only_one_encoding_adds_positions_to_the_embeddings():
    learned = {"absolute_learned": {"length": 64}}
    assert LayerPattern(8, 2, 2, 4, layers=[learned, "rope", learned]).for_layer(2).input_encoding() is not None
    with pytest.raises(ValueError, match="layers: absolute_learned and tpe add positions to the embeddings"):
        LayerPattern(8, 2, 2, 4, layers=["rope", learned, "tpe"])


@pytest.mark.parametrize("order", [1, -1])
def test_the_longest_context_of_any_layer_limits_the_model(order):
    layers = ["repo", {"absolute_learned": {"length": 8}}][::order]
    model = Transformer(11, partial(LayerPattern, layers=layers), width=8, layers=2, heads=2)
    assert {encoding.longest for encoding in model.kinds} == {None, 8}
    with pytest.raises(ValueError, match="length=8: AbsoluteLearned has no positions for a context of 9 tokens"):
        model(torch.zeros(1, 9, dtype=torch.int64))


@pytest.mark.parametrize("entry", ["absolute_learned:{length:8}", "rope:{randomise:8}"])
def test_a_layer_with_too_few_positions_is_named(entry):
    session = Session(composed("encoding=pattern", f"encoding.layers=[nope,{{{entry}}}]"))
    with pytest.raises(UserError, match=r"^encoding\.layers: (length|randomise)=8: "):
        session.attention(session.transformer(11))


def test_pattern_in_the_banner():
    entries = [{"rope": {"window": 128}}, {"rope": {"window": 128}}, "nope"]
    assert pattern_text(entries, 6) == "6 layers repeat: 2 x rope window=128, nope"
    assert pattern_text(entries, 2).endswith("nope; model.layers=3 or more uses all")


def test_slowest_rotation_in_the_banner():
    rope, long = RoPE(32, 2, 2, 16), RoPE(32, 2, 2, 16, base=10.0)
    turn = 10000 ** (-7 / 8) * 512 / (2 * math.pi)
    assert rotation_text([rope, rope], 512, 10000.0) == (
        f"slowest pair: {turn:.2g} of a turn within 512 tokens (base 10000)"
    )
    assert rotation_text([rope, NoPE(32, 2, 2, 16), long], 512) == (
        f"slowest pair: {turn:.2g} of a turn within 512 tokens; slowest pair: 10.9 turns within 512 tokens"
    )
    assert rotation_text([PoPE(32, 2, 2, 16)], 512).startswith("slowest channel: ")
    for other in (NoPE(32, 2, 2, 16), ComRoPE(32, 2, 2, 16), RoPE(32, 2, 2, 16, clock="medium")):
        assert rotation_text([other], 512) is None


def test_layers_with_their_own_implementation_have_their_own_plan():
    class Own(Encoding):
        def plan(self, *given, **named):
            return replace(super().plan(*given, **named), implementation="own")

    contexts = contexts_of([Encoding(8, 2, 2, 4), Own(8, 2, 2, 4)], torch.zeros(1, 5, 8), None, None)
    assert [context.plan.implementation for context in contexts] == ["torch", "own"]
