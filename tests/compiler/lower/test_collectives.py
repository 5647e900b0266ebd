"""Collectives in a captured graph: their order, and what is in use while one is in flight."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import fx

from optfuse.compiler.analysis.dependence import dependences
from optfuse.compiler.analysis.link_time import collective_ps, transfer_ps
from optfuse.compiler.codegen.host_program import MemoryLayout, host_program
from optfuse.compiler.codegen.module import emit_module
from optfuse.compiler.extract.extraction import Extraction, extract
from optfuse.compiler.frontend.graph.evaluate import constant_nodes
from optfuse.compiler.frontend.graph.rewrite import is_impure
from optfuse.compiler.ir.collectives import is_start, never_waited_for
from optfuse.compiler.ir.graph_json import graph_from_json, graph_to_json
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, View, views
from optfuse.problem.device_files import load_device
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve
from tests.compiler.lower.test_shared_memory import aten, c10d, traced

pytest.importorskip("torch.distributed._functional_collectives")

Names = set[tuple[str, str]]


def extracted(graph: LoopGraph) -> Extraction:
    return extract(graph, load_device("h200"))


def ordered(graph: LoopGraph) -> Names:
    names = [op.name for op in graph.ops]
    return {(names[d.src], names[d.dst]) for d in dependences(graph, extracted(graph).touched)}


def two_reductions(graph: fx.Graph, x: fx.Node) -> fx.Node:
    """Two independent all-reduces. To start the second first would need less memory: its input is larger."""
    small = graph.call_function(aten.sum.dim_IntList, (x, [1]))
    first = graph.call_function(c10d.all_reduce.default, (small, "sum", "0"))
    large = graph.call_function(aten.exp.default, (x,))
    second = graph.call_function(c10d.all_reduce.default, (large, "sum", "0"))
    total = graph.call_function(aten.sum.dim_IntList, (graph.call_function(c10d.wait_tensor.default, (second,)), [1]))
    return graph.call_function(aten.add.Tensor, (graph.call_function(c10d.wait_tensor.default, (first,)), total))


def test_collectives_keep_their_program_order() -> None:
    """All ranks must start them in one order, and each rank's solver decides by itself."""
    graph = traced(two_reductions)
    instance = extracted(graph).instance
    first, second = (op.name for op in instance.ops if op.kind == "collective")
    assert (first, second) in ordered(graph)
    result = solve(instance, SolveOptions(time_limit=5, workers=1, deterministic=True))
    run = [instance.ops[op].name for kernel in result.solution.kernels for op in kernel.ops]
    assert run.index(first) < run.index(second)


def read_by_its_own_name(graph: fx.Graph, x: fx.Node) -> fx.Node:
    """A wait whose result is not used: the collective's own is read, which the wait has made valid."""
    started = graph.call_function(c10d.all_reduce.default, (x, "sum", "0"))
    graph.call_function(c10d.wait_tensor.default, (started,))
    return graph.call_function(aten.exp.default, (started,))


def test_what_reads_a_collectives_result_after_the_wait_stays_after_it() -> None:
    assert ("wait_tensor", "exp") in ordered(traced(read_by_its_own_name))


def reduced_in_place(graph: fx.Graph, x: fx.Node) -> fx.Node:
    """An all-reduce in the memory of its argument, and a reader of that by its first name."""
    value = graph.call_function(aten.exp.default, (x,))
    started = graph.call_function(c10d.all_reduce_.default, (value, "sum", "0"))
    graph.call_function(c10d.wait_tensor.default, (started,))
    return graph.call_function(aten.sin.default, (value,))


def test_an_argument_reduced_in_place_is_read_after_the_wait() -> None:
    assert {("all_reduce_", "wait_tensor"), ("wait_tensor", "sin")} <= ordered(traced(reduced_in_place))


def waited_for_through_a_view(graph: fx.Graph, x: fx.Node) -> fx.Node:
    value = graph.call_function(aten.exp.default, (x,))
    started = graph.call_function(c10d.all_reduce.default, (value, "sum", "0"))
    bits = graph.call_function(aten.view.dtype, (started, torch.int32))
    return graph.call_function(aten.neg.default, (graph.call_function(c10d.wait_tensor.default, (bits,)),))


