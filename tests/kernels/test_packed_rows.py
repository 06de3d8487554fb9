"""`Documents` of packed rows."""

import torch

from bearings.kernels.documents import Documents


def test_runs_positions_and_borders():
    rows = [[4, 4, 1, 1, 1, 4, -1, -1], [2] * 8, list(range(8))]
    found = Documents.of(torch.tensor(rows))
    for row, ids in enumerate(rows):
        starts = [max(i for i in range(t + 1) if i == 0 or ids[i] != ids[i - 1]) for t in range(8)]
        ends = [min(i for i in range(t + 1, 9) if i == 8 or ids[i] != ids[i - 1]) for t in range(8)]
        assert found.borders[:, row].tolist() == [starts, ends]
        assert found.positions[row].tolist() == [t - start for t, start in enumerate(starts)]
        assert found.runs[row].tolist() == [sorted(set(starts)).index(start) for start in starts]
    assert found.borders.dtype == torch.int32
