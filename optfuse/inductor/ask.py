"""Ask Inductor: start the process in which it runs, wait for its answer, and say why there is none."""

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

#: Seconds that Inductor may take for one graph when nobody says otherwise.
TIME_LIMIT_S = 600.0

WORKER = "optfuse.inductor.worker"


def ask_inductor(record: Mapping[str, Any], *, time_limit: float = TIME_LIMIT_S, worker: str = WORKER) -> Groups:
    """What Inductor makes of a graph (``wire.graph_record``), in a process that ends with this one.

    Parameters
    ----------
    time_limit
        Seconds after which the process is killed.
    worker
        The module that is run.

    Raises
    ------
    InductorError
        If the process fails, answers nothing or takes too long: the message has its last words.
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
            raise InductorError(f"{name}: Inductor's process {_ended(code)}: {_last_words(log)}")
        try:
            return groups_from_json(json.loads(target.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError) as error:
            raise InductorError(f"{name}: Inductor's process left no answer ({error})") from error


def _ended(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"left with exit code {code}"


def _last_words(log: Path) -> str:
    """The last line that says what went wrong, at most 500 characters."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line.split(":")[0] or line.startswith("Fatal")]
    return (telling or lines or ["it printed nothing"])[-1][:500]
