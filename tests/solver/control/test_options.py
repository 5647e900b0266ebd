"""Options are refused by name when they are unknown or out of range."""

from __future__ import annotations

import math

import pytest

from optfuse.errors import InvalidOptionError
from optfuse.solver.control.options import SolveOptions


def test_defaults_are_valid() -> None:
    options = SolveOptions()
    assert (options.solver, options.time_limit, options.order) == ("cpsat", 30.0, "memory")
    assert options.workers >= 1


def test_options_as_callers_give_them() -> None:
    given = SolveOptions(time_limit=5)
    assert SolveOptions.of(given) is given
    assert SolveOptions.of({"time_limit": 5}) == given
    assert SolveOptions.of(None) == SolveOptions()
    with pytest.raises(InvalidOptionError, match="options must be SolveOptions or a dictionary"):
        SolveOptions.of(5)  # type: ignore[arg-type]


def test_from_mapping() -> None:
    assert SolveOptions.from_mapping({"time_limit": 5, "seed": 3}) == SolveOptions(time_limit=5, seed=3)


@pytest.mark.parametrize(("key", "nearest"), [("timelimit", "time_limit"), ("worker", "workers"), ("sead", "seed")])
def test_unknown_keys_name_the_nearest(key: str, nearest: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"unknown option {key!r}; did you mean {nearest!r}"):
        SolveOptions.from_mapping({key: 1})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("time_limit", 0),
        ("time_limit", -1.0),
        ("time_limit", math.inf),
        ("time_limit", math.nan),
        ("time_limit", "5"),
        ("time_limit", True),
        ("workers", 0),
        ("workers", 1.5),
        ("calls", 0),
        ("calls", 1e6),
        ("seed", -1),
        ("seed", 1 << 31),
        ("solver", "gurobi"),
        ("solver", ["cpsat"]),
        ("order", "random"),
        ("deterministic", 1),
        ("recompute", "yes"),
        ("peak_memory", 0),
        ("peak_memory", True),
        ("peak_memory", "2 acres"),
        ("peak_memory", "GiB"),
    ],
)
def test_values_out_of_range(key: str, value: object) -> None:
    with pytest.raises(InvalidOptionError, match=key):
        SolveOptions.from_mapping({key: value})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2.5GiB", 5 << 29),
        ("800MB", 800_000_000),
        ("64 KiB", 1 << 16),
        ("1048576", 1 << 20),
        (12345, 12345),
        ("1g", 10**9),
    ],
)
def test_sizes_of_memory(text: int | str, size: int) -> None:
    assert SolveOptions(peak_memory=text).peak_bytes == size
