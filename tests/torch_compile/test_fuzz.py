"""Random programs of views, writes in place and odd inputs through torch.compile: all that eager does, they do."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import settings

from optfuse.compiler.frontend.torch_internals.transform_state import modes_restored_on_error
from optfuse.runtime.environment import mode
from optfuse.torch_compile.backend import backend
from tests.torch_compile.fuzz_inputs import Argument, Memory
from tests.torch_compile.fuzz_judging import Ran, disagreements, faults, ran, smaller
from tests.torch_compile.fuzzed import Program, draw

pytestmark = [
    pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU"),
    pytest.mark.filterwarnings("ignore"),  # what torch says of its own operators is no concern of these tests
]

OPTIONS = {"time_limit": 5, "workers": 1, "cache": False}
#: Programs of a quick run; with ``--hypothesis-profile=nightly`` and among the slow tests there are more.
QUICK, PART = 8, 250
PARTS = 20 if settings.default.max_examples >= 100 else 4
met: Counter[str] = Counter()


def scheduled(graph: Any, inputs: Any, **more: Any) -> Any:
    """The backend, which also counts the graphs that it schedules, and those that run as they were traced."""
    run = backend(graph, inputs, **more)
    met["traced"] += len(run.record.unplanned)
    met["scheduled"] += not run.record.unplanned
    return run


def raised_as_text(judge: Callable[[], list[str]]) -> list[str]:
    """The faults that ``judge`` finds, or what it raised."""
    try:
        with modes_restored_on_error():  # else what follows would fail as well
            return judge()
    except Exception as error:
        return [f"raised {type(error).__name__}: {error}"]


def outcome(program: Program, compiler: Any, **options: Any) -> list[str]:
    """What differs from eager, or what was raised."""
    return raised_as_text(lambda: faults(program, compiler, **options))


def fails(program: Program) -> bool:
    """Whether optfuse does what neither eager nor AOTAutograd does."""
    return bool(outcome(program, scheduled, options=OPTIONS)) and not outcome(program, "aot_eager")


def check(seed: int) -> None:
    program = draw(seed)
    met["programs"] += 1
    if not fails(program):
        return
    program = smaller(program, fails)
    pytest.fail(f"seed {seed}:\n{program}\n" + "\n".join(outcome(program, scheduled, options=OPTIONS)))


@pytest.fixture(autouse=True)
def quiet() -> Any:
    logging.getLogger("optfuse").setLevel(logging.ERROR)
    yield
    logging.getLogger("optfuse").setLevel(logging.NOTSET)


def test_some_programs() -> None:
    for seed in range(QUICK):
        check(seed)
    assert met["scheduled"] > QUICK // 2 > 5 * met["traced"], "most graphs must be scheduled for this to say anything"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_programs(part: int) -> None:
    for seed in range(QUICK + part * PART, QUICK + (part + 1) * PART):
        check(seed)


def test_a_wrong_program_is_noticed() -> None:
    """The judge tells a wrong value, stride, gradient, write and alias, each from what eager does."""
    x = torch.arange(6.0).reshape(2, 3)
    wrong: dict[str, tuple[Any, Any]] = {
        "value": (lambda a: (a * 2,), lambda a: (a * 3,)),
        "stride": (lambda a: (a * 2,), lambda a: ((a * 2).t().contiguous().t(),)),
        "gradient": (lambda a: (a * 2,), lambda a: (a.detach() + a,)),
        "write": (lambda a: (a.detach().add_(1) * 1,), lambda a: (a.detach() + 1,)),
        "alias": (lambda a: (a[1:],), lambda a: (a[1:] * 1,)),
        "object": (lambda a: (a,), lambda a: (a.view(2, 3),)),
    }
    for name, (right, other) in wrong.items():
        assert judged(right, right, x) == [], name
        assert judged(right, other, x) != [], name


def test_roundings_of_float64_count_against_the_values_that_cancel() -> None:
    x = torch.tensor([0.1, 0.3], dtype=torch.float64)
    runs = [Ran((y,), (), (), ()) for y in ((x + 1000) - 1000, x, x)]
    assert disagreements(*runs) != []
    assert disagreements(*runs, largest_double=1000.5) == []
    assert disagreements(*[Ran((y,), (), (), ()) for y in (x + 1e-9, x, x)], largest_double=1000.5) != []


def judged(eager: Any, other: Any, x: torch.Tensor) -> list[str]:
    program = Program((Memory("float32", x.numel(), grad=True, made=True),), (Argument(0, (2, 3), (3, 1), 0),), (), ())
    wanted, exact, got = ran(eager, program, 1), ran(eager, program, 1, wide=True), ran(other, program, 1)
    return disagreements(got, wanted, exact)


@pytest.mark.slow
def test_programs_are_varied() -> None:
    """Each kind of input and statement occurs among the first programs."""
    programs = [draw(seed) for seed in range(300)]
    text = "\n".join(map(str, programs))
    for part in (
        "as_strided",
        "unfold",
        "diagonal",
        "_(",
        "] = ",
        "scatter",
        "where",
        "clamp",
        "pad",
        "cat",
        "//",
        "==",
    ):
        assert part in text, part
    memories = [memory for program in programs for memory in program.memories]
    assert {memory.dtype for memory in memories} >= {"bool", "uint8", "int64", "bfloat16", "float16", "float64"}
    assert any(memory.made for memory in memories)
    arguments = [argument for program in programs for argument in program.arguments]
    assert any(0 in argument.shape for argument in arguments)
    assert any(0 in argument.stride for argument in arguments)
    assert any(argument.offset for argument in arguments)
