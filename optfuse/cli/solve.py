"""``optfuse solve``: instances in, solutions with their certificates out. Needs no PyTorch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optfuse.cli.files import require_parent
from optfuse.cli.options import PeakMemory, Recompute, Rules, Seed, Workers, solve_options
from optfuse.cli.output import print_json, print_summary, say
from optfuse.cli.signals import stop_on_signals
from optfuse.errors import OutputError
from optfuse.files import write_whole

if TYPE_CHECKING:
    from optfuse.problem.instance import Instance
    from optfuse.solver.control.options import SolveOptions
    from optfuse.solver.result import SolveResult


def command(
    instances: Annotated[list[Path], typer.Argument(metavar="INSTANCE.json...", help="The fusion problems.")],
    solver: Annotated[str, typer.Option(help="cpsat, greedy or exhaustive.")] = "cpsat",
    time_limit: Annotated[float, typer.Option(metavar="S", help="Seconds for the whole solve of one.")] = 30.0,
    workers: Workers = None,
    peak_memory: PeakMemory = None,
    recompute: Recompute = False,
    seed: Seed = 0,
    rules: Rules = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same answer on every run; the limit counts work, not time.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="PLACE", help="Where to save the solution; a folder for several instances.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="OUT.csv", help="Where to save a row for each instance.")] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Where to save one page of all schedules.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Where to save the timeline of one instance for Perfetto.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Solve fusion problems and say what was proved. SIGINT and SIGTERM end it early, with the best found so far."""
    # ortools takes most of a second to import: `--help` and `check` do without.
    from optfuse.report.summary import summary

    options = solve_options(
        solver=solver,
        time_limit=time_limit,
        workers=workers,
        seed=seed,
        deterministic=deterministic,
        rules=rules,
        peak_memory=peak_memory,
        recompute=recompute or None,
    )
    files = _Files(_places(instances, out), csv, html, trace)
    files.require_folders(len(instances))
    records: list[dict[str, Any]] = []
    with stop_on_signals() as stop:
        for path, (instance, result) in _solved(instances, options, stop):
            files.save(path, instance, result)
            records.append(summary(instance, result))
            if not json:
                print_summary([records[-1]])
                _print_notes(result)
        if stop.is_set():
            say(f"stopped after {len(records)} of {len(instances)} instances")
    files.save_page()
    if json:
        print_json(records[0] if len(instances) == 1 else records)


@dataclass(frozen=True, slots=True)
class _Files:
    """The files that a run writes: solutions by instance, and a table, a page and a trace where they are asked for."""

    solutions: dict[Path, Path]
    csv: Path | None
    html: Path | None
    trace: Path | None
    rows: list[dict[str, Any]] = field(default_factory=list)
    shown: list[tuple[Instance, SolveResult]] = field(default_factory=list)

    def require_folders(self, instances: int) -> None:
        """Refuse what cannot be written, before the first solve."""
        for path, option in ((self.csv, "--csv"), (self.html, "--html"), (self.trace, "--trace")):
            require_parent(path, option)
        if self.trace is not None and instances > 1:
            raise OutputError(f"{self.trace}: a trace is of one instance; solve the others without --trace")

    def save(self, path: Path, instance: Instance, result: SolveResult) -> None:
        """Write what there is to write of one result; the table holds all results so far."""
        from optfuse.problem.serialize import save_solution
        from optfuse.report.rows import csv_text, row
        from optfuse.report.trace import save_trace

        if path in self.solutions:
            save_solution(result.solution, self.solutions[path])
            say(f"wrote {self.solutions[path]}")
        if self.csv is not None:
            self.rows.append(row(instance, result))
            write_whole(self.csv, csv_text(self.rows), "name another with --csv")
        if self.trace is not None:
            save_trace(instance, result, self.trace)
            say(f"wrote {self.trace}")
        if self.html is not None:
            self.shown.append((instance, result))

    def save_page(self) -> None:
        """Write the page of all schedules, which have no module."""
        if self.html is None:
            return
        from optfuse.report.html.page import save_page
        from optfuse.report.html.solved import solved_page

        save_page(solved_page(self.html.stem, [(*found, "", "") for found in self.shown]), self.html)
        say(f"wrote {self.html}")


def _solved(
    paths: list[Path], options: SolveOptions, stop: threading.Event
) -> Iterator[tuple[Path, tuple[Instance, SolveResult]]]:
    """Each instance with its result, until told to stop: the one in hand is brought to an end, the rest is left."""
    from optfuse.cli.live import live_line
    from optfuse.problem.serialize import load_instance
    from optfuse.solver.solve import solve

    for number, path in enumerate(paths):
        if stop.is_set() and number:
            return
        with live_line(path.name) as on_progress:
            instance = load_instance(path)
            result = solve(instance, options, on_progress=on_progress, stop=stop)
        yield path, (instance, result)


def _print_notes(result: SolveResult) -> None:
    """Print what was proved, what was decided beside the kernels, and what was given up on."""
    from optfuse.report.summary import certificate, communication, shared_launches

    for line in (certificate(result), shared_launches(result), communication(result)):
        if line:
            print(f"{line}.")
    for line in result.statistics.given_up:
        print(f"given up: {line}", flush=True)


def _places(paths: list[Path], out: Path | None) -> dict[Path, Path]:
    """Where the solution of each instance goes."""
    if out is None:
        return {}
    if len(paths) == 1:
        require_parent(out)
        return {paths[0]: out}
    if not out.is_dir():
        raise OutputError(f"{out}: there is no such folder for several solutions; make it or name another with --out")
    places = {path: out / f"{path.name.removesuffix('.gz').removesuffix('.json')}.solution.json" for path in paths}
    if len(set(places.values())) < len(places):
        raise OutputError(f"{out}: two instances have the same file name; save their solutions in different runs")
    return places
