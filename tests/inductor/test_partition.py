"""A schedule by graph nodes: who computes what, and what is left in memory."""

from __future__ import annotations

import json

from optfuse.inductor.legalize import legalize
from optfuse.inductor.partition import wanted, wanted_from_json
from optfuse.solver.baseline.greedy import greedy
from tests.inductor.models import gated, small


def test_kernels_by_nodes() -> None:
    _, extraction = small()
    instance = extraction.instance
    names = {op.name: number for number, op in enumerate(instance.ops)}
    apart = [{names["var_mean"], names["add"], names["rsqrt"]}, {names[n] for n in ("sub", "mul", "mul_1", "add_1")}]
    found = wanted(extraction.graph, instance, legalize(instance, apart).solution)
    first, second = found.homes["var_mean"], found.homes["mul"]
    assert found.homes["rsqrt"] == first != second == found.homes["add_1"]
    assert {found.sizes[first[0]], found.sizes[second[0]]} == {3, 4}
    assert found.sizes.count(0) == 1, "the matmul is in no loop"
    assert found.written == {"var_mean", "rsqrt", "add_1", "relu"}
    assert wanted_from_json(json.loads(json.dumps(found.as_json()))) == found


def test_a_split_reduction_has_two_homes() -> None:
    _, extraction = gated()
    found = wanted(extraction.graph, extraction.instance, greedy(extraction.instance))
    stages = found.homes["sum_1"]
    assert len(stages) == 2
    assert stages[0] != stages[1]
    assert found.homes["tanh"] == (stages[0],)
