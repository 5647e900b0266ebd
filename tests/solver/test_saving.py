"""The choice of what to save against every choice, and its bounds."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optfuse.solver.control.clock import Clock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.saving import ForwardValue, SavingProblem, choose_saving, least_bytes, of_library_calls

OPTIONS = SolveOptions(workers=1)


@st.composite
def problems(draw: st.DrawFn) -> SavingProblem:
    """Up to six values."""
    count = draw(st.integers(1, 6))
    values = []
    for k in range(count):
        inputs = draw(st.sets(st.integers(0, k - 1), max_size=2)) if k else set()
        values.append(
            ForwardValue(
                f"v{k}",
                tuple(sorted(inputs)),
                draw(st.none() | st.integers(0, 50)),
                draw(st.integers(0, 9)),
                draw(st.none() | st.integers(0, 20)),
                draw(st.booleans()),
                draw(st.integers(0, 9)),
                tuple(sorted(draw(st.sets(st.integers(k + 1, count - 1), max_size=2)))) if k + 1 < count else (),
            )
        )
    return SavingProblem(tuple(values), frozenset(draw(st.sets(st.integers(0, count - 1)))))


def exhaustive(problem: SavingProblem, cap: int | None) -> tuple[int, int] | None:
    """The least cost of any choice within the cap, and the fewest bytes of any choice at all; None if there is none."""
    costs, sizes = [], []
    for states in product((None, "save", "again"), repeat=len(problem.values)):
        if not allowed(problem, states):
            continue
        pairs = list(zip(problem.values, states, strict=True))
        size = sum(value.bytes or 0 for value, state in pairs if state == "save")
        sizes.append(size)
        if cap is None or size <= cap:
            costs.append(
                sum(value.save_ps for value, state in pairs if state == "save")
                + sum(value.again_ps or 0 for value, state in pairs if state == "again")
                + sum(
                    value.read_ps
                    for value, state in pairs
                    if state == "save" and any(states[v] == "again" for v in value.loops)
                )
            )
    return (min(costs), min(sizes)) if costs else None


def allowed(problem: SavingProblem, states: tuple[str | None, ...]) -> bool:
    """Whether a choice gives the backward graph what it reads, each from what is there."""
    for k, (value, state) in enumerate(zip(problem.values, states, strict=True)):
        if (state is None and k in problem.needed) or (state == "save" and value.bytes is None):
            return False
        if state == "again" and (value.again_ps is None or any(states[u] is None for u in value.inputs)):
            return False
    return True


@given(problem=problems(), cap=st.none() | st.integers(0, 120))
def test_the_choice_is_the_best_of_all(problem: SavingProblem, cap: int | None) -> None:
    clock = Clock()
    found = choose_saving(problem, cap, OPTIONS, clock, clock.now() + 20)
    best = exhaustive(problem, cap)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert (found.cost_ps, found.bound_ps, found.proven) == (best[0], best[0], True)
        assert cap is None or found.bytes <= cap
        states = tuple(
            "save" if k in found.saved else "again" if k in found.again else None for k in range(len(problem.values))
        )
        assert allowed(problem, states)
        assert least_bytes(problem, OPTIONS, clock, clock.now() + 20) == best[1]
        calls = choose_saving(of_library_calls(problem), cap, OPTIONS, clock, clock.now() + 20)
        assert calls is not None
        assert calls.bound_ps <= found.cost_ps


@pytest.mark.parametrize("cap", [150, 400, 900])
def test_equal_layers_under_a_cap_are_bounded_closely(cap: int) -> None:
    """Forty layers, each with a value that is dear to compute again and one that is cheap."""
    values = []
    for k in range(40):
        values.append(ForwardValue(f"dear{k}", (2 * k - 2,) if k else (), 20, 1, 100, library=True))
        values.append(ForwardValue(f"cheap{k}", (2 * k,), 20, 2, 5))
    problem = SavingProblem(tuple(values), frozenset(range(80)))
    clock = Clock()
    found = choose_saving(problem, cap, OPTIONS, clock, clock.now() + 2)
    assert found is not None
    assert found.bytes <= cap
    assert found.bound_ps >= 0.97 * found.cost_ps
