"""Random training steps at changing sizes, through one function of torch.compile's: all that eager does, they do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

from optfuse.runtime.environment import mode
from optfuse.torch_compile.backend import backend
from optfuse.torch_compile.compilation import Record
from tests.torch_compile.fuzz_judging import faults_of_calls, smaller
from tests.torch_compile.fuzz_sized import SizedProgram, draw
from tests.torch_compile.test_fuzz import OPTIONS, quiet, raised_as_text

__all__ = ["quiet"]

pytestmark = [
    pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU"),
    pytest.mark.filterwarnings("ignore"),  # what torch says of its own operators is no concern of these tests
]

#: Programs of a quick run; with ``--hypothesis-profile=nightly`` and among the slow tests there are more.
QUICK, PART = 3, 100
PARTS = 20 if settings.default.max_examples >= 100 else 2
records: list[Record] = []


def scheduled(graph: Any, inputs: Any, **more: Any) -> Any:
    """The backend, whose records are kept."""
    run = backend(graph, inputs, **more)
    records.append(run.record)
    return run


def outcome(program: SizedProgram, compiler: Any, dynamic: bool = True, **options: Any) -> list[str]:
    """What differs from eager at any size, or what was raised."""
    calls = [(program.at(call), 1 + k % 2) for k, call in enumerate(program.calls)]
    return raised_as_text(lambda: faults_of_calls(calls, compiler, dynamic=dynamic, **options))


def fails(program: SizedProgram) -> bool:
    """Whether optfuse does what neither eager nor AOTAutograd does: sizes of 0 and 1 are compiled by themselves."""
    if not outcome(program, scheduled, options=OPTIONS):
        return False
    return not any(outcome(program, "aot_eager", dynamic=dynamic) for dynamic in (True, False))


def check(seed: int) -> None:
    program = draw(seed)
    if not fails(program):
        return
    program = smaller(program, fails)
    pytest.fail(f"seed {seed}:\n{program}\n" + "\n".join(outcome(program, scheduled, options=OPTIONS)))


def test_some_programs() -> None:
    for seed in range(QUICK):
        check(seed)
    assert any("[" not in schedule.name and ".backward" in schedule.name for r in records for schedule in r.schedules)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_programs(part: int) -> None:
    for seed in range(QUICK + part * PART, QUICK + (part + 1) * PART):
        check(seed)


@pytest.mark.slow
def test_programs_are_varied() -> None:
    """Small sizes, writes, shared memories and sizes as numbers occur among the first programs."""
    programs = [draw(seed) for seed in range(100)]
    text = "\n".join(map(str, programs))
    for part in ("// 2", "% 4", "arange(", "_(", "] = ", "cat", "narrow", "reshape", "made=True", "offset=1"):
        assert part in text, part
    calls = [call for program in programs for call in program.calls]
    assert {size for call in calls for size in call} >= {0, 1, 2, 3, 7}
    assert any(len({window.memory for window in p.windows}) < len(p.windows) for p in programs)
    assert any(program.at(call).inputs(1)[0] for program in programs for call in program.calls)
