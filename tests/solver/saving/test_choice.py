"""The choice of what to save against every choice, and its bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optfuse.solver.control.clock import Clock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.saving.choice import ForwardValue, choose_saving, least_bytes, of_library_calls

OPTIONS = SolveOptions(workers=1)


@st.composite
def problems(draw: st.DrawFn) -> list[ForwardValue]:
    """Up to five values, views and library calls among them."""
    values: list[ForwardValue] = []
    for k in range(draw(st.integers(1, 5))):
        inputs = tuple(sorted(draw(st.sets(st.integers(0, k - 1), max_size=2)))) if k else ()
        called = draw(st.none() | st.integers(0, 2))
        read: dict[str, Any] = {"called": called, "looped": frozenset(draw(st.sets(st.integers(0, 2), max_size=2)))}
        if draw(st.integers(0, 3)) == 0:
            values.append(ForwardValue(f"v{k}", inputs[:1], None, view=True, **read))
            continue
        values.append(
            ForwardValue(
                f"v{k}",
                inputs,
                draw(st.none() | st.integers(0, 50)),
                draw(st.integers(0, 9)),
                draw(st.none() | st.integers(0, 20)),
                draw(st.integers(0, 9)),
                draw(st.integers(0, 9)),
                draw(st.booleans()),
                **read,
            )
        )
    return values


def subsets(items: list[int]) -> Iterator[frozenset[int]]:
    return (frozenset(some) for count in range(len(items) + 1) for some in combinations(items, count))


def needed_in_memory_at(values: list[ForwardValue], k: int) -> list[int]:
    """The levels at which library calls need a value in memory, or calls that compute what is read there again."""
    found = [] if values[k].called is None else [values[k].called]
    for w, reader in enumerate(values):
        if k in reader.inputs and (reader.view or reader.library):
            found += needed_in_memory_at(values, w)
        if k in reader.inputs and reader.library:
            found += needed_in_registers_at(values, w)
    return found


def needed_in_registers_at(values: list[ForwardValue], k: int) -> list[int]:
    """The levels at which loops may hold a value."""
    found = list(values[k].looped)
    if not values[k].library and not values[k].view:
        found += sorted(needed_in_memory_at(values, k))[:1]
    for w, reader in enumerate(values):
        if k in reader.inputs and not reader.library:
            found += needed_in_registers_at(values, w)
    return found


def cheapest(values: list[ForwardValue], saved: frozenset[int]) -> int | None:
    """The least cost of a backward graph that is given ``saved``; None if there is none.

    Values are written by library calls, or by the kernel of the first level that needs them in memory.
    """
    values = [replace(value, again_ps=None) if k in saved else value for k, value in enumerate(values)]
    first = {k: min(needed_in_memory_at(values, k), default=None) for k in range(len(values))}
    repeated = [
        k
        for k, value in enumerate(values)
        if value.again_ps is not None and not value.view and (value.library or first[k] is not None)
    ]
    costs = []
    for written in subsets(repeated):

        def in_memory(k: int, found: frozenset[int] = saved | written) -> bool:
            value = values[k]
            return k in found or (value.view and (not value.inputs or in_memory(value.inputs[0])))

        calls = [values[k] for k in written if values[k].library]
        if not all(in_memory(u) for call in calls for u in call.inputs):
            continue
        if not all(in_memory(k) for k, value in enumerate(values) if value.called is not None):
            continue
        loops = {k for k in written if not values[k].library}
        cost = sum(call.again_ps or 0 for call in calls) + sum(values[k].write_ps for k in loops)
        kernels = [
            kernel(
                values,
                {k for k, value in enumerate(values) if level in value.looped},
                in_memory,
                frozenset(k for k in loops if first[k] == level),
            )
            for level in range(3)
        ]
        if None not in kernels:
            costs.append(cost + sum(one for one in kernels if one is not None))
    return min(costs, default=None)


def kernel(
    values: list[ForwardValue], wanted: set[int], in_memory: Callable[[int], bool], must: frozenset[int]
) -> int | None:
    """The least cost of one kernel that has ``wanted`` in registers, and computes ``must``; None if it cannot."""
    able = [k for k, v in enumerate(values) if v.again_ps is not None and not v.view and not v.library]
    costs = []
    for computed in subsets(able):
        if not must <= computed:
            continue
        read: set[int] = set()
        ahead, seen = [*wanted, *computed], set[int]()
        while ahead:
            k = ahead.pop()
            if k in seen:
                continue
            seen.add(k)
            if k in computed or values[k].view:
                ahead += values[k].inputs
            else:
                read.add(k)
        if all(in_memory(k) for k in read):
            costs.append(sum(values[k].read_ps for k in read) + sum(values[k].again_ps or 0 for k in computed))
    return min(costs, default=None)


def exhaustive(values: list[ForwardValue], cap: int | None) -> tuple[int, int] | None:
    """The least cost of any choice within the cap, and the fewest bytes of any choice at all; None if there is none."""
    costs, sizes = [], []
    for saved in subsets([k for k, value in enumerate(values) if value.bytes is not None]):
        cost = cheapest(values, saved)
        if cost is None:
            continue
        sizes.append(sum(values[k].bytes or 0 for k in saved))
        if cap is None or sizes[-1] <= cap:
            costs.append(cost + sum(values[k].save_ps for k in saved))
    return (min(costs), min(sizes)) if costs else None


@given(values=problems(), cap=st.none() | st.integers(0, 120))
def test_the_choice_is_the_best_of_all(values: list[ForwardValue], cap: int | None) -> None:
    clock = Clock()
    found = choose_saving(values, cap, OPTIONS, clock, clock.now() + 20)
    best = exhaustive(values, cap)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert (found.cost_ps, found.bound_ps, found.proven) == (best[0], best[0], True)
        assert cap is None or found.bytes <= cap
        cost = cheapest(values, found.saved)
        assert cost is not None
        assert cost + sum(values[k].save_ps for k in found.saved) == found.cost_ps
        assert least_bytes(values, OPTIONS, clock, clock.now() + 20) == best[1]
        calls = choose_saving(of_library_calls(values), cap, OPTIONS, clock, clock.now() + 20)
        assert calls is not None
        assert calls.bound_ps <= found.cost_ps


@pytest.mark.parametrize("cap", [150, 400, 900])
def test_equal_layers_under_a_cap_are_bounded_closely(cap: int) -> None:
    """Forty layers, each with a value that is dear to compute again and one that is cheap."""
    values = []
    for k in range(40):
        values.append(ForwardValue(f"dear{k}", (2 * k - 2,) if k else (), 20, 1, 100, library=True, called=0))
        values.append(ForwardValue(f"cheap{k}", (2 * k,), 20, 2, 5, called=0))
    clock = Clock()
    found = choose_saving(values, cap, OPTIONS, clock, clock.now() + 2)
    assert found is not None
    assert found.bytes <= cap
    assert found.bound_ps >= 0.97 * found.cost_ps


def test_a_value_is_held_at_every_level_at_which_a_view_of_it_is_read() -> None:
    values = [
        ForwardValue("base", (), 8, save_ps=3, again_ps=None, read_ps=2),
        ForwardValue("view", (0,), None, view=True, looped=frozenset({0, 1, 2, 3})),
    ]
    clock = Clock(interruptible=False)
    found = choose_saving(values, None, SolveOptions(workers=1), clock, clock.now() + 10)
    assert found is not None
    assert found.saved == {0}
    assert found.cost_ps == 3 + 4 * 2


def test_a_long_chain_can_be_computed_from_its_beginning_at_every_level() -> None:
    chain = [
        ForwardValue(f"v{k}", (k - 1,) if k else (), 10, 1, 1 if k else None, 1, 1, looped=frozenset({8 - k}))
        for k in range(8)
    ]
    found = choose_saving(chain, 10, OPTIONS, Clock(), Clock().now() + 10)
    assert found is not None
    assert found.saved == {0}
    assert found.proven
