"""Updates at places that data tell, in the fusion problem: their order, their price, and what may join them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from optfuse.api import optimize
from optfuse.compiler.extract.extraction import extract
from optfuse.compiler.ir.nodes import Const, Store
from optfuse.problem.checker import check
from optfuse.problem.device_files import load_device
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Solution
from optfuse.runtime.environment import mode
from optfuse.solver.memory.assemble import assemble
from tests.compiler.extract.functions import model
from tests.compiler.ir.graphs import F32, buffer, graph, i0, load, nest, t0, update_graph, whole


def problem() -> Instance:
    return extract(update_graph(), load_device("h200")).instance


def alone(instance: Instance) -> Solution:
    return assemble(instance, [((op,), instance.ops[op].offers[0].scheme) for op in range(len(instance.ops))])


def test_readers_of_the_old_value_come_before_and_those_of_the_new_one_after() -> None:
    instance = problem()
    names = [op.name for op in instance.ops]
    buffers = {buffer.name: k for k, buffer in enumerate(instance.buffers)}
    found = {(names[e.src], names[e.dst], e.buffer, e.schemes) for e in instance.edges}
    assert found == {
        ("before", "written", None, ()),
        ("before", "added", None, ()),
        ("written", "after", buffers["cache"], ()),
        ("added", "after", buffers["sums"], ()),
    }


@pytest.mark.parametrize(("first", "then"), [("before", "written"), ("added", "after"), ("before", "added")])
def test_the_checker_knows_the_order(first: str, then: str) -> None:
    instance = problem()
    solution = alone(instance)
    assert check(instance, solution) == ()
    place = {instance.ops[kernel.ops[0]].name: k for k, kernel in enumerate(solution.kernels)}
    kernels = list(solution.kernels)
    kernels.insert(place[first], kernels.pop(place[then]))
    late = check(instance, replace(solution, kernels=tuple(kernels)))
    assert any(v.code == "order" and f"needs {first}" in v.message.replace("'", "") for v in late), late


def test_an_update_is_priced_by_the_elements_that_it_stores() -> None:
    instance = problem()
    buffers = {buffer.name: k for k, buffer in enumerate(instance.buffers)}
    for name, target, atomic in (("written", "cache", 0), ("added", "sums", 6)):
        op = next(op for op in instance.ops if op.name == name)
        assert not op.recompute
        assert op.work.atomic == atomic
        for offer in op.offers:
            assert [(w.buffer, w.bytes) for w in offer.writes] == [(buffers[target], 24)]
            assert {r.buffer: r.bytes for r in offer.reads}[buffers[target]] == 0


def step(cache: Tensor, place: Tensor, key: Tensor, cos: Tensor, sin: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
    """One step of decoding: a rotary embedding, the new key into the cache, scores of the query with all keys."""
    left, right = key.chunk(2, -1)
    turned = key * cos + torch.cat((-right, left), -1) * sin
    full = cache.sum(-1)
    cache.index_copy_(2, place, turned)
    return query @ cache.transpose(-1, -2), full


@pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")
def test_a_key_is_written_into_the_cache_by_the_kernel_that_makes_it() -> None:
    cache, key, query = torch.randn(2, 4, 64, 32), torch.randn(2, 4, 1, 32), torch.randn(2, 4, 3, 32)
    cos, sin, place = torch.randn(1, 32), torch.randn(1, 32), torch.tensor([5])
    schedule = optimize(model(step), (cache.clone(), place, key, cos, sin, query), device="h200")
    (kernel,) = [ops for ops in schedule.to_pandas().ops if any("index_copy" in op for op in ops)]
    assert any("cat" in op or "add" in op for op in kernel), kernel
    mine, theirs = cache.clone(), cache.clone()
    got = schedule.compile()(mine, place, key, cos, sin, query)
    torch.testing.assert_close(got, step(theirs, place, key, cos, sin, query), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine, theirs)


def test_an_update_needs_the_elements_that_it_keeps() -> None:
    own, new, read = buffer("own", 6), buffer("new", 2, kind="input"), buffer("read", 6)
    places = buffer("places", 2, dtype="int64", kind="input")
    ops = (
        nest("fill", (6,), Store("own", i0, Const(1.0, F32))),
        nest("update", (2,), Store("own", t0, load(new, i0), (load(places, i0),))),
        nest("read", (6,), Store("read", i0, load(own, i0))),
    )
    instance = extract(graph((own, new, places, read), ops, (whole(read),)), load_device("h200")).instance
    assert {(e.src, e.dst, e.buffer, e.schemes) for e in instance.edges} == {(0, 1, 0, ()), (1, 2, 0, ())}
