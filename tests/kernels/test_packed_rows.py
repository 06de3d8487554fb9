"""`Documents` of packed rows."""

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


def test_window():
    found = Documents.of(torch.tensor([[4] * 5 + [1] * 3])).within(3)
    starts = [max(0 if t < 5 else 5, t - 2) for t in range(8)]
    ends = [1 + max(t for t in range(s, 8) if starts[t] <= s) for s in range(8)]
    assert found.borders[:, 0].tolist() == [starts, ends]
    assert torch.equal(Documents.single(2, 8, torch.device("cpu")).borders[:, 1], torch.tensor([[0] * 8, [8] * 8]))
