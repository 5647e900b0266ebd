"""CUDA graphs of programs with collectives on two GPUs: ranks that replay beside ranks that launch, and the end."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as processes
from torch import distributed

from optfuse.runtime.pace import Pace

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

CALLS = 40


def reduced(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    from torch.distributed._functional_collectives import all_gather_tensor, all_reduce

    group = distributed.group.WORLD
    total = all_reduce(x.exp() * 2, "sum", group)
    return total + all_gather_tensor(y.cos() * y, 0, group).sum(0)


def work(rank: int, folder: str, device: torch.device) -> None:
    import optfuse

    Pace.enter = Pace.verdict = lambda *_: "graphs"  # type: ignore[assignment] - this process asks no clock
    if device.type == "cuda":
        torch.cuda.set_device(device)
    group, most = f"file://{folder}/group", timedelta(seconds=60)
    distributed.init_process_group(init_method=group, rank=rank, world_size=2, timeout=most)
    options = {"time_limit": 2, "workers": 1}
    run, held, distance = torch.compile(reduced, backend="optfuse", options=options), [], 0.0
    for k in range(CALLS):
        torch.manual_seed(2 * k + rank)
        x, y = (torch.randn(256, 256, device=device) for _ in range(2))
        found, wanted = run(x, y), reduced(x, y)
        distance = max(distance, float((found - wanted).norm() / wanted.norm()))
        if rank == 0 and k % 10 > 5:
            held.append(found)  # both of its recordings are in use then
        elif k % 10 == 0:
            held.clear()
        del found
    (graph,) = optfuse.compiled_graphs()
    assert graph.calls is not None
    held.clear()
    distributed.destroy_process_group()
    facts = {"distance": distance, "replays": graph.calls.replays, "plain": graph.calls.plain}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(facts))


def on_gpu(rank: int, folder: str) -> None:
    work(rank, folder, torch.device("cuda", rank))


def test_a_rank_that_holds_results_launches_what_the_other_one_replays(tmp_path: Path) -> None:
    processes.spawn(on_gpu, (str(tmp_path),), nprocs=2)  # type: ignore[no-untyped-call]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert max(first["distance"], second["distance"]) < 1e-5
    assert 0 < first["replays"] < second["replays"]
    assert second["replays"] + second["plain"] == CALLS