def test_a_wait_through_a_view_holds_the_input() -> None:
    graph = traced(waited_for_through_a_view)
    wait = next(op for op in graph.ops if isinstance(op, LibraryCall) and "wait_tensor" in op.target)
    assert "exp" in wait.holds
    assert never_waited_for(graph) == frozenset()


def returned_in_flight(graph: fx.Graph, x: fx.Node) -> fx.Node:
    """The input of the all-reduce dies at its start, and the graph returns before it has ended."""
    value = graph.call_function(aten.exp.default, (x,))
    graph.call_function(aten.sin.default, (value,))
    return graph.call_function(c10d.all_reduce.default, (value, "sum", "0"))


def test_what_is_in_flight_at_the_end_lives_on() -> None:
    """Memory of the arena would be given to other buffers, or to the next call, while it is still read."""
    graph = traced(returned_in_flight)
    assert never_waited_for(graph) == {"exp", "all_reduce"}
    instance = extracted(graph).instance
    solution = solve(instance, SolveOptions(time_limit=5, workers=1, deterministic=True)).solution
    placed = {instance.buffers[placement.buffer].name for placement in solution.placements}
    assert "exp" not in placed


def reduced_transposed(graph: fx.Graph, x: fx.Node) -> fx.Node:
    value = graph.call_function(aten.t.default, (graph.call_function(aten.exp.default, (x,)),))
    started = graph.call_function(c10d.broadcast.default, (value, 0, "0"))
    return graph.call_function(aten.sin.default, (graph.call_function(c10d.wait_tensor.default, (started,)),))


def test_a_result_in_flight_is_laid_out_as_planned_only_after_the_wait() -> None:
    """Torch plans a broadcast's result with its argument's strides; a copy before the wait would read too early."""
    graph = traced(reduced_transposed)
    calls = [op for op in graph.ops if isinstance(op, LibraryCall)]
    assert [call.name for call in calls] == ["broadcast", "wait_tensor"]
    text = host_text(graph, calls)
    assert "planned(wait_tensor" in text
    assert "planned(broadcast" not in text


def host_text(graph: LoopGraph, calls: list[LibraryCall]) -> str:
    """The host program of the calls alone, on an input that stands for what kernels computed."""
    given = views(calls[0])[0].buffer
    buffers = tuple(replace(b, kind="input") if b.name == given else b for b in graph.buffers)
    result = next(b for b in buffers if b.name == "wait_tensor")
    returned = View(result.name, result.shape, result.stride, 0)
    alone = replace(graph, buffers=buffers, inputs=(given,), ops=tuple(calls), outputs=(returned,))
    return host_program(alone, calls, MemoryLayout())


def gathered_and_reduced(graph: fx.Graph, x: fx.Node) -> fx.Node:
    gathered = graph.call_function(c10d.all_gather_into_tensor.default, (x, 8, "0"))
    done = graph.call_function(c10d.wait_tensor.default, (gathered,))
    scattered = graph.call_function(c10d.reduce_scatter_tensor.default, (done, "sum", 8, "1"))
    return graph.call_function(c10d.wait_tensor.default, (scattered,))


def test_a_transfer_takes_its_time_on_the_links_of_its_group() -> None:
    """Eight ranks gather 96 bytes from each: seven steps, in each of which a rank sends 96 bytes."""
    device = replace(load_device("h200"), link_start_ps=1000, link_hop_ps=100, link_ps_per_mib=10 << 20)
    graph = traced(gathered_and_reduced)
    instance = extract(graph, device).instance
    starts = [op for op in instance.ops if op.kind == "collective"]
    assert [(op.channel, op.transfer_ps) for op in starts] == [
        (1, 1000 + 7 * 100 + 7 * 96 * 10),
        (2, 1000 + 700 + 6720),
    ]
    assert [op.transfer_ps for op in instance.ops if op.kind == "wait"] == [0, 0]
    assert graph_from_json(graph_to_json(graph)) == graph


def test_an_all_reduce_sends_everything_twice() -> None:
    device = replace(load_device("h200"), link_start_ps=0, link_hop_ps=100, link_ps_per_mib=10 << 20)
    graph = traced(read_by_its_own_name)
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    call = next(op for op in graph.ops if isinstance(op, LibraryCall) and is_start(op))
    assert call.ranks == 0  # this process has no such group
    assert transfer_ps(call, buffers, device) == 0
    assert transfer_ps(replace(call, ranks=4), buffers, device) == 6 * 100 + 96 * 6 // 4 * 10


