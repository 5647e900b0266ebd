from __future__ import annotations

from itertools import pairwise

from optfuse.solver.control.options import SolveOptions
from optfuse.solver.control.progress import Journal, Progress
from optfuse.solver.solve import solve
from tests.layered import build


def test_only_what_is_better_is_kept() -> None:
    heard: list[Progress] = []
    journal = Journal(heard.append)
    journal.bound("blocks", 5)
    journal.note("greedy", 100, 10)
    journal.note("blocks", 120, 5)
    journal.bound("blocks", 60)
    journal.note("search", 80, 70)
    journal.note("done", 80, 90)
    assert [(r.stage, r.objective, r.bound) for r in journal.records] == [
        ("greedy", 100, 10),
        ("blocks", 100, 60),
        ("search", 80, 70),
        ("done", 80, 80),
    ]
    assert heard == list(journal.records)
    assert [round(r.gap, 3) for r in heard] == [0.9, 0.4, 0.125, 0.0]


def test_a_solve_reports_from_greedy_to_its_answer() -> None:
    heard: list[Progress] = []
    result = solve(build(3, 40), SolveOptions(workers=1, deterministic=True, time_limit=1), on_progress=heard.append)
    assert tuple(heard) == result.statistics.progress
    assert (heard[0].stage, heard[0].objective) == ("greedy", result.greedy_objective)
    assert (heard[-1].stage, heard[-1].objective, heard[-1].bound) == ("done", result.objective, result.bound)
    assert len(heard) > 2
    for earlier, later in pairwise(heard):
        assert later.objective <= earlier.objective
        assert later.bound >= earlier.bound
        assert later.seconds >= earlier.seconds
