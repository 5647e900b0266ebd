"""The collector's thresholds are as before, whatever happens inside."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from optfuse.problem.garbage_collection import rarely_collecting


def test_thresholds_are_put_back_by_the_outermost() -> None:
    before = gc.get_threshold()
    with rarely_collecting():
        inside = gc.get_threshold()
        with rarely_collecting():
            assert gc.get_threshold() == inside > before
        assert gc.get_threshold() == inside
    assert gc.get_threshold() == before


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    """As in a process that has not hidden anything from the collector, which the tests' own has."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("nothing_frozen")
def test_what_was_made_inside_is_not_looked_at_again_and_no_longer_hidden() -> None:
    many = gc.get_threshold()[0] + 1
    with rarely_collecting():
        made = [[] for _ in range(many)]
    assert {id(one) for one in made} <= {id(other) for other in gc.get_objects(generation=2)}
    assert gc.get_freeze_count() == 0


def test_thresholds_are_put_back_after_an_error() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="broken"), rarely_collecting():
        raise ValueError("broken")
    assert gc.get_threshold() == before
