"""Make the zoo notebook's data from batches: ``python notebooks/data/collect.py RUN [MORE...]``; later ones count.

Writes ``zoo.parquet``, a row a graph and solver, and ``progress.parquet``, how objective and bound of CP-SAT's solves
came together. Both are small: paths, reasons, and plans stay in the run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd

import optfuse
from optfuse.problem.serialize import load_instance
from optfuse.solver.joint.peak_bound import least_peak_bound

HERE = Path(__file__).parent
COLUMNS = (
    "graph solver mode size outcome stage status proven objective bound gap greedy_objective saved ops library_calls "
    "kernels greedy_kernels blocks unique_blocks candidates cuts peak_memory_bytes greedy_peak_memory_bytes capture_s "
    "solve_s wall_s cpu_s peak_rss_bytes moved_bytes floor_bytes agreement agreement_legal rand_index unmapped"
).split()


def main(runs: list[Path]) -> None:
    """Read the runs, write both files. Of a graph's rows of one solver the last run's counts."""
    rows = pd.concat([optfuse.read_run(run).assign(run=str(run)) for run in runs])
    rows = rows.drop_duplicates(["graph", "solver"], keep="last")
    rows["model"] = [Path(source).stem for source in rows.source]
    rows = rows.sort_values(["graph", "solver"], ignore_index=True)
    rows["proven"] = rows.proven.eq(True)  # what was refused has none
    rows["floor_bytes"] = float("nan")
    records: list[dict[str, Any]] = []
    for row in rows[(rows.outcome == "ok") & (rows.solver == "cpsat")].itertuples():
        run = Path(str(row.run))
        plan = run / str(row.plan) / "plan.json"
        rows.loc[row.Index, "floor_bytes"] = least_peak_bound(load_instance(run / str(row.prepared) / "instance.json"))
        if plan.is_file():
            progress = json.loads(plan.read_text(encoding="utf-8"))["result"]["statistics"]["progress"]
            records += [{"graph": row.graph, **record} for record in progress]
    rows[["model", *(name for name in COLUMNS if name in rows)]].to_parquet(HERE / "zoo.parquet", compression="zstd")
    pd.DataFrame(records).to_parquet(HERE / "progress.parquet", compression="zstd")
    print(f"{len(rows)} rows of {rows.graph.nunique()} graphs, {len(records)} records of progress")


if __name__ == "__main__":
    main([Path(run) for run in sys.argv[1:]])
