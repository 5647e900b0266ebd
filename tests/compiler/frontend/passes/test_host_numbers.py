"""Numbers in the host's memory: kernels compute what they read of them, and the host needs few calls."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from optfuse.compiler.extract.extraction import extract
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.passes.host_numbers import compute_host_numbers_on_device
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph
from optfuse.compiler.ir.verify_graph import verify
from optfuse.compiler.lower import lower
from optfuse.compiler.simplify.pass_list import rewrite
from optfuse.compiler.stages import allocates
from optfuse.problem.device_files import load_device
from optfuse.runtime.program import Program
from optfuse.schedule.emit import emit
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve

COUNT = 3
Lists = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]


def step(parameters: list[Tensor], gradients: list[Tensor], means: list[Tensor], steps: list[Tensor]) -> list[Tensor]:
    """New parameters and step counts of an optimizer with bias corrections."""
    made: list[Tensor] = []
    counts = [count + 1 for count in steps]
    for p, g, m, count in zip(parameters, gradients, means, counts, strict=True):
        first, second = 1 - torch.pow(0.9, count), torch.sqrt(1 - 0.999**count)
        made.append(p - (m * 0.9 + g * 0.1) / (first * 1.0) * second)
    return made + counts


def tensors(device: str) -> Lists:
    parameters, gradients, means = ([torch.rand(4, device=device) + 0.1 for _ in range(COUNT)] for _ in range(3))
    return parameters, gradients, means, [torch.tensor(3.0 + k) for k in range(COUNT)]


def lowered(half: bool = False) -> LoopGraph:
    with FakeTensorMode():
        given = tensors("cuda")
        graph = make_fx(step)(*([x.half() if half else x for x in some] for some in given[:3]), given[3])
    found = compute_host_numbers_on_device(Captured("step", graph, (), {}))
    return lower(
        found.graph, name="step", mutations=tuple((COUNT + k, 3 * COUNT + k) for k in range(COUNT)), constants={}
    )


def calls(graph: LoopGraph) -> list[str]:
    return [op.target for op in graph.ops if isinstance(op, LibraryCall)]


def test_the_host_adds_and_writes_by_one_call_each(tmp_path: Path) -> None:
    graph = lowered()
    verify(graph)
    assert calls(graph) == ["aten._foreach_add.Scalar", "aten._foreach_copy_.default"]
    device = load_device("h100")
    extraction = extract(rewrite(graph, device).graph, device, allocates=allocates)
    result = solve(extraction.instance, SolveOptions(workers=1))
    assert len(result.solution.kernels) - sum(len(launch) - 1 for launch in result.solution.launches) == 3
    given = tensors("cpu")
    expected = step(*given)
    flat = [x for some in given for x in some]
    counts = flat[3 * COUNT :]
    found = Program(emit(extraction, result), {}, folder=tmp_path).run(flat)
    torch.testing.assert_close([*found, *counts], expected)


def test_half_types_take_what_the_host_computes() -> None:
    """There a number of the host's is float32, and one of the device's would be rounded."""
    found = calls(lowered(half=True))
    assert found.count("aten.pow.Scalar") == 2 * COUNT
    assert found.count("aten._foreach_add.Scalar") == 1
