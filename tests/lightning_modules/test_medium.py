"""Positions in the time of the medium: what each domain counts, decoding in pieces, and packed documents."""

import numpy as np
import pytest
import torch
from conftest import composed
from encodings_support import make_documents
from hypothesis import given, settings
from hypothesis import strategies as st
from maestro_support import as_notes

from bearings.core.errors import UserError
from bearings.domains import remi
from bearings.domains.clocks import KEPT, Clock
from bearings.domains.flip_flop import FlipFlop
from bearings.domains.genome import Genome
from bearings.domains.jsb import JSB
from bearings.domains.maestro import Maestro
from bearings.domains.text import Text
from bearings.kernels.documents import Documents
from bearings.lightning_modules.medium import MediumClock
from bearings.session.session import Session

IN_A_LAYER = ["encoding=pattern", "encoding.layers=[nope,{rope:{clock:medium}}]"]
ADVANCES = np.array([0, 1, 6, 0, 96, 0])
CLOCKS = {
    "sums": Clock(ADVANCES),
    "places": Clock(ADVANCES, places=np.array([KEPT, KEPT, KEPT, 5, 0, 11])),
    "raster": Clock(np.ones(6, np.int64), columns=4),
}
every_clock = pytest.mark.parametrize("kind", CLOCKS)
few = settings(max_examples=15)
pieces = st.lists(st.integers(1, 12), min_size=1, max_size=5)


def positions_of(domain, tokens) -> list:
    return MediumClock(domain.clock())(torch.as_tensor(np.asarray(tokens, np.int64))[None])[0].tolist()


def drawn(total: int, seed: int) -> torch.Tensor:
    return torch.randint(6, (2, total), generator=torch.Generator().manual_seed(seed))


def by_hand(clock: Clock, tokens: list[int]) -> list:
    """Positions of one document, token by token."""
    total, place, found = 0, 0, []
    for index, token in enumerate(tokens):
        total += int(clock.advances[token]) if index else 0
        if clock.places is not None and clock.places[token] != KEPT:
            place = int(clock.places[token])
        found.append(total + place if clock.columns is None else [*divmod(total - 1, clock.columns)])
    return found


@every_clock
@few
@given(pieces=pieces, seed=st.integers(0, 99))
def test_pieces_and_packed_documents_equal_single_documents(kind, pieces, seed):
    clock, tokens = MediumClock(CLOCKS[kind]), drawn(sum(pieces), seed)
    whole = clock(tokens)
    assert whole.dtype == torch.float64
    assert whole.tolist() == [by_hand(CLOCKS[kind], row.tolist()) for row in tokens]
    state = clock.new_state(2, tokens.device)
    assert torch.equal(torch.cat([clock(piece, None, state) for piece in tokens.split(pieces, 1)], 1), whole)
    packed = clock(tokens, Documents.of(make_documents(pieces)))
    for row, order in enumerate((pieces, pieces[::-1])):
        singles = torch.cat([clock(piece) for piece in tokens[row : row + 1].split(order, 1)], 1)
        assert torch.equal(packed[row : row + 1], singles)


@every_clock
def test_casts_change_no_position_and_the_checkpoint_holds_none(kind):
    clock, tokens = MediumClock(CLOCKS[kind]), drawn(40, 0)
    whole = clock(tokens)
    assert torch.equal(clock.to(torch.bfloat16)(tokens), whole)
    assert not clock.state_dict()


def test_documents_and_a_state_with_tokens_raise():
    clock, tokens = MediumClock(CLOCKS["sums"]), drawn(3, 0)
    state = clock.new_state(2, tokens.device)
    clock(tokens, None, state)
    with pytest.raises(ValueError, match="cannot be packed in rows that follow a state"):
        clock(tokens, Documents.of(torch.zeros_like(tokens)), state)


def test_generated_tasks_have_no_medium():
    assert FlipFlop().clock() is None


@pytest.mark.parametrize(
    ("encoding", "named"),
    [(["encoding=rope", "encoding.clock=medium"], "encoding."), (IN_A_LAYER, "encoding.layers: ")],
)
def test_a_domain_without_a_medium_is_refused(encoding, named):
    config = composed("domain=flip_flop", *encoding) | {"names": {"domain": "flip_flop"}, "content": {}}
    with pytest.raises(UserError, match=f"^{named}clock=medium: domain=flip_flop has no time other than the number"):
        Session(config).transformer(5)


@pytest.mark.parametrize("encoding", [["encoding=rope", "encoding.clock=medium"], IN_A_LAYER])
def test_the_model_reads_the_medium_if_any_layer_uses_it(encoding):
    assert Session(composed("domain=jsb", *encoding) | {"content": {}}).transformer(60).medium is not None
    assert Session(composed("domain=jsb", "encoding=rope") | {"content": {}}).transformer(60).medium is None


@pytest.mark.parametrize("begun", [0, 3])
def test_bytes_count_from_the_first_token(begun):
    assert positions_of(Text(tokenizer="bytes"), [256, *b"ten bytes"][begun:]) == list(range(10 - begun))


@pytest.mark.parametrize("tokenizer", ["kmer6", "base"])
def test_genome_counts_letters(tokenizer):
    domain = Genome(tokenizer=tokenizer)
    tokens = domain.encode("ACGTACGTNNACGTACGTACGTACAC")
    letters = np.cumsum([len(domain.decode([token])) for token in tokens])
    assert positions_of(domain, tokens) == letters.tolist()
    assert letters[-1] == 26


def test_rows_of_the_raster_are_time_steps():
    domain = JSB()
    tokens = domain.encode(np.arange(48, 60).reshape(3, 4))
    assert positions_of(domain, tokens) == [[-1, 3], *([step, voice] for step in range(3) for voice in range(4))]
    # Windows begin at multiples of the period, so their first token is a bass, as the start token is.
    window = positions_of(domain, tokens[domain.period :])
    assert window == [[step - 1, voice] for step, voice in positions_of(domain, tokens)[domain.period :]]


@pytest.mark.parametrize("tokenizer", ["fine", "pope"])
@few
@given(
    notes=st.lists(
        st.tuples(st.integers(0, 900), st.integers(1, 24), st.integers(21, 108), st.integers(1, 127)), min_size=1
    )
)
def test_remi_counts_the_grid_points_of_its_time(tokenizer, notes):
    codec = remi.remi(tokenizer)
    tokens = codec.encode(as_notes(sorted(notes)))
    found = np.array(positions_of(Maestro(tokenizer=tokenizer), tokens))
    np.testing.assert_allclose(found[1:] - codec.bar, np.cumsum(codec.advance(tokens))[1:] / codec.step)
    assert found[0] == 0


def test_a_row_of_remi_may_begin_within_a_bar():
    codec = remi.remi("fine")
    tokens = codec.encode(as_notes([(100, 6, 60, 64), (130, 6, 64, 67), (297, 48, 21, 1)]))
    found, begun = (
        positions_of(Maestro(), tokens),
        tokens.tolist().index(int(np.flatnonzero(codec.kind == "Bar")[0])) + 2,
    )
    row = positions_of(Maestro(), tokens[begun:])
    assert codec.kind[tokens[begun]] == "Position"
    assert (np.array(found[begun:]) - row).tolist() == [found[begun] - row[0]] * len(row)
