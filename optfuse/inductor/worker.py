"""Main program of the process in which Inductor fuses a graph: reads a graph as JSON, writes its kernels as JSON.

Run as ``python -m optfuse.inductor.worker IN OUT``. Inductor gets the graph as AOTAutograd would pass it, with
Inductor's decompositions applied. It runs its passes, lowers and schedules, and is stopped before code generation.
Every node carries the name of our node that it comes from.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._inductor.exc import InductorError

from optfuse.inductor.device import TARGET, gpu
from optfuse.inductor.impose import imposed
from optfuse.inductor.inductor_graph import inductor_graph, keep_origins
from optfuse.inductor.partition import wanted_from_json
from optfuse.runtime.processes import leave_with_parent


class _Scheduled(Exception):
    """Stops Inductor once its scheduler has fused."""


def main(source: Path, target: Path) -> None:
    """Read a graph from ``source``, let Inductor fuse it, and write its kernels to ``target``."""
    leave_with_parent()
    answer = fused(json.loads(source.read_text(encoding="utf-8")))
    target.write_text(json.dumps(answer), encoding="utf-8")


def fused(record: dict[str, Any]) -> dict[str, Any]:
    """Return Inductor's kernels for a graph, as the JSON data of ``groups.Groups``."""
    found: list[dict[str, Any]] = []
    wanted = record.get("wanted")
    imposing = imposed(wanted_from_json(wanted)) if wanted else contextlib.nullcontext([])
    settings = _settings(tuned=bool(record.get("max_autotune")))
    with gpu() as device, _stopped_when_fused(found), keep_origins(), settings, imposing as outcomes:
        graph, inputs = inductor_graph(record, TARGET)
        kind = record["name"].rpartition(".")[2]
        from torch._inductor.compile_fx import compile_fx_inner

        try:
            compile_fx_inner(graph, inputs, is_backward=kind == "backward", is_inference=kind == "inference")
        except (_Scheduled, InductorError) as error:
            if not isinstance(_unwrapped(error), _Scheduled):
                raise
    if not found:
        found.append({"kernels": [], "kept": []})  # nothing to compute: Inductor schedules nothing
    outcome = outcomes[0].as_json() if outcomes else None
    return {**found[0], "torch": torch.__version__, "device": device, "imposed": outcome}


def _unwrapped(error: Exception) -> Exception:
    """What was raised inside of Inductor, which wraps it once or twice."""
    while isinstance(error, InductorError):
        error = error.inner_exception
    return error


@contextlib.contextmanager
def _settings(*, tuned: bool) -> Generator[None]:
    """Context without caches; ``tuned``: products and convolutions are timed as templates beside the library's."""
    import torch._inductor.config as config

    changes: dict[str, Any] = {"force_disable_caches": True, "fx_graph_cache": False, "shape_padding": False}
    changes |= {"max_autotune": True} if tuned else {"compile_threads": 1}
    with config.patch(changes):
        yield


@contextlib.contextmanager
def _stopped_when_fused(found: list[dict[str, Any]]) -> Generator[None]:
    """Context in which Inductor's scheduler appends its decisions to ``found`` and stops before code generation."""
    from torch._inductor.scheduler import Scheduler

    from optfuse.inductor.schedule_record import read_schedule

    def codegen(scheduler: Any, *args: Any, **kwargs: Any) -> None:
        found.append(read_schedule(scheduler))
        raise _Scheduled

    with mock.patch.object(Scheduler, "codegen", codegen):
        yield


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
