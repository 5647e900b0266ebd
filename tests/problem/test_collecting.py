"""The collector's thresholds are as before, whatever happens inside."""

from __future__ import annotations

import gc

import pytest

from optfuse.problem.collecting import rarely_collecting


def test_thresholds_are_put_back_by_the_outermost() -> None:
    before = gc.get_threshold()
    with rarely_collecting():
        inside = gc.get_threshold()
        with rarely_collecting():
            assert gc.get_threshold() == inside > before
        assert gc.get_threshold() == inside
    assert gc.get_threshold() == before


def test_thresholds_are_put_back_after_an_error() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="broken"), rarely_collecting():
        raise ValueError("broken")
    assert gc.get_threshold() == before
