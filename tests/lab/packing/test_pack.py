"""Packings are checked, least where it is said, and refused with a reason."""

from __future__ import annotations

import sys
import time

import pytest

from optfuse.errors import InfeasibleError, InvalidOptionError, InvalidPackingError
from optfuse.lab.packing.pack import pack
from optfuse.problem.packing import Lifetime, check_packing
from tests.packings import least_height, perfect, random_lifetimes
from tests.strategies import share


@pytest.mark.spread(2)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_least_height_on_small_problems(workers: int) -> None:
    for seed in range(share(25)):
        buffers = random_lifetimes(seed, 6, (1, 1, 4))
        result = pack(buffers, workers=workers)
        assert check_packing(buffers, result.offsets, result.height) == ()
        assert result.bound == result.height == least_height(buffers)
        assert result.status == "OPTIMAL"


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_a_full_memory_is_packed(seed: int) -> None:
    buffers = perfect(seed, pieces=80)
    result = pack(buffers, 1024, workers=2)
    assert check_packing(buffers, result.offsets, 1024) == ()
    assert result.height == result.bound == 1024


def test_sizes_of_zero_and_nothing_at_all() -> None:
    assert pack([]).offsets == ()
    assert pack([Lifetime("a", 0, 1, 0), Lifetime("b", 0, 1, 4)], 4).offsets == (0, 0)


def test_too_much_at_once_is_refused_with_the_load() -> None:
    with pytest.raises(InfeasibleError, match="7 bytes are live at once"):
        pack([Lifetime("a", 0, 2, 3), Lifetime("b", 1, 3, 4)], 6)


def test_what_no_search_can_pack_is_proven_so() -> None:
    buffers = [Lifetime("a", 0, 2, 3, alignment=4), Lifetime("b", 1, 3, 3, alignment=4)]
    with pytest.raises(InfeasibleError, match="proven by search"):
        pack(buffers, 6, workers=2)
    assert pack(buffers, 7).bound == 6 < pack(buffers).bound == 7


def test_no_time_gives_a_packing_and_a_bound() -> None:
    buffers = perfect(1, pieces=150)
    result = pack(buffers, time_limit=1e-6, workers=1)
    assert check_packing(buffers, result.offsets, result.height) == ()
    assert result.bound == 1024 <= result.height
    with pytest.raises(InfeasibleError, match="raise the time limit"):
        pack(buffers, 1024, time_limit=1e-6)


@pytest.mark.parametrize(("lower", "upper"), [(0, 10), (0, 9000)])
def test_a_large_problem_keeps_its_time_limit(lower: int, upper: int) -> None:
    """All live at once, or (the second) in a staircase that no order of time packs at the floor."""
    step = 0 if upper == 10 else 1
    buffers = [Lifetime(f"b{n}", lower + n * step, upper + n * step, 64 + n % 7 * step) for n in range(10_000)]
    start = time.monotonic()
    result = pack(buffers, time_limit=0.5, workers=1)
    assert time.monotonic() - start < 5  # it took 20 s and more
    assert result.bound <= result.height <= 1.5 * result.bound
    assert check_packing(buffers, result.offsets, result.height) == ()


def test_numbers_beyond_64_bits_are_refused() -> None:
    for bad in ((0, 3, 1 << 63), (-(1 << 70), 1, 4), (0, 1 << 65, 4), (0, 1, 4, 1 << 64)):
        with pytest.raises(InvalidPackingError, match=r"beyond 2\*\*56"):
            Lifetime("a", *bad)
    with pytest.raises(InvalidPackingError, match="one after another, beyond"):
        pack([Lifetime(f"b{n}", n, n + 1, 1 << 56) for n in range(2)])
    assert pack([Lifetime("a", -(1 << 56), 1 << 56, 1 << 55)], 1 << 70).height == 1 << 55


@pytest.mark.parametrize("bad", [{"capacity": -1}, {"time_limit": 0}, {"workers": 0}, {"seed": -1}])
def test_arguments_out_of_range(bad: dict[str, int]) -> None:
    with pytest.raises(InvalidOptionError, match=next(iter(bad))):
        pack([Lifetime("a", 0, 1, 1)], **bad)


@pytest.fixture
def no_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where numba is not installed."""
    for name in [name for name in sys.modules if name.startswith("optfuse.lab.packing.")]:
        if name.rpartition(".")[2] in ("compiled", "machine_code", "tree", "restarts", "windows", "portfolio"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)


@pytest.mark.usefixtures("no_numba")
def test_without_numba_cpsat_searches_alone_and_says_so() -> None:
    for seed in range(10):
        buffers = random_lifetimes(seed, 6, (1, 1, 4))
        result = pack(buffers, workers=1)
        assert check_packing(buffers, result.offsets, result.height) == ()
        assert result.bound == result.height == least_height(buffers)
    buffers = perfect(2, pieces=80)
    result = pack(buffers, 1024, workers=2)
    assert (result.method, result.height) == ("cpsat", 1024)
    assert result.given_up == pack(buffers, workers=2).given_up
    assert "optfuse[lab]" in result.given_up[0]
    with pytest.raises(InfeasibleError, match=r"raise the time limit .*optfuse\[lab\]"):
        pack(buffers, 1024, time_limit=1e-6)


def test_what_first_fit_packs_gives_up_nothing(no_numba: None) -> None:
    assert pack([Lifetime("a", 0, 3, 4), Lifetime("b", 1, 4, 8)]).given_up == ()
