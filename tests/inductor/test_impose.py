"""Inductor builds the kernels that it is told to, and they compute what the model computes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from optfuse.inductor.graph_record import graph_record
from optfuse.inductor.impose import _outcome
from optfuse.inductor.mapping import map_groups
from optfuse.inductor.partition import Wanted, wanted
from optfuse.inductor.process import run_inductor
from optfuse.inductor.run import compile_inductor
from optfuse.solver.baseline.greedy import greedy
from tests.inductor.models import gated, small


@pytest.mark.slow
def test_what_inductor_leaves_apart_is_one_kernel() -> None:
    captured, extraction = gated()
    instance = extraction.instance
    solution = greedy(instance)
    asked = wanted(extraction.graph, instance, solution)
    groups = run_inductor({**graph_record(captured), "wanted": asked.as_json()})
    assert groups.imposed == {"whole": 1, "part": 0, "apart": 0, "absent": 0, "buffers": 3, "free": 0}
    kernels = map_groups(extraction.graph, groups).kernels
    assert set(kernels) == {frozenset(kernel.ops) for kernel in solution.kernels}


@pytest.mark.slow
def test_a_program_with_another_partition_computes_the_same() -> None:
    captured, _ = small()
    norm = ["var_mean", "add", "rsqrt", "sub", "mul", "mul_1", "add_1"]
    halves = Wanted({node: (int(node not in norm[:3]),) for node in norm}, frozenset({"rsqrt", "var_mean"}), (3, 4, 0))
    torch.manual_seed(0)
    inputs = [torch.randn(node.meta["val"].shape) for node in captured.graph.graph.find_nodes(op="placeholder")]
    expected = captured.graph(*inputs)
    compiled = compile_inductor(captured, torch.device("cpu"), halves)
    (result,) = compiled.program.run(inputs)
    torch.testing.assert_close(result, expected[0], rtol=1e-4, atol=1e-4)
    assert compiled.imposed is not None
    assert (compiled.imposed.whole, compiled.imposed.absent) == (2, 0)
    makers = [launch for launch in compiled.groups.launches if launch.kind == "loops"]
    assert len(makers) == 3


def test_outcomes_are_counted() -> None:
    from torch._inductor.scheduler import SchedulerNode

    def node(*names: str) -> Any:
        leaves = []
        for name in names:
            leaf = SchedulerNode.__new__(SchedulerNode)
            leaf.get_name = lambda name=name: name  # type: ignore[method-assign, misc]
            leaves.append(leaf)
        return SimpleNamespace(get_nodes=lambda: leaves)

    labels = {"a": 0, "b": 0, "c": 1, "d": 1, "e": 1, "f": 2, "g": 2, "h": 3}
    nodes = [node("a", "b"), node("c", "x"), node("d", "e"), node("f"), node("g"), node("h"), node("y")]
    found = _outcome(nodes, labels, Wanted({}, frozenset(), (2, 3, 2, 1, 5)))
    assert found.as_json() == {"whole": 1, "part": 1, "apart": 1, "absent": 1, "buffers": 10, "free": 2}
