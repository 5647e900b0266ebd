"""CUDA graphs of programs with collectives on two GPUs: ranks that replay beside ranks that launch or stop."""

from __future__ import annotations

import json
import time
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


def stops(rank: int, folder: str) -> None:
    """The second rank calls no more, and the first one waits for it in a replay."""
    import optfuse

    Pace.enter = Pace.verdict = lambda *_: "graphs"  # type: ignore[assignment] - this process asks no clock
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    group, most = f"file://{folder}/group", timedelta(seconds=10)
    distributed.init_process_group(init_method=group, rank=rank, world_size=2, timeout=most)
    run = torch.compile(reduced, backend="optfuse", options={"time_limit": 2, "workers": 1})
    x, y = (torch.ones(256, 256, device=device) for _ in range(2))
    for _ in range(CALLS):
        run(x, y)
    torch.cuda.synchronize()
    (graph,) = optfuse.compiled_graphs()
    assert graph.calls is not None
    before = graph.calls.replays
    if rank == 0:
        run(x, y)
        assert optfuse.compiled_graphs()[0].calls.replays == before + 1
        torch.cuda.synchronize()
    time.sleep(120)


def test_a_rank_whose_replay_waits_for_one_that_has_stopped_ends(tmp_path: Path) -> None:
    with pytest.raises(processes.ProcessExitedException, match="process 0 terminated with signal SIGABRT"):
        processes.spawn(stops, (str(tmp_path),), nprocs=2)  # type: ignore[no-untyped-call]
