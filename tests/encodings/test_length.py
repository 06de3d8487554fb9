"""Positions that differ from indices: drawn in training, spaced in evaluation, moved in the cache."""

import pytest
import torch
from encodings_support import ENCODINGS, attend, make_encoding, make_inputs
from torch.autograd.graph import saved_tensors_hooks

from bearings.encodings.contract.context import Context, contexts_of
from bearings.encodings.families.positions import positions_used
from bearings.encodings.options import RoPEOptions
from bearings.kernels import reference
from bearings.kernels.attention.nope import nope_attention
from bearings.kernels.documents import Documents
from bearings.kernels.stretching import Stretch

INDEX = torch.arange(6)
PACKED = torch.tensor([[0, 1, 2, 3, 0, 1], [0, 0, 1, 2, 3, 4]])


def drawn(index=INDEX, seed=0, training=True, **options):
    torch.manual_seed(seed)
    return positions_used(index, training, **options)


def test_positions_are_indices_without_options_and_in_evaluation():
    assert drawn() is INDEX
    assert drawn(training=False, randomise=64) is INDEX
    assert torch.equal(drawn(training=False, randomise=64, spacing=2.5), 2.5 * INDEX.double())


def test_randomised_positions_are_an_ordered_subset_that_restarts_in_documents():
    positions = drawn(randomise=20)
    assert (positions.diff() > 0).all()
    assert positions.min() >= 0
    assert positions.max() < 20
    assert torch.equal(drawn(randomise=20), positions)  # a resumed run seeds its steps the same way
    assert not torch.equal(drawn(seed=1, randomise=20), positions)
    assert torch.equal(drawn(PACKED, randomise=20), positions[PACKED])
    assert torch.equal(drawn(randomise=6), INDEX)


def test_every_subset_is_equally_likely():
    torch.manual_seed(0)
    found = [tuple(positions_used(INDEX[:2], True, randomise=4).tolist()) for _ in range(600)]
    assert len(set(found)) == 6
    assert all(abs(found.count(each) - 100) < 40 for each in set(found))


def test_random_steps_average_one_and_stay_within_the_row():
    steps = torch.stack([drawn(torch.arange(100), seed, random_steps=True) for seed in range(20)])
    assert (steps.diff(dim=-1) > 0).all()
    assert steps.max() <= 100 + 1e-9
    assert steps[:, -1].mean() > 95
    assert torch.equal(drawn(PACKED, random_steps=True), drawn(random_steps=True)[PACKED])


@pytest.mark.parametrize("options", [{"randomise": 40}, {"random_steps": True}])
def test_rope_uses_drawn_positions_in_training(options):
    encoding, inputs = make_encoding("rope", **options), make_inputs(12)
    positions = drawn(torch.arange(12), **options)
    torch.manual_seed(0)
    expected = reference.rope_attention(inputs.q, inputs.k, inputs.v, positions)
    torch.testing.assert_close(attend(encoding, inputs), expected)
    indices = reference.rope_attention(inputs.q, inputs.k, inputs.v, torch.arange(12))
    torch.testing.assert_close(attend(encoding.eval(), inputs), indices)
    assert (expected - indices).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["rope", "pope"])
def test_spaced_positions_decode_as_in_a_whole_pass_and_match_interpolation(name):
    spaced, inputs = make_encoding(name, randomise=64, spacing=4.0).eval(), make_inputs(20)
    plain = attend(make_encoding(name).eval(), inputs)
    for stretch, equal in ((None, False), (Stretch("interpolation", 4, 20), True), (Stretch("window", 1, 7), False)):
        spaced.stretch(stretch)
        whole, state = attend(spaced, inputs), spaced.new_state(2, 20, inputs.q)
        parts = [attend(spaced, inputs.part(*ends), state) for ends in ((0, 12), (12, 13), (13, 20))]
        torch.testing.assert_close(torch.cat(parts, 1), whole)
        assert torch.allclose(whole, plain) is equal


SCALED = [("rope", "yarn", 4.0, 8), ("rope", "power", None, None), ("pope", "ntk", 2.0, None)]


@pytest.mark.parametrize(("name", "form", "factor", "length"), SCALED)
def test_scaling_is_a_stretch_that_stays(name, form, factor, length):
    scaled = make_encoding(name, scaling=form, scaling_factor=factor, scaling_length=length)
    stretched, inputs = make_encoding(name), make_inputs(20)
    stretched.stretch(Stretch(form, factor or 1.0, length or 1))
    expected = attend(stretched, inputs)
    torch.testing.assert_close(attend(scaled, inputs), expected)
    scaled.stretch(Stretch("window", 1, 20))
    scaled.stretch(None)
    torch.testing.assert_close(attend(scaled, inputs), expected)
    with pytest.raises(ValueError, match=r"stretch=ntk: .oPE supports window"):
        scaled.stretch(Stretch("ntk", 2, 20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scaling": "yarn", "scaling_factor": 2.0}, "scaling=yarn: give scaling_length"),
        ({"scaling": "power", "scaling_factor": 2.0}, r"scaling_factor=2\.0: scaling=power does not use it"),
        ({"scaling_length": 8}, "scaling_length=8: scaling=none does not use it"),
        ({"clock": "medium", "spacing": 2.0}, "clock=medium: randomise, random_steps and spacing change indices"),
        ({"randomise": 5, "random_steps": True}, r"randomise=5, random_steps=true: choose one"),
    ],
)
def test_contradicting_options_raise(options, message):
    with pytest.raises(ValueError, match=message):
        RoPEOptions(**options)


