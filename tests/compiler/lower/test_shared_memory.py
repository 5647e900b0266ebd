"""Results that share their argument's memory, and collectives that use theirs until they have been waited for."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode

from optfuse.compiler.analysis.dependence import dependences
from optfuse.compiler.extract.extraction import extract
from optfuse.compiler.ir.graph_json import graph_from_json, graph_to_json
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, memory_of
from optfuse.compiler.lower import lower
from optfuse.problem.device_files import load_device
from tests.compiler.lower.eager import check

aten = torch.ops.aten
c10d = torch.ops._c10d_functional  # noqa: SLF001 - the operators that torch.distributed traces to


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).view(torch.int16) + 1,
        lambda x: (x * 2)[:, 2:4].view(torch.int32) ^ 3,
        lambda x: x.view(torch.float64) + 1,
        lambda x: x.view(torch.uint8).view(4, 6, 4)[:, 1:, ::2] + 1,
    ],
)
def test_bytes_seen_as_another_dtype(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    check(function, torch.randn(4, 6), library=["aten.view.dtype"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_bytes_seen_as_the_dtype_that_they_have(dtype: torch.dtype) -> None:
    """Torch traces this too; it is no call, and the sizes stay."""
    check(lambda x: (x * 2).view(dtype).view(2, -1)[:, 1:] + 1, torch.randn(4, 6).to(dtype))


def test_a_view_that_is_a_call_shares_its_arguments_memory_and_moves_no_bytes() -> None:
    graph = check(lambda x: (x * 2).view(torch.int16) + 1, torch.randn(4, 6), library=["aten.view.dtype"])
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    assert memory_of(buffers, "view") == "mul"
    instance = extract(graph, load_device("h200")).instance
    by_name = {buffer.name: buffer for buffer in instance.buffers}
    assert by_name["mul"].fixed  # the view keeps it: it cannot lie in the arena
    view = next(op for op in instance.ops if op.name == "view")
    assert [access.bytes for offer in view.offers for access in (*offer.reads, *offer.writes)] == [0, 0]
    assert graph_from_json(graph_to_json(graph)) == graph


def test_a_view_of_an_input_is_an_alias_of_it() -> None:
    graph = check(lambda x: x.view(torch.int16) + 1, torch.randn(4, 6), library=["aten.view.dtype"])
    instance = extract(graph, load_device("h200")).instance
    numbers = {buffer.name: k for k, buffer in enumerate(instance.buffers)}
    view = instance.buffers[numbers["view"]]
    assert view.alias == min(numbers.values())


def traced(build: Callable[[fx.Graph, fx.Node], fx.Node], *, mutated: bool = False) -> LoopGraph:
    """The loop graph of an FX graph with one input; ``mutated``: its output is the input's new value."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((build(graph, x),))
    for node in graph.nodes:  # as a tracer names them
        node.name = re.sub("_(default|tensor|dtype|scalar)$", "", node.name)
    with FakeTensorMode() as mode:
        x.meta["val"] = mode.from_tensor(torch.empty(4, 6))
        for node in graph.nodes:
            if node.op == "call_function":
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
                node.meta["val"] = node.target(*args, **kwargs)
    module = fx.GraphModule(torch.nn.Module(), graph)
    return lower(module, name="g", mutations=((0, 0),) if mutated else (), constants={})


def test_an_input_is_overwritten_only_after_its_views_have_been_read() -> None:
    aten = torch.ops.aten

    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        bits = graph.call_function(aten.view.dtype, (x, torch.int32))
        count = graph.call_function(aten.sum.default, (graph.call_function(aten.bitwise_and.Scalar, (bits, 1)),))
        return graph.call_function(aten.add.Tensor, (x, count))

    graph = traced(build, mutated=True)
    names = [op.name for op in graph.ops]
    order = {(names[d.src], names[d.dst]) for d in dependences(graph, extract(graph, load_device("h200")).touched)}
    assert ("bitwise_and", names[-1]) in order


def gather_and_overwrite(graph: fx.Graph, x: fx.Node) -> fx.Node:
    """A gather of exp(x) is under way while another value is made of exp(x), whose memory could serve for it."""
    aten = torch.ops.aten
    value = graph.call_function(aten.exp.default, (x,))
    started = graph.call_function(c10d.all_gather_into_tensor.default, (value, 2, "0"))
    busy = graph.call_function(aten.sin.default, (value,))
    done = graph.call_function(c10d.wait_tensor.default, (started,))
    return graph.call_function(aten.add.Tensor, (done, graph.call_function(aten.cat.default, ([busy, busy],))))


def test_a_collectives_input_is_in_use_until_the_wait() -> None:
    pytest.importorskip("torch.distributed._functional_collectives")
    graph = traced(gather_and_overwrite)
    wait = next(op for op in graph.ops if isinstance(op, LibraryCall) and "wait_tensor" in op.target)
    assert wait.holds == ("exp",)
    assert memory_of({b.name: b for b in graph.buffers}, "wait_tensor") == "all_gather_into_tensor"
    extraction = extract(graph, load_device("h200"))
    instance = extraction.instance
    numbers = {buffer.name: k for k, buffer in enumerate(instance.buffers)}
    op = next(op for op in instance.ops if op.name == "wait_tensor")
    assert numbers["exp"] in {read.buffer for read in op.offers[0].reads}
    kinds = {op.name: op.kind for op in instance.ops}
    assert (kinds["exp"], kinds["all_gather_into_tensor"], kinds["wait_tensor"]) == ("loop", "collective", "wait")
    names = [op.name for op in graph.ops]
    assert ("exp", "wait_tensor") in {(names[d.src], names[d.dst]) for d in extraction.dependences}
