"""Measure how well a limit on the time, and an interrupt, are kept: what a solve takes beyond them.

    python benchmarks/limits.py INSTANCE.json... [--limits 0.1 1 5] [--interrupts 0.5 3] [--repeat 3]

Each solve runs in a process of its own, which reads the instance first. An interrupt is what the command line makes of
a SIGTERM, so many seconds after the beginning of a solve with a limit of a minute. ``over`` is the time from the limit
or the interrupt to the answer, 0 where the answer came before; ``cpu`` is the processor time, of all threads. Medians.

``--peak-memory`` and ``--recompute`` are the solver's options; a solve that found nothing within a cap has no gap.
With ``--at-most S`` the exit status is 1 when one of the medians of ``over`` is above S seconds.

With ``--processor-time`` limits and interrupts are counted in processor time too: on a machine that others use.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

from optfuse.errors import InfeasibleError
from optfuse.problem.serialize import load_instance
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve

#: The limit of a solve that is interrupted.
LONG = 60.0
POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Case:
    """One solve: ``stop_after`` is None, or the seconds after which it is told to stop."""

    path: Path
    limit: float
    stop_after: float | None
    workers: int
    by_processor: bool
    peak_memory: str | None
    recompute: bool


def measure(case: Case) -> tuple[float, ...]:
    """Wall seconds, processor seconds, seconds over, and gap of one solve in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_solve, args=(sender, case))
    child.start()
    found = receiver.recv()
    child.join()
    return found


def _solve(sender: Connection, case: Case) -> None:
    import_module("optfuse.solver.solve_blocks")  # which the first solve of a process does before its limit begins
    instance = load_instance(case.path)
    wall = time.monotonic
    if case.by_processor:
        time.monotonic = time.process_time
    stop = threading.Event()
    begun, start, used = wall(), time.monotonic(), time.process_time()
    if case.stop_after is not None:
        threading.Thread(target=_set_at, args=(stop, start + case.stop_after), daemon=True).start()
    options = SolveOptions(
        time_limit=case.limit, workers=case.workers, peak_memory=case.peak_memory, recompute=case.recompute
    )
    try:
        gap = solve(instance, options, stop=stop).gap
    except InfeasibleError:
        gap = math.nan
    over = max(0.0, time.monotonic() - start - (case.limit if case.stop_after is None else case.stop_after))
    sender.send((wall() - begun, time.process_time() - used, over, gap))


def _set_at(stop: threading.Event, moment: float) -> None:
    while time.monotonic() < moment:
        time.sleep(POLL_SECONDS)
    stop.set()


def main() -> None:
    """Measure every instance under every limit and interrupt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("instances", nargs="+", type=Path, metavar="INSTANCE.json")
    parser.add_argument("--limits", nargs="*", type=float, default=[0.1, 0.5, 1, 2, 3, 5, 10], metavar="S")
    parser.add_argument("--interrupts", nargs="*", type=float, default=[0.5, 1, 2, 3, 5, 8], metavar="S")
    parser.add_argument("--repeat", type=int, default=3, metavar="N")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--peak-memory", metavar="SIZE")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--at-most", type=float, default=math.inf, metavar="S")
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    cases = [("limit", limit, limit, None) for limit in options.limits]
    cases += [("interrupt", moment, LONG, moment) for moment in options.interrupts]
    worst = 0.0
    for path in options.instances:
        print(f"{path.name}\n{'':<16} {'wall':>7} {'cpu':>7} {'over':>6} {'gap':>8}")
        for kind, moment, limit, stop_after in cases:
            case = Case(
                path,
                limit,
                stop_after,
                options.workers,
                options.processor_time,
                options.peak_memory,
                options.recompute,
            )
            runs = [measure(case) for _ in range(options.repeat)]
            wall, cpu, over, gap = map(statistics.median, zip(*runs, strict=True))
            print(f"{kind:<10} {moment:>5g} {wall:>7.2f} {cpu:>7.2f} {over:>6.2f} {gap:>8.3%}", flush=True)
            worst = max(worst, over)
    sys.exit(worst > options.at_most)


if __name__ == "__main__":
    main()
