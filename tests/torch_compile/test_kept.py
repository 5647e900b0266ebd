"""Compiled graphs that are kept: a second compilation calls no compiler of ours, and computes the same."""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import optfuse
from optfuse.torch_compile.compilation import Compilation


@pytest.fixture
def compiled_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the graphs that are compiled."""
    names: list[str] = []
    original = Compilation.compile_graph

    def compile_graph(self: Compilation, captured: Any) -> Any:
        names.append(captured.name)
        return original(self, captured)

    monkeypatch.setattr(Compilation, "compile_graph", compile_graph)
    return names


def afresh(model: Any, **options: Any) -> Any:
    """The model compiled by a Dynamo that knows nothing."""
    torch.compiler.reset()
    return torch.compile(model, backend="optfuse", options=options or None)


class Net(nn.Module):
    """A norm between two products, with a buffer that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 12), nn.LayerNorm(12), nn.Linear(12, 3)
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        self.calls += 1
        y = self.norm(self.first(x))
        return self.second(torch.nn.functional.gelu(y)), y.detach()[:, 1:4], None


def step(model: Any, net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Results, gradients and buffers after one step."""
    net.zero_grad()
    out, part, nothing = model(x)
    assert nothing is None
    out.square().sum().backward()
    return [out.detach(), part, *(p.grad.clone() for p in net.parameters() if p.grad is not None), *net.buffers()]


def test_a_training_step_is_taken_from_the_cache(compiled_names: list[str]) -> None:
    net = Net()
    other = copy.deepcopy(net)
    for k in range(3):
        x = torch.randn(5, 6)
        for got, wanted in zip(step(afresh(net), net, x), step(other, other, x), strict=True):
            torch.testing.assert_close(got, wanted)
        assert len(compiled_names) == 2, "forward and backward, once"
        first, second = optfuse.compiled_graphs()[-2:]
        assert (first.name, second.name) == ("compiled0.forward", "compiled0.backward")
        assert first.status == second.status == "OPTIMAL", k


def draws(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x * 2, 0.5, training=True)


def writes(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x[1:].exp()


def with_constant(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor([1.0, 2.0, 3.0, 5.0]) + torch.arange(4)


@pytest.mark.parametrize("function", [draws, writes, with_constant])
def test_functions_are_taken_from_the_cache(
    function: Callable[[torch.Tensor], torch.Tensor], compiled_names: list[str]
) -> None:
    found = []
    for _ in range(2):
        x = torch.arange(12.0).reshape(3, 4)
        torch.manual_seed(3)
        found.append((afresh(function)(x), x))
    assert len(compiled_names) == 1
    for first, second in zip(*found, strict=True):
        assert torch.equal(first, second)
    if function is not draws:
        x = torch.arange(12.0).reshape(3, 4)
        torch.testing.assert_close(found[1][0], function(x))
        assert torch.equal(found[1][1], x)


def test_sparse_gradients_are_taken_from_the_cache(compiled_names: list[str]) -> None:
    table = nn.Embedding(20, 3, sparse=True)
    ids, found = torch.tensor([1, 4, 4]), []
    for _ in range(2):
        table.zero_grad()
        afresh(lambda x: table(x).sin())(ids).sum().backward()
        assert table.weight.grad is not None
        assert table.weight.grad.is_sparse
        found.append(table.weight.grad.to_dense().clone())
    assert len(compiled_names) == 2, "forward and backward, once"
    assert torch.equal(*found)
    torch.testing.assert_close(found[0], torch.autograd.grad(table(ids).sin().sum(), table.weight)[0].to_dense())


def test_what_only_its_process_can_run_is_not_kept(compiled_names: list[str]) -> None:
    """A branch on data stays a node of torch's, which is an operator of this process."""

    def branching(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) + 1

    x = torch.arange(12.0).reshape(3, 4)
    found = [afresh(branching)(x) for _ in range(2)]
    assert len(compiled_names) == 2
    assert all(torch.equal(each, x.sin() + 1) for each in found)


def test_what_writes_into_shared_memory_is_not_kept(compiled_names: list[str]) -> None:
    """Torch's key has the arguments one by one: not that they are windows, nor of how much memory."""

    def written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(3)
        return y + 1

    for total, apart in ((5, False), (9, False), (9, True)):
        memory = torch.arange(float(total))
        x, y = memory[:5], memory[:5].clone() if apart else memory[:5]
        wanted = torch.arange(5.0) * (1 if apart else 3) + 1
        assert torch.equal(afresh(written)(x, y), wanted)
    assert len(compiled_names) == 3


@pytest.mark.spread(2)
@pytest.mark.parametrize("change", ["options", "shape", "constant", "cache"])
def test_what_differs_is_compiled(change: str, compiled_names: list[str]) -> None:
    def run(factor: float, n: int, **options: Any) -> None:
        x = torch.arange(float(n))
        torch.testing.assert_close(afresh(lambda x: (x * factor).sin(), **options)(x), (x * factor).sin())

    run(2.0, 4)
    match change:
        case "options":
            run(2.0, 4, time_limit=3)
        case "shape":
            run(2.0, 5)
        case "constant":
            run(3.0, 4)
        case _:
            run(2.0, 4, cache=False)
    assert len(compiled_names) == 2


def test_a_graph_that_runs_as_traced_is_not_kept(compiled_names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTFUSE_STRICT", "0")

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("a defect")

    x = torch.arange(4.0)
    with monkeypatch.context() as patched:
        patched.setattr("optfuse.torch_compile.compilation.schedule_graph", fail)
        assert torch.equal(afresh(torch.sin)(x), x.sin())
    assert optfuse.compiled_graphs()[-1].why_not
    torch.testing.assert_close(afresh(torch.sin)(x), x.sin())
    assert optfuse.compiled_graphs()[-1].status == "OPTIMAL"


PROCESS = """
import json, torch, optfuse
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
net_compiled = torch.compile(net, backend="optfuse")
out = net_compiled(torch.ones(3, 4))
out.square().sum().backward()
from torch._dynamo.utils import counters
hits = counters["aot_autograd"]["autograd_cache_hit"]
print(json.dumps([hits, out.tolist(), net[0].weight.grad.tolist(), [g.kernels for g in optfuse.compiled_graphs()]]))
"""


def run_process(code: str, caches: Path, **environment: str) -> list[Any]:
    """What a new Python process prints last, with its caches in a folder."""
    folders = {"TORCHINDUCTOR_CACHE_DIR": str(caches / "torch"), "XDG_CACHE_HOME": str(caches / "user")}
    env = {**os.environ, **folders, **environment}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.slow
def test_another_process_takes_it(tmp_path: Path) -> None:
    (hits, *first), (again, *second) = (run_process(PROCESS, tmp_path) for _ in range(2))
    assert (hits, again) == (0, 1)
    assert first == second


ARTIFACTS = """
from pathlib import Path
path = Path({path!r})
if path.exists():
    import torch
    torch.compiler.load_cache_artifacts(path.read_bytes())
{process}
if not path.exists():
    path.write_bytes(torch.compiler.save_cache_artifacts()[0])
"""


@pytest.mark.slow
def test_another_machine_takes_it_from_torchs_artifacts(tmp_path: Path) -> None:
    code = ARTIFACTS.format(path=str(tmp_path / "artifacts"), process=PROCESS)
    (hits, *first), (again, *second) = (run_process(code, tmp_path / machine) for machine in ("one", "other"))
    assert (hits, again) == (0, 1)
    assert first == second


#: Of a later version of optfuse, if CHANGED is set.
PRECOMPILED = """
import json, os, torch, optfuse
import torch._dynamo
from optfuse.torch_compile import kept
stamp_of = kept.stamp_of
kept.stamp_of = lambda device: stamp_of(device) + os.environ.get("CHANGED", "")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
out = torch.compile(net, backend="optfuse")(torch.ones(3, 4))
out.square().sum().backward()
from torch._dynamo.precompile_context import PrecompileContext
PrecompileContext.save_to_dynamo_cache()
traced = torch._dynamo.utils.counters["stats"]["unique_graphs"]
left = [bool(g.why_not) for g in optfuse.compiled_graphs()]
print(json.dumps([traced, left, out.tolist(), net[0].weight.grad.tolist()]))
"""


@pytest.mark.slow
def test_a_process_that_takes_dynamos_part_from_its_cache_traces_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch._dynamo.precompile_context")
    environment = {"TORCH_CACHING_PRECOMPILE": "1"}
    first, second = (run_process(PRECOMPILED, tmp_path, **environment) for _ in range(2))
    other = run_process(PRECOMPILED, tmp_path, **environment, CHANGED="yes")
    assert first[:2] == [1, [False, False]]
    assert second[:2] == [0, [False, False]]
    assert other[:2] == [0, [True, True]], "what another version has kept runs as traced, and says so"
    assert first[2:] == second[2:]
    torch.testing.assert_close(torch.tensor(other[2]), torch.tensor(first[2]))
    torch.testing.assert_close(torch.tensor(other[3]), torch.tensor(first[3]))


def test_numbers_drawn_in_python_are_not_kept(compiled_names: list[str]) -> None:
    """They are handed over in another dtype than was traced, which only a compilation's own function mends."""
    x = torch.arange(4.0)

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * random.uniform(1, 2)

    for _ in range(2):
        random.seed(3)
        got = afresh(scaled)(x)
        random.seed(3)
        torch.testing.assert_close(got, scaled(x))
    assert len(compiled_names) == 2
