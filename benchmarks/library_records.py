"""Solve instances one after another by the processor's clock, and save a record of each, for ``library.py``.

    python benchmarks/library_records.py instances/*.json* --time-limit 30 --out records.json

Every second, those of the time limit too, is one of processor time of the whole process, both workers counted: so
figures taken beside other processes can be compared. What is in the file already is not solved again. ``real_s`` is
the wall's time, ``rss_mib`` the most memory that the process has had so far.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

time.monotonic = time.process_time  # before anything of optfuse or ortools looks at the clock


def record(path: Path, limit: float, workers: int) -> dict[str, Any]:
    """One instance solved."""
    from optfuse.problem.serialize import load_instance
    from optfuse.report.summary import summary
    from optfuse.solver.control.options import SolveOptions
    from optfuse.solver.solve import solve

    instance = load_instance(path)
    before = time.time()
    result = solve(instance, SolveOptions(time_limit=limit, workers=workers))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return {**summary(instance, result), "real_s": round(time.time() - before, 2), "rss_mib": memory}


def main() -> None:
    """Solve what is not yet in the file, small files first."""
    import optfuse.solver.solve_blocks  # so that the first instance does not pay for it

    assert optfuse.solver.solve_blocks
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("instances", nargs="+", type=Path, metavar="INSTANCE.json")
    parser.add_argument("--time-limit", type=float, default=30.0, metavar="S")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    records = json.loads(options.out.read_text()) if options.out.exists() else []
    known = {entry["name"] for entry in records}
    for path in sorted(options.instances, key=lambda path: path.stat().st_size):
        if path.name.removesuffix(".gz").removesuffix(".json") in known:
            continue
        records.append(record(path, options.time_limit, options.workers))
        options.out.write_text(json.dumps(records))
        last = records[-1]
        print(f"{last['name']:<36} {last['status']:<9} {last['gap']:>8.3%} {last['wall_s']:>7.2f} s", flush=True)


if __name__ == "__main__":
    main()
