"""P-values of the exact sign-flip test, and their adjustment by Holm's method."""

import numpy as np
import pytest

from bearings.reporting.statistics import holm, sign_flip


@pytest.mark.parametrize(
    ("figures", "p", "floor"),
    [
        ([1, 2, 3], 2 / 8, 2 / 8),
        ([-1, -2, -3, -4, -5], 2 / 32, 2 / 32),
        ([1, 2, -3], 8 / 8, 2 / 8),  # sums 6 4 2 0 0 -2 -4 -6: 0 is reached or passed by five on either side
        ([4, 2, -1], 4 / 8, 2 / 8),  # 7 5 3 1 -1 -3 -5 -7: 5 is the second largest
        (range(1, 16), 2 / 2**15, 2 / 2**15),
    ],
)
def test_sign_flip_is_exact_and_returns_its_floor(figures, p, floor):
    assert sign_flip(np.array(figures, float)) == (pytest.approx(p), floor)


def test_sign_flip_is_random_for_many_seeds():
    p, floor = sign_flip(np.arange(1.0, 21))
    assert (p, floor) == (pytest.approx(2 / 100_000), 2 / 100_000)


def test_holm_by_hand():
    # Sorted 0.01 0.02 0.03 0.5, times 4 3 2 1: 0.04 0.06 0.06 0.5; none falls below one before it.
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.6, 0.7]) == [1, 1]
    assert holm([]) == []
