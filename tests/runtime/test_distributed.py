"""Tensor parallelism through torch.compile, on two processes of this machine."""

from __future__ import annotations

import copy
import os
import socket

import pytest
import torch
import torch.multiprocessing as processes
from torch import distributed, nn

from optfuse.runtime.environment import mode

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(mode() == "compile" or not distributed.is_available(), reason="runs on the CPU, with gloo"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def parallel_step(rank: int, world: int, port: int) -> None:
    """A training step of two linear layers whose rows and columns lie on the processes; the mesh is an argument."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    import optfuse

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    distributed.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
    other, x = copy.deepcopy(model), torch.randn(8, 64)
    split = parallelize_module(
        model, init_device_mesh("cpu", (world,)), {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    fast = torch.compile(split, backend="optfuse", options={"time_limit": 2, "workers": 1})
    for _ in range(2):
        split.zero_grad()
        fast(x).square().mean().backward()
    other(x).square().mean().backward()
    for mine, theirs in zip(split.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.full_tensor(), theirs.grad, rtol=1e-4, atol=1e-5)  # type: ignore[union-attr]
    assert [graph.why_not for graph in optfuse.compiled_graphs()] == ["", ""]
    distributed.destroy_process_group()


def test_tensor_parallel_training_step() -> None:
    processes.spawn(parallel_step, (2, free_port()), nprocs=2)  # type: ignore[no-untyped-call]
