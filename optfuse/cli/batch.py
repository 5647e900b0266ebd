"""``optfuse batch``: a whole zoo, every graph under several solvers, in one run that can be stopped and resumed."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from optfuse.cli.options import Device, GraphLimit, Seed, solve_options
from optfuse.cli.output import print_json, say
from optfuse.errors import InvalidOptionError

if TYPE_CHECKING:
    from optfuse.batch.plan import BatchSolver
    from optfuse.batch.run import BatchOptions, Progress, Watch


def command(
    sources: Annotated[
        list[Path], typer.Argument(metavar="SOURCES...", help="Model files, instances, GraphNet samples, or folders.")
    ],
    out: Annotated[Path, typer.Option(metavar="RUN", help="The run's folder: results, plans, instances.")],
    solvers: Annotated[
        str, typer.Option(metavar="A,B", help="Of greedy, cpsat, exhaustive, inductor.")
    ] = "greedy,cpsat",
    mode: Annotated[str, typer.Option(help="both, inference or training: which graphs of a model.")] = "both",
    size: Annotated[str, typer.Option(help="full, bench or small: which of a model's sizes.")] = "full",
    device: Device = "h200",
    time_limit: GraphLimit = 30.0,
    workers: Annotated[int, typer.Option(metavar="N", help="Threads of a solve; tasks run side by side.")] = 1,
    seed: Seed = 0,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Tasks at a time; one a core when left out.")] = None,
    task_limit: Annotated[float, typer.Option(metavar="S", help="Seconds after which a task is killed.")] = 900.0,
    memory_limit: Annotated[float | None, typer.Option(metavar="GIB", help="Memory of one task.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with RUN: do what is missing or stale.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="With --resume: also what crashed or met a limit.")] = False,
    engine: Annotated[str, typer.Option(help="local, dask or ray: where tasks run.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of a cluster that runs already.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object with the counts on stdout.")] = False,
) -> None:
    """Solve every graph of many models under several solvers; a task that fails is a row with its reason."""
    from optfuse.batch.engines import make_engine
    from optfuse.batch.run import run_batch
    from optfuse.batch.sources import find_sources
    from optfuse.batch.store import Store

    if retry and not resume:
        raise InvalidOptionError("--retry is about a run that is there already: add --resume")
    options = _options(solvers, mode, size, device, task_limit, memory_limit, workers, retry, (time_limit, seed))
    count = (os.cpu_count() or 1) if jobs is None else jobs
    if count < 1:
        raise InvalidOptionError(f"jobs must be at least 1, not {count}")
    found = find_sources(sources)
    running = make_engine(engine, count, address)  # type: ignore[arg-type]
    try:
        store = Store(out, {"sources": [str(source.path) for source in found], **options.as_json()}, resume=resume)
    except BaseException:
        running.close()
        raise
    start = time.monotonic()
    try:
        with _shown(sys.stderr.isatty()) as watch:
            progress = run_batch(found, store, running, options, watch)
    except KeyboardInterrupt:
        say(f"interrupted; {out} holds what was done, and --resume goes on from there")
        raise typer.Exit(130) from None
    finally:
        store.close()
    _say_end(out, progress, time.monotonic() - start, json)


def _options(
    solvers: str,
    mode: str,
    size: str,
    device: str,
    task_limit: float,
    memory_limit: float | None,
    workers: int,
    retry: bool,
    solve: tuple[float, int],
) -> BatchOptions:
    """The options of the batch, all checked before the first task.

    Raises:
        InvalidOptionError: On an unknown choice or a value out of range.
    """
    from optfuse.batch.plan import SOLVERS, Limits, Size
    from optfuse.batch.run import BatchOptions, ModeChoice
    from optfuse.problem.device_files import load_device

    load_device(device)
    for name, value, known in (("mode", mode, get_args(ModeChoice)), ("size", size, get_args(Size))):
        if value not in known:
            raise InvalidOptionError(f"{name} must be one of {', '.join(known)}, not {value!r}")
    names: tuple[Any, ...] = tuple(dict.fromkeys(name.strip() for name in solvers.split(",")))
    for name in names:
        if name not in SOLVERS:
            raise InvalidOptionError(f"solvers must be some of {', '.join(SOLVERS)}, not {name!r}")
    given = {"time_limit": solve[0], "seed": solve[1], "workers": workers}
    chosen: tuple[BatchSolver, ...] = tuple(
        name if name == "inductor" else solve_options(**given, solver=name).solver for name in names
    )
    for name, value in (("task-limit", task_limit), ("memory-limit", memory_limit)):
        if value is not None and not 0 < value < math.inf:
            raise InvalidOptionError(f"--{name} must be above zero and finite, not {value!r}")
    return BatchOptions(
        solvers=chosen,
        mode=mode,  # type: ignore[arg-type]
        size=size,  # type: ignore[arg-type]
        device=device,
        limits=Limits(task_limit, memory_limit, workers),
        solve=given,
        retry=retry,
    )


@contextmanager
def _shown(terminal: bool) -> Generator[Watch]:
    """What shows the progress: a bar on a terminal, else a line a finished task."""
    if not terminal:
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[last]}", markup=False),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("batch", failed=0, last="", total=None)

        def watch(progress: Progress) -> None:
            bar.update(task, completed=progress.done, total=progress.total, failed=progress.failed, last=progress.last)

        yield watch


class _Lines:
    """Says each new result once, with counts and the time that is left at the present rate."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._last = ""

    def __call__(self, progress: Progress) -> None:
        if progress.last != self._last:
            self._last = progress.last
            fresh = max(1, progress.done - progress.kept)
            left = (time.monotonic() - self._start) / fresh * (progress.total - progress.done)
            say(f"[{progress.done}/{progress.total}, {progress.failed} failed, {left:.0f} s left] {progress.last}")


def _say_end(out: Path, progress: Progress, seconds: float, json: bool) -> None:
    counts = {"done": progress.done, "failed": progress.failed, "kept": progress.kept}
    if json:
        print_json({"run": str(out), **counts, "wall_s": round(seconds, 3)})
        return
    print(
        f"{out}: {progress.done} rows, {progress.failed} of them failed, {progress.kept} kept from before; "
        f"{seconds:.0f} s. Read them with optfuse.read_run({str(out)!r})."
    )
