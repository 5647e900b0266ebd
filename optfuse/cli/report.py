"""``optfuse report``: a run, or plans, as one HTML file. Needs no PyTorch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from optfuse.cli.output import say
from optfuse.errors import BatchError, OutputError


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A batch's folder, or a plan's, or a folder of plans.")],
    html: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")],
    bench: Annotated[
        Path | None, typer.Option(metavar="BENCH.json", help="Also show what optfuse bench --json measured.")
    ] = None,
    pareto: Annotated[
        Path | None, typer.Option(metavar="ROWS.json", help="Also show what optfuse pareto --json found.")
    ] = None,
) -> None:
    """Write one page that needs no network: the table, plots, and each graph's kernels, greedy's beside the chosen."""
    from optfuse.batch.page import run_page
    from optfuse.report.html.extras import bench_extra, pareto_extra
    from optfuse.report.html.page import save_page
    from optfuse.report.html.plans import plan_folders, read_plan
    from optfuse.report.html.solved import solved_page

    # Found out before the work rather than after it.
    if not html.parent.is_dir() or html.is_dir():
        what = "is a folder; name a file in it" if html.is_dir() else f"there is no folder {html.parent}"
        raise OutputError(f"{html}: cannot be written ({what})")
    extras: dict[str, Any] = {}
    if bench is not None:
        extras["bench"] = bench_extra(bench)
    if pareto is not None:
        extras["pareto"] = pareto_extra(pareto)
    start = time.monotonic()
    if (run / "run.json").is_file() or not plan_folders(run):
        if not run.is_dir():
            raise BatchError(
                f"{run}: no such folder; name that of a run (optfuse batch --out) or a plan (optfuse optimize --out)"
            )
        if not (run / "run.json").is_file():
            raise BatchError(
                f"{run}: not the folder of a run (optfuse batch --out), nor of plans (optfuse optimize --out)"
            )
        text = run_page(run, _watch(), extras)
    else:
        plans = {folder.name: read_plan(folder) for folder in plan_folders(run)}
        names = {plan.instance.name for plan in plans.values()}
        solved = [
            # Several plans of one graph (with different options, for example) are named by their folders.
            (
                plan.instance if len(names) == len(plans) else replace(plan.instance, name=name),
                plan.result,
                plan.source,
                "",
            )
            for name, plan in plans.items()
        ]
        text = solved_page(run.resolve().name, solved, extras)
    save_page(text, html)
    print(f"{html}: {len(text.encode()) / 1e6:.1f} MB, made in {time.monotonic() - start:.1f} s")


def _watch() -> Callable[[int, int, str], None]:
    """Says now and then how far it is; on a terminal, in place."""
    terminal = sys.stderr.isatty()

    def watch(done: int, total: int, graph: str) -> None:
        if terminal:
            print(f"\r\x1b[K[{done}/{total}] {graph}", end="\n" if done == total else "", file=sys.stderr, flush=True)
        elif done % 25 == 0 or done == total:
            say(f"[{done}/{total}] {graph}")

    return watch
