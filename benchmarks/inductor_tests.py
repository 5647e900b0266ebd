"""Run PyTorch's own tests of Inductor through optfuse, and list what fails under optfuse alone.

    python benchmarks/inductor_tests.py PATH/test/inductor/test_torchinductor.py --out RESULTS.jsonl
                                        [--backends aot_eager optfuse] [--match WORD...] [--limit S] [--again]
                                        [--device cpu|cuda] [--part K/N]

PATH is an unpacked source of PyTorch; Debian's source package has one (``apt-get source --download-only pytorch``, of
which ``test/inductor`` is enough). ``test_torchinductor_dynamic_shapes.py``, beside it in a folder named ``inductor``,
has the same tests with sizes that are symbols, and others of such sizes; the other files there (``test_cpu_repro.py``,
``test_control_flow.py``, ``test_unbacked_symints.py``, ...) can be named as well. The tests import ``expecttest``. What
they compile goes to a backend of ours instead of Inductor; what they import that this version of torch no longer has is
replaced by an empty list of cases, which is a decorator that does nothing.

Each test of the device runs under "aot_eager" first (AOTAutograd, then eager operators); those that pass run under
"optfuse". A test has a limit of its own, in a worker process: a crash or a hang costs one test. A row a test and
backend is added to RESULTS.jsonl as it comes, and a row that is there is not run again, except the failures with
``--again``. ``--match`` runs only the tests whose names contain one of the words, ``--part 2/8`` every eighth from the
second on. Tests that read Inductor's generated code, counters or
metrics are listed apart when they fail: no other backend can pass them.
"""

from __future__ import annotations

import argparse
import inspect
import json
import multiprocessing
import os
import re
import sys
import time
import unittest
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

#: Classes of tests by device.
CLASSES = {
    "cpu": ("CpuTests", "SweepInputsCpuTest", "TestFull", "DynamicShapesCpuTests", "TestInductorDynamicCPU"),
    "cuda": ("GPUTests", "SweepInputsGPUTest", "DynamicShapesGPUTests", "TestInductorDynamicCUDA"),
}
#: A test with one of these in its source looks at what Inductor generated or counted.
INSIDES = re.compile(
    r"get_code|get_cpp_code|get_triton_code|FileCheck|metrics\.|counters\[|KernelCount|no_indirect_indexing"
    r"|aoti_|aot_inductor|DataTypePropagation|_inductor\.(?!config|utils|metrics\.reset)|inductor_config|load_cache|frame_count"
)
OPTIONS = {"time_limit": 2, "workers": 1}


@dataclass(frozen=True)
class Row:
    """The outcome of one test: "passed", "failed", "skipped", "crashed" or "late", and an error's first line."""

    test: str
    backend: str
    outcome: str
    seconds: float
    error: str = ""
    insides: bool = False


def backends() -> dict[str, Callable[..., Any]]:
    """The compilers by name."""
    optfuse = partial(import_module("optfuse.torch_compile.backend").backend, options=OPTIONS)
    return {"aot_eager": import_module("torch._dynamo.backends.debugging").aot_eager, "optfuse": optfuse}


