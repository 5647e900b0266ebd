"""Agreement of partitions, on cases that can be counted by hand."""

from __future__ import annotations

import pytest

from optfuse.inductor.agreement import Agreement, agreement


def test_counts_pairs_that_share_a_kernel() -> None:
    found = agreement([{0, 1, 2}, {3, 4}], [{0, 1}, {2, 3, 4}], range(5))
    # together in both: 0-1, 3-4; in the first alone: 0-2, 1-2; in the second alone: 2-3, 2-4
    assert found == Agreement(both=2, first=2, second=2, pairs=10)
    assert found.jaccard == pytest.approx(1 / 3)
    assert found.rand == pytest.approx(0.6)


def test_an_op_may_be_in_several_kernels() -> None:
    found = agreement([{0, 1}, {0, 2}], [{0, 1}, {2}], range(3))
    assert (found.both, found.first, found.second) == (1, 1, 0)


def test_only_the_ops_asked_about_count() -> None:
    assert agreement([{0, 1, 7}], [{0, 1}, {7}], {0, 1}) == Agreement(1, 0, 0, 1)


def test_partitions_without_pairs_agree() -> None:
    found = agreement([{0}, {1}], [{0}, {1}], range(2))
    assert (found.jaccard, found.rand) == (1.0, 1.0)
    assert agreement([], [], ()).rand == 1.0
