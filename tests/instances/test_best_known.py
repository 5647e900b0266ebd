"""What is known holds: no solve contradicts a bound, and no bound a solution."""

from __future__ import annotations

import pytest

from optfuse.problem.serialize import load_instance
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.result import SolveResult
from optfuse.solver.solve import solve
from tests.instances.library import Known, best_known, files

KNOWN = best_known()
#: Solved in the fast tests: few ops, proven, none of the families that are made to be hard, and not the one graph that
#: takes longer than all of the others.
QUICK_OPS = 110
QUICK = sorted(
    name
    for name, row in KNOWN.items()
    if row.status == "OPTIMAL" and row.ops <= QUICK_OPS and not name.startswith(("convex", "grid-64", "dlrm.backward"))
)


def contradictions(known: Known, result: SolveResult, *, complete: bool) -> list[str]:
    """What cannot both be true of a row and of a solve; ``complete``: it had all the time it wanted."""
    found: list[str] = []
    whole_greedy = not any(line.startswith("greedy") for line in result.statistics.given_up)
    if result.greedy_objective != known.greedy and whole_greedy:
        found.append(f"greedy costs {result.greedy_objective}, not {known.greedy}")
    if result.objective < known.bound:
        found.append(f"a solution costs {result.objective}, less than the bound {known.bound}")
    if result.bound > known.objective:
        found.append(f"the bound {result.bound} exceeds a known solution's cost {known.objective}")
    if complete and known.status == "OPTIMAL" and result.status != "OPTIMAL":
        found.append("it was proven optimal before, and was not now")
    if result.status == known.status == "OPTIMAL" and result.objective != known.objective:
        found.append(f"optimal at {result.objective}, and at {known.objective}")
    return found


def test_a_row_a_file_and_each_row_true_to_itself() -> None:
    assert set(KNOWN) == set(files())
    for row in KNOWN.values():
        assert 0 < row.bound <= row.objective <= row.greedy, row.name
        assert row.status == ("OPTIMAL" if row.bound == row.objective else "FEASIBLE"), row.name
    assert len(QUICK) >= 10


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", QUICK)
def test_quick_ones_are_proven_again(name: str) -> None:
    result = solve(load_instance(files()[name]), SolveOptions(time_limit=10, workers=1, deterministic=True))
    assert contradictions(KNOWN[name], result, complete=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KNOWN))
def test_all(name: str) -> None:
    result = solve(load_instance(files()[name]), SolveOptions(time_limit=60))
    assert contradictions(KNOWN[name], result, complete=False) == []


def test_contradictions_are_found() -> None:
    row = Known("x", 3, 100, 90, 80, "FEASIBLE", 0.0)
    result = solve(load_instance(files()["example"]), SolveOptions(workers=1, deterministic=True))
    value = result.objective
    assert result.status == "OPTIMAL"
    true = Known("example", 3, result.greedy_objective, value, value, "OPTIMAL", 0.0)
    assert contradictions(true, result, complete=True) == []
    assert contradictions(row, result, complete=True)
    assert contradictions(
        Known("example", 3, result.greedy_objective, value + 9, value + 1, "FEASIBLE", 0.0), result, complete=True
    )
    assert contradictions(
        Known("example", 3, result.greedy_objective, value - 1, value - 9, "FEASIBLE", 0.0), result, complete=True
    )