class Redirect:
    """What stands where Inductor's ``compile_fx`` was: hands graphs to ``compiler``."""

    def __init__(self) -> None:
        self.compiler: Callable[..., Any] | None = None

    def __call__(self, graph: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        """The graph compiled, Inductor's own options left aside."""
        assert self.compiler is not None
        return self.compiler(graph, inputs)


class Dropped(list[Any]):
    """What stands for a name that torch has dropped: no cases in a list or, called, a decorator that does nothing."""

    def __call__(self, *_: Any, **__: Any) -> Callable[[Any], Any]:
        """A decorator that returns the test as it is."""
        return lambda test: test


def load_tests(path: Path) -> ModuleType:
    """The module of tests at ``path``, with an empty stand-in for each name that torch has dropped."""
    sys.path.insert(0, str(path.parent))
    while True:
        try:
            return import_module(path.stem)
        except ImportError as error:
            missing = re.search(r"cannot import name '(\w+)' from '([\w.]+)'", str(error))
            if missing is None:
                raise
            setattr(import_module(missing[2]), missing[1], Dropped())
            sys.modules.pop(path.stem, None)


def names(tests: ModuleType, device: str) -> list[str]:
    """Class.method of every test of the device; of every class of the module where none is named for a device."""
    cases = {
        name: case
        for name, case in vars(tests).items()
        if isinstance(case, type) and issubclass(case, unittest.TestCase) and case.__module__ == tests.__name__
    }
    named = {name for of_device in CLASSES.values() for name in of_device}
    chosen = [name for name in CLASSES[device] if name in cases] if named & set(cases) else list(cases)
    return [f"{name}.{method}" for name in chosen for method in unittest.TestLoader().getTestCaseNames(cases[name])]


def looks_inside(tests: ModuleType, test: str) -> bool:
    """Whether a test reads Inductor's code, counters or metrics, by its source."""
    name, method = test.split(".")
    template = getattr(tests, "CommonTemplate", None)
    plain = re.sub(r"(_dynamic_shapes)?_(cpu|cuda)$", "", method)
    function = getattr(template, plain, None) or getattr(getattr(tests, name), method)
    return INSIDES.search(inspect.getsource(inspect.unwrap(function))) is not None


def run_one(tests: ModuleType, test: str) -> tuple[str, str]:
    """The outcome of one test in this process, and an error's first line."""
    name, method = test.split(".")
    result = unittest.TestResult()
    unittest.TestSuite([getattr(tests, name)(method)]).run(result)
    wrong = [text for _, text in (*result.failures, *result.errors)]
    if wrong:
        return "failed", first_line(wrong[0])
    if result.unexpectedSuccesses:
        return "failed", "unexpected success"
    return ("skipped" if result.skipped else "passed"), ""


def first_line(traceback: str) -> str:
    """The line of a traceback's last error, the one at the left margin that names it."""
    lines = [
        line for line in traceback.splitlines() if re.match(r"[\w.]+(Error|Exception|Failure|Unsupported)\b", line)
    ]
    return (lines or traceback.splitlines() or [""])[-1][:300]


def set_up(path: Path, backend: str) -> ModuleType:
    """The module of tests, with what it compiles redirected to a backend."""
    redirect = Redirect()
    inner: Any = import_module("torch._inductor.compile_fx")
    inner.compile_fx = redirect
    redirect.compiler = backends()[backend]
    tests = load_tests(path)
    vars(tests)["HAS_GPU"] = True  # tests of changing sizes are skipped without one, those of the CPU as well
    return tests


def work(path: Path, backend: str, tests: Sequence[str], sender: Connection) -> None:
    """Run tests one after the other; each is announced by its name and ended by its outcome."""
    module = set_up(path, backend)
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - for the rest of the process
    for test in tests:
        sender.send(test)
        sender.send(run_one(module, test))
    sender.send(None)


def run_all(path: Path, backend: str, tests: Sequence[str], limit: float) -> Iterable[Row]:
    """A row a test. A worker that crashes or exceeds the limit is replaced by one that goes on with the next test."""
    context = multiprocessing.get_context("spawn")  # a GPU in use does not survive a fork
    left = list(tests)
    while left:
        receiver, sender = context.Pipe(duplex=False)
        worker = context.Process(target=work, args=(path, backend, left, sender))
        worker.start()
        sender.close()
        outcome = ("passed", "")
        while left and outcome[0] not in ("crashed", "late"):
            start = time.monotonic()
            outcome = _next_outcome(receiver, limit)
            yield Row(left.pop(0), backend, outcome[0], round(time.monotonic() - start, 2), outcome[1])
        worker.kill()
        worker.join()


def _next_outcome(receiver: Connection, limit: float) -> tuple[str, str]:
    try:
        receiver.recv()  # the test begins; the first one once the worker has started
        return receiver.recv() if receiver.poll(limit) else ("late", f"not done after {limit:g} s")
    except EOFError:
        return "crashed", "the process ended"


def read(out: Path) -> dict[tuple[str, str], Row]:
    """The last row of each test and backend."""
    lines = out.read_text().splitlines() if out.exists() else []
    rows = (Row(**json.loads(line)) for line in lines)
    return {(row.test, row.backend): row for row in rows}


def table(rows: dict[tuple[str, str], Row]) -> str:
    """How many pass under each backend, and those that fail under optfuse alone by name and error."""
    ours = [row for row in rows.values() if row.backend == "optfuse" and row.outcome != "skipped"]
    theirs = [row for row in rows.values() if row.backend == "aot_eager" and row.outcome == "passed"]
    both = [row for row in ours if row.outcome == "passed"]
    alone = [row for row in ours if row.outcome != "passed"]
    lines = [
        f"passed under aot_eager: {len(theirs)}; run under optfuse: {len(ours)}; passed under both: {len(both)}",
    ]
    for title, inside in (("failed under optfuse alone", False), ("of those that look at Inductor's insides", True)):
        chosen = sorted((row for row in alone if row.insides == inside), key=lambda row: row.test)
        lines.append(f"{title}: {len(chosen)}")
        lines += [f"  {row.test} ({row.outcome}): {row.error}" for row in chosen]
    return "\n".join(lines)


def _part(text: str) -> tuple[int, int]:
    part, parts = (int(number) for number in text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


def main() -> None:
    """Run what is left to run, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backends", nargs="+", default=["aot_eager", "optfuse"], choices=["aot_eager", "optfuse"])
    parser.add_argument("--match", nargs="+", default=[""])
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--device", default="cpu", choices=sorted(CLASSES))
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="K/N")
    options = parser.parse_args()
    if not options.path.is_file():
        parser.error(f"{options.path} is no file; give the path of PyTorch's test_torchinductor.py")
    tests = load_tests(options.path)
    part, parts = options.part
    wanted = [t for t in names(tests, options.device) if any(word in t for word in options.match)][part - 1 :: parts]
    for backend in options.backends:
        rows = read(options.out)
        passed = {test for test, name in rows if name == "aot_eager" and rows[test, name].outcome == "passed"}
        done = {t for (t, b), row in rows.items() if b == backend and not (options.again and row.outcome != "passed")}
        left = [test for test in wanted if test not in done and (backend == "aot_eager" or test in passed)]
        with options.out.open("a") as file:
            for row in run_all(options.path, backend, left, options.limit):
                row = replace(row, insides=looks_inside(tests, row.test))
                file.write(json.dumps(asdict(row)) + "\n")
                file.flush()
                print(f"{row.backend} {row.outcome} {row.test} {row.error}", flush=True)
    print(table(read(options.out)))


if __name__ == "__main__":
    main()
