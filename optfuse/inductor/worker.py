"""The process in which Inductor fuses: a graph as JSON in, its kernels as JSON out.

Run as ``python -m optfuse.inductor.worker IN OUT``. Inductor gets the graph as AOTAutograd would hand it over (its own
decompositions applied to what they are for), runs its passes, lowers, schedules, and is stopped before it generates
code. Every node carries the name of ours that it comes from.
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

from optfuse.inductor.device import TARGET, gpu
from optfuse.inductor.hand_over import origins_handed_on, prepared
from optfuse.inductor.impose import imposed
from optfuse.inductor.partition import wanted_from_json
from optfuse.runtime.processes import leave_with_parent


class _Scheduled(Exception):
    """Inductor has fused."""


def main(source: Path, target: Path) -> None:
    """Read a graph, let Inductor fuse it, and write what it did."""
    leave_with_parent()
    answer = fused(json.loads(source.read_text(encoding="utf-8")))
    target.write_text(json.dumps(answer), encoding="utf-8")


def fused(record: dict[str, Any]) -> dict[str, Any]:
    """What Inductor makes of a graph: see ``groups.Groups`` for what the answer says."""
    found: list[dict[str, Any]] = []
    wanted = record.get("wanted")
    imposing = imposed(wanted_from_json(wanted)) if wanted else contextlib.nullcontext([])
    with gpu() as device, _stopped_when_fused(found), origins_handed_on(), _settings(), imposing as outcomes:
        graph, inputs = prepared(record, TARGET)
        kind = record["name"].rpartition(".")[2]
        from torch._inductor.compile_fx import compile_fx_inner

        try:
            compile_fx_inner(graph, inputs, is_backward=kind == "backward", is_inference=kind == "inference")
        except Exception:
            if not found:  # else it is the exception that stopped it, in whatever it was wrapped
                raise
    if not found:
        found.append({"kernels": [], "kept": []})  # nothing to compute: Inductor schedules nothing
    became = [outcome.as_json() for outcome in outcomes]
    return {**found[0], "torch": torch.__version__, "device": device, "imposed": became[0] if became else None}


@contextlib.contextmanager
def _settings() -> Generator[None]:
    import torch._inductor.config as config

    with config.patch(force_disable_caches=True, fx_graph_cache=False, compile_threads=1, shape_padding=False):
        yield


@contextlib.contextmanager
def _stopped_when_fused(found: list[dict[str, Any]]) -> Generator[None]:
    """Within, Inductor's scheduler says what it decided, and raises, where it would generate code."""
    from torch._inductor.scheduler import Scheduler

    from optfuse.inductor.reading import read_schedule

    def codegen(scheduler: Any, *args: Any, **kwargs: Any) -> None:
        found.append(read_schedule(scheduler))
        raise _Scheduled

    with mock.patch.object(Scheduler, "codegen", codegen):
        yield


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
