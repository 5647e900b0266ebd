"""The process in which Inductor runs: what it decides for a small model, and how its failures are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from optfuse.errors import InductorError
from optfuse.inductor.compare import compare, inductor_answer
from optfuse.inductor.graph_record import graph_record
from optfuse.inductor.process import run_inductor
from optfuse.problem.checker import check
from optfuse.solver.baseline.greedy import greedy
from tests.batch.running import alive, until
from tests.inductor.models import KERNELS, small

WORKER = "tests.inductor.failing"


@pytest.mark.parametrize(
    ("how", "limit", "message"),
    [
        ("raises", 60.0, "raises: Inductor's process left with exit code 1: ValueError: no fusion today"),
        ("hangs", 0.5, "hangs: Inductor was not done within 0.5 s"),
        ("garbles", 60.0, "garbles: Inductor's process left no answer"),
        ("is silent", 60.0, "is silent: Inductor's process left no answer"),
    ],
)
def test_a_failure_is_a_reason(how: str, limit: float, message: str) -> None:
    with pytest.raises(InductorError, match=message):
        run_inductor({"name": how}, time_limit=limit, worker=WORKER)


def test_what_inductor_left_running_ends_with_it(tmp_path: Path) -> None:
    with pytest.raises(InductorError, match="left no answer"):
        run_inductor({"name": f"leaves a process: {tmp_path / 'pid'}"}, time_limit=60.0, worker=WORKER)
    until(lambda: alive([int((tmp_path / "pid").read_text())]) == [], 10)


@pytest.mark.slow
def test_the_kernels_of_a_small_model() -> None:
    captured, extraction = small()
    answer = inductor_answer(extraction, run_inductor(graph_record(captured)))

    instance = extraction.instance
    loops = [{instance.ops[op].name for op in kernel} for kernel in answer.mapped.kernels if kernel]
    assert loops == list(KERNELS)
    assert [launch.kind for launch in answer.groups.launches] == ["loops", "library", "loops"]
    assert answer.mapped.unmapped == ()
    assert check(instance, answer.solution) == ()

    ours = greedy(instance)
    compared = compare(extraction, answer, ours, {"greedy again": ours})
    assert (compared.agreement.jaccard, compared.agreement.rand, compared.agreement_once.jaccard) == (1.0, 1.0, 1.0)
    assert [partition.name for partition in compared.partitions] == ["inductor", "greedy", "greedy again"]
    assert {(p.kernels, p.objective, p.moved_bytes) for p in compared.partitions} == {
        (3, ours.objective, compared.partitions[0].moved_bytes)
    }
    assert (compared.fidelity.launches, compared.fidelity.split, compared.fidelity.repeated) == (3, 0, 0)
