"""Compile an emitted module's kernels for a GPU, without one: do they compile, do they spill, what do they use?

Runs in processes of its own, because Triton compiles only where it does not interpret. Register counts differ between
versions of Triton, so the Python whose Triton is to judge can be given. ``python -m optfuse.runtime.aot FILE`` prints
a table.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from optfuse.cache import cache_dir
from optfuse.errors import InvalidOptionError, PlanError, VerificationError
from optfuse.runtime.processes import session

WORKER = Path(__file__).with_name("aot_worker.py")
KERNELS_A_PROCESS = 6  # starting one costs about as much as compiling this many kernels


@dataclass(frozen=True, slots=True)
class KernelReport:
    """What one kernel uses. ``registers`` a thread; ``stack``, ``spills``, ``shared`` in bytes.

    ``spills`` counts bytes of spill stores and loads. ``error`` says why a kernel does not compile, and the figures are
    then zero. ``seconds`` is what compiling took; it took nothing now if ``cached``.
    """

    name: str
    registers: int = 0
    spills: int = 0
    stack: int = 0
    shared: int = 0
    seconds: float = 0.0
    cached: bool = False
    error: str | None = None

    @property
    def passed(self) -> bool:
        """Compiles, and does not spill."""
        return self.error is None and self.spills == 0


def compile_kernels(
    source_path: str | Path,
    target: str = "cuda:90",
    *,
    python: str | Path | None = None,
    processes: int = 2,
    cache: Path | None = None,
) -> list[KernelReport]:
    """Compile every kernel of an emitted module. The module is imported (in other processes): give only your own.

    Args:
        source_path: The emitted module.
        target: "cuda:90" for compute capability 9.0.
        python: The Python to use; this one by default. It needs torch and triton.
        processes: How many compile side by side, at most.
        cache: A folder for reports, by what the machine code depends on; in the user's cache by default.

    Raises:
        InvalidOptionError: An unknown target.
        PlanError: No such file.
        VerificationError: A module that cannot be imported. A kernel that does not compile has its error in its report.
    """
    path = Path(source_path).resolve()
    if not path.is_file():
        raise PlanError(f"{source_path}: no such file; write the schedule's source there first")
    found = re.fullmatch(r"cuda:(\d+)", target)
    if found is None:
        raise InvalidOptionError(f'target {target!r} is unknown; use "cuda:90" for compute capability 9.0')
    folder = cache_dir() / "aot" if cache is None else cache
    folder.mkdir(parents=True, exist_ok=True)
    text = path.read_text(encoding="utf-8")
    order = {name: k for k, name in enumerate(re.findall(r"^@triton\.jit\ndef (\w+)", text, flags=re.MULTILINE))}
    shards = max(1, min(processes, -(-len(order) // KERNELS_A_PROCESS)))
    executable = str(python or sys.executable)
    commands = [
        [executable, str(WORKER), str(path), found[1], str(shard), str(shards), str(folder)] for shard in range(shards)
    ]
    reports = [report for lines in _run(commands, path) for report in lines]
    return sorted(reports, key=lambda report: order.get(report.name, len(order)))


def _run(commands: Sequence[Sequence[str]], path: Path) -> Iterator[list[KernelReport]]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    # Files, not pipes: what a worker leaves behind would keep a pipe open.
    with contextlib.ExitStack() as stack:
        started: list[tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]] = []
        for command in commands:
            out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            (process,) = stack.enter_context(session(command, env=environment, stdout=out, stderr=err))
            started.append((process, out, err))
        for process, out, err in started:
            failed = process.wait() != 0
            out.seek(0)
            err.seek(0)
            if failed:
                last = (err.read().decode(errors="replace").strip().splitlines() or ["no message"])[-1]
                raise VerificationError(f"{path}: cannot be compiled ahead of time: {last}")
            lines = out.read().decode().splitlines()
            yield [KernelReport(**json.loads(line)) for line in lines if line.startswith("{")]


def table(reports: Sequence[KernelReport]) -> str:
    """The reports as aligned text, a line a kernel, with a line of totals."""
    width = max([len(report.name) for report in reports] + [6])
    lines = [f"{'kernel':{width}}  registers  spills  shared"]
    for report in reports:
        figures = f"{report.registers:9}  {report.spills:6}  {report.shared:6}"
        lines.append(f"{report.name:{width}}  {report.error or figures}")
    failed = sum(report.error is not None for report in reports)
    spilling = sum(report.spills > 0 for report in reports)
    lines.append(f"{len(reports)} kernels, {failed} do not compile, {spilling} spill")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m optfuse.runtime.aot FILE [TARGET]``: 0 if all compile without spills, 1 if not."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not 1 <= len(given) <= 2:
        print("usage: python -m optfuse.runtime.aot FILE [TARGET]", file=sys.stderr)
        return 2
    reports = compile_kernels(*given)
    print(table(reports))
    return 0 if all(report.passed for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
