"""Runs Inductor on a graph in a process of its own, under a time limit."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optfuse.errors import InductorError
from optfuse.inductor.groups import Groups, groups_from_json
from optfuse.runtime.processes import python, session

#: Seconds that Inductor may take for one graph, by default.
TIME_LIMIT_S = 600.0

WORKER = "optfuse.inductor.worker"


def run_inductor(record: Mapping[str, Any], *, time_limit: float = TIME_LIMIT_S, worker: str = WORKER) -> Groups:
    """Return the kernels that Inductor makes of a graph. Its process is killed when this one ends.

    Args:
        record: The graph, from ``graph_record``.
        time_limit: Seconds after which the process is killed.
        worker: The module that the process runs.

    Raises:
        InductorError: If the process fails, writes no answer or takes too long. The message has its last error line.
    """
    name = record["name"]
    with tempfile.TemporaryDirectory(prefix="optfuse_inductor_") as folder:
        source, target = Path(folder, "graph.json"), Path(folder, "answer.json")
        source.write_text(json.dumps(record), encoding="utf-8")
        environment = {**os.environ, "TMPDIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder}
        log = Path(folder, "log")
        with (
            log.open("wb") as printed,
            session(python(worker, source, target), stdout=printed, stderr=subprocess.STDOUT, env=environment) as (
                process,
            ),
        ):
            try:
                code = process.wait(time_limit)
            except subprocess.TimeoutExpired as error:
                raise InductorError(
                    f"{name}: Inductor was not done within {time_limit:g} s; raise the limit"
                ) from error
        if code != 0:
            raise InductorError(f"{name}: Inductor's process {_ended(code)}: {_last_error_line(log)}")
        try:
            return groups_from_json(json.loads(target.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError) as error:
            raise InductorError(f"{name}: Inductor's process left no answer ({error})") from error


def _ended(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"left with exit code {code}"


def _last_error_line(log: Path) -> str:
    """The last line of a log that names an error, else its last line; at most 500 characters."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0] or line.startswith("Fatal")]
    return (errors or lines or ["it printed nothing"])[-1][:500]
