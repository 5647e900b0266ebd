"""Training on several processes through torch.compile: results are eager's under DDP, FSDP2 and tensor parallelism."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as processes
from torch import distributed, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from optfuse.runtime.environment import mode

pytestmark = pytest.mark.skipif(
    mode() == "compile" or not distributed.is_available(), reason="runs on the CPU, with gloo"
)

WORLD = 2
OPTIONS = {"time_limit": 2, "workers": 1}


class Block(nn.Module):
    """A Llama-like block."""

    def __init__(self, width: int, head: int) -> None:
        super().__init__()
        self.head = head
        self.norm, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        y = self.norm(x)
        q, k, v = (f(y).view(batch, length, -1, self.head).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, -1))
        y = self.norm2(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Some blocks between an embedding and a projection."""

    def __init__(self, blocks: int = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.blocks = nn.ModuleList(Block(32, 8) for _ in range(blocks))
        self.norm, self.project = nn.RMSNorm(32), nn.Linear(32, 64, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.project(self.norm(x))


Compile = Callable[[nn.Module], Any]


def data_parallel(mesh: Any, compiled: Compile) -> tuple[nn.Module, Any]:
    model = nn.parallel.DistributedDataParallel(Llama())
    return model, compiled(model)


def sharded(mesh: Any, compiled: Compile) -> tuple[nn.Module, Any]:
    """FSDP2, and the whole compiled."""
    model = shard(mesh)
    return model, compiled(model)


def sharded_by_block(mesh: Any, compiled: Compile) -> tuple[nn.Module, Any]:
    """FSDP2, and each block compiled by itself."""
    model = shard(mesh)
    for k, block in enumerate(model.blocks):
        model.blocks[k] = compiled(block)
    return model, model


def shard(mesh: Any) -> Llama:
    from torch.distributed.fsdp import fully_shard

    model = Llama(blocks=2)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def tensor_parallel(mesh: Any, compiled: Compile) -> tuple[nn.Module, Any]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    styles = dict.fromkeys(("q", "k", "v", "gate", "up"), ColwiseParallel) | dict.fromkeys(
        ("o", "down"), RowwiseParallel
    )
    plan = {f"blocks.0.{name}": style() for name, style in styles.items()}
    model = parallelize_module(Llama(), mesh, plan)
    return model, compiled(model)


def train(kind: Callable[..., tuple[nn.Module, Any]], mesh: Any, compiled: Compile) -> list[Any]:
    """The losses of two steps, and the parameters afterwards."""
    torch.manual_seed(0)
    model, run = kind(mesh, compiled)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(0 if kind is tensor_parallel else distributed.get_rank())
    losses = []
    for _ in range(2):
        loss = run(torch.randint(0, 64, (2, 8))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in model.parameters()]  # type: ignore[operator]
    return [*losses, *whole]


def overlapped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Two all-reduces with kernels that may run beside them, and buffers of equal size that could be reused."""
    from torch.distributed._functional_collectives import all_reduce

    group = distributed.group.WORLD
    first = all_reduce(x.exp() * 2, "sum", group)
    beside = (y.cos().cumsum(0) * 3).sin().cumsum(1)
    second = all_reduce(beside * y, "sum", group)
    return first + (beside.sigmoid() * 5).cumsum(0).tanh() + second


def functional(mesh: Any, compiled: Compile) -> list[Any]:
    torch.manual_seed(distributed.get_rank())
    x, y = torch.randn(64, 64), torch.randn(64, 64)
    return [torch.as_tensor(compiled(overlapped)(x, y)) for _ in range(2)]  # type: ignore[arg-type]


def work(rank: int, world: int, port: int, folder: str, kinds: Sequence[str]) -> None:
    """Some kinds, in eager execution and compiled: what differs, and why graphs were not scheduled, by kind."""
    from torch.distributed.device_mesh import init_device_mesh

    import optfuse

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    distributed.init_process_group("gloo", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    found = {}
    for kind in map(globals().__getitem__, kinds):
        torch.compiler.reset()
        seen = len(optfuse.compiled_graphs())
        run = functional if kind is functional else lambda mesh, how, kind=kind: train(kind, mesh, how)
        eager = run(mesh, lambda model: model)
        fused = run(mesh, lambda model: torch.compile(model, backend="optfuse", options=OPTIONS))
        graphs = optfuse.compiled_graphs()[seen:]
        found[kind.__name__] = {
            # running sums of running sums are large, and are added in another order
            "differs": max(
                float((a - b).abs().max() / a.abs().max().clamp(min=1)) for a, b in zip(eager, fused, strict=True)
            ),
            "why_not": [graph.why_not for graph in graphs if graph.why_not],
            "graphs": len(graphs),
            "communication_us": sum(graph.communication_us for graph in graphs),
        }
    distributed.destroy_process_group()
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))


def found_by(folder: Path, kinds: Sequence[str], world: int = WORLD) -> dict[str, dict[str, Any]]:
    """What so many processes find; this one, if it is one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if world == 1:
        work(0, 1, port, str(folder), kinds)
    else:
        processes.spawn(alone_on_its_core, (world, port, str(folder), kinds), nprocs=world)  # type: ignore[no-untyped-call]
    return json.loads((folder / "found.json").read_text())


def alone_on_its_core(rank: int, *more: Any) -> None:
    torch.set_num_threads(1)
    work(rank, *more)


def test_results_of_one_process_are_eagers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "")  # to be as before afterwards
    require_eagers(found_by(tmp_path, ("functional",), world=1)["functional"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["functional", "data_parallel", "tensor_parallel", "sharded", "sharded_by_block"])
def test_results_are_eagers_and_communication_is_timed(tmp_path: Path, kind: str) -> None:
    facts = found_by(tmp_path, (kind,))[kind]
    require_eagers(facts)
    if kind in ("functional", "tensor_parallel"):
        assert facts["communication_us"] > 0


def require_eagers(facts: dict[str, Any]) -> None:
    assert facts["differs"] < 1e-5
    assert facts["why_not"] == []
    assert facts["graphs"] > 0
