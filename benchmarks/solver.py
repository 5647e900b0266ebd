"""Measure ``optfuse solve`` from outside, one process an instance: time, processor time, memory, and what was proved.

    python benchmarks/solver.py INSTANCE.json... [--time-limit 30] [--workers 2] [--csv OUT.csv] [--stop-after S]

``wall`` is the solve's own (greedy, search, order, memory plan and checks; loading excluded), ``over`` by how much it
is past the limit, ``cpu`` and ``rss`` are the whole process's, interpreter and loading included. With ``--stop-after``
the process gets a SIGTERM after so many seconds, and ``over`` counts from there. Run one at a time on an idle machine.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

FIELDS = ("name", "ops", "status", "gap", "saved", "wall", "over", "total", "cpu", "rss_mib", "blocks", "unique")
HEAD = (
    f"{'instance':<28} {'ops':>6} {'status':<9} {'gap':>8} {'saved':>7} {'wall':>7} {'over':>6} {'cpu':>7} {'MiB':>6}"
)


def measure(path: Path, limit: float, workers: int, stop_after: float | None = None) -> dict[str, Any]:
    """One solve in a process of its own, as a row of figures."""
    command = [sys.executable, "-m", "optfuse", "solve", str(path), "--json"]
    command += ["--time-limit", str(limit), "--workers", str(workers)]
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        timer = None if stop_after is None else threading.Timer(stop_after, child.send_signal, [signal.SIGTERM])
        if timer is not None:
            timer.start()
        assert child.stdout is not None
        text = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        total = time.monotonic() - started
        if timer is not None:
            timer.cancel()
    if child.returncode:
        raise RuntimeError(f"{path}: optfuse solve ended with {child.returncode}")
    found = json.loads(text)
    greedy, objective = found["greedy_objective"], found["objective"]
    return {
        "name": found["name"],
        "ops": found["ops"],
        "status": found["status"],
        "gap": round(found["gap"], 6),
        "saved": round((greedy - objective) / greedy, 6),
        "wall": found["wall_s"],
        "over": round(found["wall_s"] - limit if stop_after is None else total - stop_after, 2),
        "total": round(total, 2),
        "cpu": round(used.ru_utime + used.ru_stime, 2),
        "rss_mib": used.ru_maxrss >> 10,
        "blocks": found["blocks"],
        "unique": found["unique_blocks"],
    }


def main() -> None:
    """Measure every instance named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("instances", nargs="+", type=Path, metavar="INSTANCE.json")
    parser.add_argument("--time-limit", type=float, default=30.0, metavar="S")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--stop-after", type=float, metavar="S")
    parser.add_argument("--csv", type=Path, metavar="OUT.csv")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(HEAD)
    for path in options.instances:
        row = measure(path, options.time_limit, options.workers, options.stop_after)
        rows.append(row)
        print(
            f"{row['name']:<28} {row['ops']:>6} {row['status']:<9} {row['gap']:>8.3%} {row['saved']:>7.2%} "
            f"{row['wall']:>7.2f} {max(0.0, row['over']):>6.2f} {row['cpu']:>7.2f} {row['rss_mib']:>6}",
            flush=True,
        )
        if options.csv is not None:
            with options.csv.open("w", newline="") as file:
                writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    proven = sum(row["status"] == "OPTIMAL" for row in rows)
    walls = [row["wall"] for row in rows]
    print(f"{proven} of {len(rows)} proven; median {statistics.median(walls):.2f} s, longest {max(walls):.2f} s")


if __name__ == "__main__":
    main()
