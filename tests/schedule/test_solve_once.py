"""Solutions kept between processes: the same answer, for graphs that are alike but for names, and never a wrong one."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from optfuse.cache import Cache
from optfuse.lab.generated.families import generate
from optfuse.problem.checker import check
from optfuse.problem.instance import Buffer, Instance, Offer, Op, Read, Scheme, Write
from optfuse.problem.serialize import digest
from optfuse.schedule import solve_once as module
from optfuse.schedule.solve_once import Solved, solve_once
from optfuse.solver.control.options import SolveOptions
from tests.problem.cases import example

OPTIONS = SolveOptions(workers=1)


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the instances that were solved."""
    names: list[str] = []

    def solve(instance: Instance, options: SolveOptions):
        names.append(instance.name)
        return original(instance, options)

    original = module.solve
    monkeypatch.setattr(module, "solve", solve)
    return names


def renamed(instance: Instance) -> Instance:
    """The same problem under other names."""
    buffers = tuple(replace(buffer, name=f"other_{buffer.name}") for buffer in instance.buffers)
    ops = tuple(replace(op, name=f"other_{op.name}") for op in instance.ops)
    return replace(instance, name="other", buffers=buffers, ops=ops)


def with_alias() -> Instance:
    """An input, and a window of it that an op reads."""
    buffers = (
        Buffer("x", 4096, "input"),
        Buffer("window", 1024, "input", alias=0),
        Buffer("y", 1024, output=True),
    )
    op = Op("double", "loop", (Offer(1, (Read(1, 1024),), (Write(2, 1024),)),))
    return replace(example(), buffers=buffers, ops=(op,), edges=(), schemes=(Scheme("alone", 1), Scheme("flat", 256)))


@pytest.mark.parametrize(
    "instance", [example(), generate("layers", 60, 0), with_alias()], ids=lambda i: str(len(i.ops))
)
def test_what_was_solved_is_read(instance: Instance, tmp_path: Path, solved: list[str]) -> None:
    first = solve_once(instance, OPTIONS, Cache(tmp_path))
    assert solve_once(instance, OPTIONS, Cache(tmp_path)) == first
    assert solved == [instance.name]


def test_names_do_not_matter(tmp_path: Path, solved: list[str]) -> None:
    first = solve_once(example(), OPTIONS, Cache(tmp_path))
    other = renamed(example())
    second = solve_once(other, OPTIONS, Cache(tmp_path))
    assert solved == [example().name]
    assert second.solution.kernels == first.solution.kernels
    assert (second.solution.instance_name, second.solution.instance_digest) == ("other", digest(other))
    assert check(other, second.solution) == check(other, second.greedy_solution) == ()


def test_other_options_and_other_problems_are_solved(tmp_path: Path, solved: list[str]) -> None:
    cache = Cache(tmp_path)
    capped = replace(example(), rules=replace(example().rules, barrier=(0,)))
    for instance, options in [(example(), OPTIONS), (example(), replace(OPTIONS, seed=1)), (capped, OPTIONS)]:
        solve_once(instance, options, cache)
    assert len(solved) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record["result"].update(bound=record["result"]["bound"] + 1),
        lambda record: record["result"].pop("statistics"),
        lambda record: record["solution"]["kernels"].pop(),
        lambda record: record.update(solution=record["greedy"]) or record["solution"].update(peak_bytes=1),
        lambda record: record.pop("greedy"),
    ],
)
def test_a_damaged_record_is_reported_and_solved_anew(
    damage, tmp_path: Path, solved: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(tmp_path)
    first = solve_once(example(), OPTIONS, cache)
    (path,) = tmp_path.iterdir()
    data = json.loads(path.read_text())
    damage(data["record"])
    path.write_text(json.dumps(data))
    with caplog.at_level(logging.WARNING, "optfuse"):
        again = solve_once(example(), OPTIONS, cache)
    assert "damaged" in caplog.text
    assert again.solution == first.solution
    assert len(solved) == 2
    assert solve_once(example(), OPTIONS, cache) == again
    assert len(solved) == 2


def test_a_result_of_this_process_serves_the_same_problem_under_other_names_and_a_cap_that_it_keeps() -> None:
    first = example()
    found = module.solve(first, OPTIONS)
    known = Solved.of([(first, found)])
    other = renamed(first)
    again = known.result(other, OPTIONS)
    assert again is not None
    assert again.objective == found.objective
    assert not list(check(other, again.solution))
    peak = found.solution.peak_bytes
    assert known.result(other, replace(OPTIONS, peak_memory=peak)) == again
    assert known.result(other, replace(OPTIONS, peak_memory=peak - 1)) is None
    assert known.result(other, replace(OPTIONS, recompute=True)) is None
    assert known.result(with_alias(), OPTIONS) is None
    unproven = Solved.of([(first, replace(found, status="FEASIBLE"))])
    assert unproven.result(other, OPTIONS) is None
    assert unproven.result(other, replace(OPTIONS, peak_memory=peak)) is not None