def test_a_group_over_several_hosts_pays_for_the_links_between_them() -> None:
    """16 ranks on 2 hosts, 1,600 bytes: each rank has 200 of them for itself between the hosts."""
    inside = replace(load_device("h200"), link_start_ps=1000, link_hop_ps=100, link_ps_per_mib=10 << 20)
    hosts = replace(inside, host_ranks=8, host_link_start_ps=5000, host_link_hop_ps=700, host_link_ps_per_mib=30 << 20)
    assert collective_ps("all_reduce", 8, 1600, hosts) == collective_ps("all_reduce", 8, 1600, inside)
    gathered = 1000 + 7 * 100 + 1400 * 10 + 5000 + 1 * 700 + 100 * 30
    reduced = 1000 + 14 * 100 + 2800 * 10 + 5000 + 2 * 700 + 200 * 30
    assert collective_ps("all_gather_into_tensor", 16, 1600, hosts) == gathered
    assert collective_ps("reduce_scatter_tensor", 16, 1600, hosts) == gathered
    assert collective_ps("all_reduce", 16, 1600, hosts) == reduced
    exchanged = 1000 + 7 * 100 + 700 * 10 + 5000 + 1 * 700 + 800 * 30
    assert collective_ps("all_to_all_single", 16, 1600, hosts) == exchanged


def test_all_reduces_between_hosts_have_as_many_hops_as_a_tree_is_deep() -> None:
    device = replace(load_device("h200"), link_start_ps=0, link_hop_ps=0, link_ps_per_mib=0, host_ranks=8)
    device = replace(device, host_link_hop_ps=1)
    assert [collective_ps("all_reduce", 8 * n, 64, device) for n in (1, 2, 3, 4, 8, 9)] == [0, 2, 4, 4, 6, 8]
    assert [collective_ps("all_gather", 8 * n, 64, device) for n in (1, 2, 3, 4, 8, 9)] == [0, 1, 2, 3, 7, 8]


def test_a_collective_without_users_stays() -> None:
    """Other ranks may use what it sends."""

    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        graph.call_function(c10d.all_reduce.default, (x, "sum", "0"))
        return graph.call_function(aten.exp.default, (x,))

    assert "all_reduce" in {op.name for op in traced(build).ops}


def test_collectives_are_neither_merged_nor_computed_at_compile_time() -> None:
    graph = fx.Graph()
    weight = graph.get_attr("weight")
    weight.meta["val"] = torch.ones(4)
    for _ in range(2):
        node = graph.call_function(c10d.all_reduce.default, (weight, "sum", "0"))
        node.meta["val"] = torch.ones(4)
    root = torch.nn.Module()
    root.register_buffer("weight", torch.ones(4))
    module = fx.GraphModule(root, graph)
    assert {node.op for node in constant_nodes(module, {"weight": torch.ones(4)})} == {"get_attr"}
    assert all(is_impure(node) for node in graph.nodes if node.op == "call_function")


def test_a_module_says_that_it_has_collectives_and_whether_it_has_them_whole() -> None:
    """A CUDA graph would hold their communicator, and cannot hold a part of one."""

    def whole(graph: fx.Graph, x: fx.Node) -> fx.Node:
        return waited_for(graph, started(graph, x))

    def started(graph: fx.Graph, x: fx.Node) -> fx.Node:
        return graph.call_function(c10d.all_reduce.default, (x, "sum", "0"))

    def waited_for(graph: fx.Graph, x: fx.Node) -> fx.Node:
        return graph.call_function(c10d.wait_tensor.default, (x,))

    found = []
    for build in (whole, started, waited_for):
        graph = traced(build)
        calls = [op for op in graph.ops if isinstance(op, LibraryCall)]
        module = emit_module(replace(graph, outputs=()), calls, MemoryLayout())
        found.append(("HAS_COLLECTIVES = True" in module, "IS_PART_OF_COLLECTIVE = True" in module))
        sent = '("0", "_c10d_functional.all_reduce.default", "float32", (4, 6)),'
        assert (sent in module) == (build is not waited_for)
    assert found == [(True, False), (True, True), (True, True)]
