"""`Documents` of packed rows."""

import pytest
import torch

from bearings.kernels.documents import Documents


def test_positions_and_borders():
    rows = [[4, 4, 1, 1, 1, 4, -1, -1], [2] * 8, list(range(8))]
    found = Documents.of(torch.tensor(rows))
    for row, ids in enumerate(rows):
        starts = [max(i for i in range(t + 1) if i == 0 or ids[i] != ids[i - 1]) for t in range(8)]
        ends = [min(i for i in range(t + 1, 9) if i == 8 or ids[i] != ids[i - 1]) for t in range(8)]
        assert found.borders[:, row].tolist() == [starts, ends]
        assert found.positions[row].tolist() == [t - start for t, start in enumerate(starts)]
    assert found.borders.dtype == torch.int32
    assert found.cu_seqlens is None


def test_ends_of_documents_have_a_fixed_size():
    ids = torch.tensor([[4, 4, 1, 1, 1, 4, -1, -1], [-1] * 8])  # equal ids in two rows are two documents
    ends = [0, 2, 5, 6, 8, 16]
    for most in (5, 6, 9):
        found = Documents.of(ids, most)
        assert found.cu_seqlens.tolist() == ends + [16] * (most - 5)
        assert found.cu_seqlens.dtype == torch.int32
    with pytest.raises(RuntimeError, match="the rows hold more than 4 documents"):
        Documents.of(ids, 4)
    assert Documents.single(3, 4, torch.device("cpu")).cu_seqlens.tolist() == [0, 4, 8, 12]


def test_window():
    found = Documents.of(torch.tensor([[4] * 5 + [1] * 3])).within(3)
    starts = [max(0 if t < 5 else 5, t - 2) for t in range(8)]
    ends = [1 + max(t for t in range(s, 8) if starts[t] <= s) for s in range(8)]
    assert found.borders[:, 0].tolist() == [starts, ends]
    assert (found.window, found.within(5).window, found.within(2).window) == (3, 3, 2)
    assert torch.equal(Documents.single(2, 8, torch.device("cpu")).borders[:, 1], torch.tensor([[0] * 8, [8] * 8]))


@pytest.mark.parametrize("shape", [(0, 4), (2, 0)])
def test_no_tokens(shape):
    found = Documents.of(torch.zeros(shape, dtype=torch.int64), 3)
    assert (found.positions.shape, found.borders.shape) == (shape, (2, *shape))
    assert found.cu_seqlens.tolist() == [0] * 4
    assert found.within(2).borders.shape == (2, *shape)
    single = Documents.single(*shape, torch.device("cpu"))
    assert (single.borders.shape, single.cu_seqlens.tolist()) == ((2, *shape), [0] * (shape[0] + 1))


@pytest.mark.parametrize("window", [0, -1])
def test_a_token_sees_at_least_itself(window):
    """Otherwise its softmax would be over no keys."""
    with pytest.raises(ValueError, match=rf"window={window}: it must be at least 1"):
        Documents.of(torch.zeros(1, 4, dtype=torch.int64)).within(window)