def test_rows_longer_than_the_range_raise():
    encoding, inputs = make_encoding("rope", randomise=5), make_inputs(6)
    with pytest.raises(ValueError, match=r"randomise=5: rows have up to 6 tokens: use data\.length or more"):
        Context.of(encoding, inputs.q)
    Context.of(encoding.eval(), inputs.q)


def test_all_layers_use_the_same_draw():
    encodings = [make_encoding("rope", randomise=99, window=window) for window in (None, 3)]
    first, second = contexts_of(encodings, make_inputs(9).q, None, None)
    assert first.positions is second.positions
    assert second.documents is not None


def test_layers_with_other_clocks_have_other_positions():
    encodings = [make_encoding("rope", clock=clock) for clock in ("index", "medium")]
    medium = torch.full((2, 9), 3.5)
    first, second = contexts_of(encodings, make_inputs(9).q, None, None, medium)
    assert torch.equal(first.positions, torch.arange(9))
    assert torch.equal(second.positions, medium)
    with pytest.raises(ValueError, match="stretch=lm_infinite: RoPE supports interpolation, ntk, yarn, llama3, power"):
        encodings[1].stretch(Stretch("lm_infinite", 2, 12))


def test_stretches_that_depend_on_trained_positions_are_refused_with_drawn_ones():
    with pytest.raises(ValueError, match="stretch=yarn: RoPE supports interpolation, lm_infinite, window"):
        make_encoding("rope", randomise=64).stretch(Stretch("yarn", 2, 32))


@pytest.mark.parametrize("rows", [[0, 1, 2, 5, 6], [0, 1, 2, 7, 8, 3, 4]], ids=["deleted", "inserted"])
def test_raw_keys_in_moved_rows_match_keys_turned_to_their_new_positions(rows):
    """PIE (He et al., arXiv 2407.03157) turns cached keys by the change of their positions. Raw keys need no change."""
    encoding, inputs, new = make_encoding("rope"), make_inputs(9), make_inputs(1, seed=1)
    turned = encoding.encode_key(inputs.k, torch.arange(9))[:, rows]
    places, end = torch.arange(len(rows)), torch.tensor([len(rows)])
    moved = encoding.encode_key(turned, places - torch.tensor(rows))
    k, v = torch.cat([moved, encoding.encode_key(new.k, end)], 1), torch.cat([inputs.v[:, rows], new.v], 1)
    expected = nope_attention(encoding.encode_query(new.q, end), k, v)
    encoding.stretch(Stretch("dynamic_ntk", 1, 99))  # the trained frequencies, and raw keys in the state
    state = encoding.new_state(2, 10, inputs.q)
    attend(encoding, inputs, state)
    for cached, given in ((state.keys, inputs.k), (state.values, inputs.v)):
        cached[:, : len(rows)] = given[:, rows]
    state.length = len(rows)
    torch.testing.assert_close(attend(encoding, new, state), expected)


def test_dropped_rope_is_nope_and_stays_so_when_loaded():
    encoding, inputs = make_encoding("rope", drop_after=0.5), make_inputs(12)
    torch.testing.assert_close(attend(encoding, inputs), attend(make_encoding("rope"), inputs))
    loaded = make_encoding("rope", drop_after=0.5)
    encoding.drop()
    loaded.load_state_dict(encoding.state_dict())
    expected = attend(make_encoding("nope"), inputs)
    for each in (encoding, loaded):
        for stretch in (Stretch("window", 1, 12), None):
            each.stretch(stretch)
            assert torch.equal(attend(each, inputs), expected)
        with pytest.raises(ValueError, match="stretch=yarn: RoPE supports lm_infinite, window"):
            each.stretch(Stretch("yarn", 2, 6))


@pytest.mark.parametrize("packed", [False, True])
def test_learned_table_uses_drawn_positions_in_training(packed):
    documents = Documents.of(torch.tensor([[0, 0, 0, 0, 1, 1], [0, 1, 1, 1, 1, 1]])) if packed else None
    index, x = PACKED if packed else INDEX, torch.zeros(2, 6, 12)
    context = Context.of(make_encoding("nope"), x, documents=documents)
    table = make_encoding("absolute_learned", length=30, draw="subset").input_encoding()
    positions = drawn(index, randomise=30)
    torch.manual_seed(0)
    assert torch.equal(table(x, context), table.table[positions].expand(2, -1, -1))
    assert torch.equal(table.eval()(x, context), table.table[index].expand(2, -1, -1))
    table, starts = make_encoding("absolute_learned", length=8, draw="offset").input_encoding(), set()
    for _ in range(30):
        found = table(x, context)
        starts |= {start for start in range(3) if torch.equal(found, table.table[index + start].expand(2, -1, -1))}
    assert starts == {0, 1, 2}
    assert torch.equal(table.eval()(x, context), table.table[index].expand(2, -1, -1))


def saved_bytes(name: str, length: int) -> int:
    """Bytes that one layer keeps for its backward pass."""
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    inputs = [tensor.requires_grad_() for tensor in make_inputs(length, dtype=torch.float32)]
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        attend(make_encoding(name, dtype=torch.float32), inputs)
    return sum(kept.values())


@pytest.mark.parametrize("name", [name for name in ENCODINGS if make_encoding(name).needs.rows])
def test_row_blocks_keep_memory_in_proportion_to_the_length(name):
    """Scores are computed again in the backward pass: those of all pairs would grow with the square."""
    short, middle, long = (saved_bytes(name, length) for length in (128, 256, 512))
    assert 0 < long - middle <= 2 * (middle - short)
