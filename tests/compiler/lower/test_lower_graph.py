"""Inputs, constants, outputs, mutations, dead nodes, origins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from optfuse.compiler.ir.interpreter import interpret
from optfuse.compiler.ir.nodes import LibraryCall, LoopNest, View
from optfuse.compiler.ir.traversal import loads
from optfuse.compiler.ir.verify_graph import verify
from optfuse.compiler.lower import lower
from optfuse.compiler.lower.origin import source_line
from optfuse.errors import CaptureError
from tests.compiler.lower.eager import check, lowered

aten = torch.ops.aten


def run(
    function: Any, mutations: tuple[tuple[int, int], ...], *inputs: torch.Tensor
) -> tuple[list[Any], tuple[torch.Tensor, ...], Any]:
    """Outputs and inputs after a run of the lowered function, and its loop graph."""
    traced = make_fx(function, tracing_mode="fake")(*inputs)
    graph = lower(traced, name="test", mutations=mutations, constants={})
    verify(graph)
    given = tuple(t.clone() for t in inputs)
    return interpret(graph, list(given)), given, graph


def test_a_mutated_input_gets_its_new_value_after_everything_else() -> None:
    x, y = torch.randn(3, 4), torch.randn(4)
    (result,), (new_x, new_y), graph = run(lambda x, y: (x + y, x * 2), ((0, 0),), x, y)
    torch.testing.assert_close(new_x, x + y)
    torch.testing.assert_close(new_y, y)
    torch.testing.assert_close(result, x * 2)
    assert [(op.name, op.origin.target) for op in graph.ops][-1] == (f"{graph.inputs[0]}_update", "aten.copy_.default")
    assert graph.ops[-1].stores[0].buffer == graph.inputs[0]


def test_the_old_value_of_a_mutated_input_survives_as_an_output() -> None:
    x = torch.randn(3, 4)
    (old, window, new), (new_x,), _ = run(lambda x: (x + 1, x, x.t()[1:], x + 1), ((0, 0),), x)
    torch.testing.assert_close(old, x)
    torch.testing.assert_close(window, x.t()[1:])
    torch.testing.assert_close(new, x + 1)
    torch.testing.assert_close(new_x, x + 1)


def test_swapped_inputs() -> None:
    x, y = torch.randn(3), torch.randn(3)
    (total,), (new_x, new_y), _ = run(lambda x, y: (y, x, x + y), ((0, 0), (1, 1)), x, y)
    torch.testing.assert_close(new_x, y)
    torch.testing.assert_close(new_y, x)
    torch.testing.assert_close(total, x + y)


def test_an_input_that_keeps_its_value_is_not_written() -> None:
    x = torch.randn(3)
    (result,), _, graph = run(lambda x: (x, x), ((0, 0),), x)
    assert graph.ops == ()
    torch.testing.assert_close(result, x)


def test_an_input_renewed_by_a_uniform_or_by_its_own_window() -> None:
    x, y = torch.randn(3, 3), torch.randn(3)
    _, (new_x, new_y), graph = run(lambda x, y: (x.t(), torch.full_like(y, 2.5)), ((0, 0), (1, 1)), x, y)
    torch.testing.assert_close(new_x, x.t())
    torch.testing.assert_close(new_y, torch.full((3,), 2.5))
    assert len(graph.ops) == 3


def test_outputs_of_every_kind() -> None:
    x = torch.randn(2, 3)

    def function(x: torch.Tensor) -> tuple[Any, ...]:
        y = x + 1
        return y, y, y.t(), x, y.sum() * 0, x[:0], 7

    graph = check(function, x)
    assert graph.outputs[0] == graph.outputs[1]
    assert graph.outputs[-1] == 7


def test_an_output_has_the_strides_of_eager() -> None:
    x = torch.randn(2, 3, 4, 5)
    check(lambda x: x.to(memory_format=torch.channels_last), x)
    graph = check(lambda x: torch.ones(3, 1).expand(3, 4) + 0 * x[0, 0, 0, 0], x)
    assert all(isinstance(op, LoopNest) for op in graph.ops)


def test_constants_are_buffers_but_those_of_one_value_are_inlined() -> None:
    table, two = torch.arange(6.0).view(2, 3), torch.full((3,), 2.0)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * table + two, torch.mv(x, two), table.t()[1:] * 2

    module = make_fx(function)(torch.randn(2, 3))
    constants = {node.target: getattr(module, node.target) for node in module.graph.nodes if node.op == "get_attr"}
    graph = lower(module, name="test", constants=constants)
    verify(graph)
    x = torch.randn(2, 3)
    for actual, wanted in zip(interpret(graph, [x], constants), function(x), strict=True):
        torch.testing.assert_close(actual, wanted)
    assert [constants[name].shape for name in graph.constants] == [table.shape, two.shape]
    loaded = {load.buffer for op in graph.ops if isinstance(op, LoopNest) for load in loads(op)}
    assert loaded & set(graph.constants) == {graph.constants[0]}


def test_constants_keep_their_names_when_an_input_has_the_same() -> None:
    graph = fx.Graph()
    node, weight = graph.placeholder("weight"), graph.get_attr("weight")
    node.meta["val"] = torch.empty(3)
    total = graph.call_function(aten.add.Tensor, (node, weight))
    total.meta["val"] = torch.empty(3)
    graph.output((total,))
    value = torch.arange(3.0)
    loops = lower(fx.GraphModule({"weight": value}, graph), name="test", constants={"weight": value})
    verify(loops)
    torch.testing.assert_close(interpret(loops, [torch.ones(3)], {"weight": value})[0], value + 1)


def test_lowering_works_while_somebody_traces() -> None:
    module = make_fx(lambda x: (x.reshape(-1), torch.full((), 2).float() * x), tracing_mode="fake")(
        torch.ones(2, 3).t()
    )
    with FakeTensorMode():
        graph = lower(module, name="test", constants={})
    assert [op.origin.target for op in graph.ops] == ["aten.clone.default", "aten.mul.Tensor"]


def test_questions_about_sizes_are_answered() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2, 3)
    size = graph.call_function(aten.sym_size.int, (x, 1))
    size.meta["val"] = 3
    total = graph.call_function(aten.add.Tensor, (x, size))
    total.meta["val"] = torch.empty(2, 3)
    graph.output((total, size))
    loops = lower(fx.GraphModule({}, graph), name="test", constants={})
    assert [op.origin.target for op in loops.ops] == ["aten.add.Tensor"]
    assert loops.outputs[1] == 3


def test_dead_nodes_vanish_unless_they_have_effects() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.exp().sum()
        torch.multinomial(x, 2)
        return x + 1

    graph, _ = lowered(function, torch.rand(3))
    assert [op.origin.target for op in graph.ops] == ["aten.multinomial.default", "aten.add.Tensor"]


def test_names_do_not_clash() -> None:
    graph = check(
        lambda x: (x.t().reshape(-1).t().expand(2, 6), torch.ones(2) * 1, x.split(1)[0] + 1), torch.randn(2, 3)
    )
    assert len({b.name for b in graph.buffers}) == len(graph.buffers)
    assert len({op.name for op in graph.ops}) == len(graph.ops)


def by_hand(*operations: Any, inputs: tuple[torch.Tensor, ...]) -> fx.GraphModule:
    """A graph of unary overloads, one after the other, over fake inputs; it returns the last value."""
    graph = fx.Graph()
    nodes = []
    for k, value in enumerate(inputs):
        nodes.append(graph.placeholder(f"x{k}"))
        nodes[-1].meta["val"] = value
    for target, arguments in operations:
        node = graph.call_function(target, tuple(nodes[a] if isinstance(a, int) else a for a in arguments))
        node.meta["val"] = target(*(n.meta["val"] if isinstance(n, fx.Node) else n for n in node.args))
        nodes.append(node)
    graph.output((nodes[-1],))
    return fx.GraphModule({}, graph)


@pytest.mark.parametrize(
    ("operator", "number", "dtype", "first"),
    [
        (aten.mul.Tensor, (), torch.float32, LoopNest),
        (aten.mul.Tensor, (), torch.float16, LoopNest),
        (aten.maximum.default, (), torch.float16, LibraryCall),
        (aten.mul.Tensor, (1,), torch.float32, LibraryCall),
    ],
)
def test_loops_read_numbers_of_the_host(
    operator: Any, number: tuple[int, ...], dtype: torch.dtype, first: type
) -> None:
    """Eager execution multiplies halves by a number in float32; whether a maximum rounds it is not known."""
    with FakeTensorMode():
        inputs = (torch.empty(3, device="cuda", dtype=dtype), torch.empty(number, device="cpu"))
        nodes = fx.Graph()
        x, y = nodes.placeholder("x0"), nodes.placeholder("x1")
        x.meta["val"], y.meta["val"] = inputs
        product = nodes.call_function(operator, (x, y))
        product.meta["val"] = torch.empty_like(inputs[0])
        root = nodes.call_function(aten.exp.default, (product,))
        root.meta["val"] = torch.empty_like(inputs[0])
        nodes.output((product, root))
        graph = lower(fx.GraphModule({}, nodes), name="test", constants={})
    assert [type(op) for op in graph.ops] == [first, LoopNest]
    assert [b.device for b in graph.buffers] == ["cuda:0", "cpu", "cuda:0", "cuda:0"]
    if first is LoopNest and dtype is torch.float16:
        halves = torch.tensor([1.0, 3.0, 7.0], dtype=dtype)
        found, _ = interpret(graph, [halves, torch.tensor(0.1)])
        assert torch.equal(found, halves * 0.1), "0.1 is not rounded before"
        assert not torch.equal(found, halves * torch.tensor(0.1, dtype=dtype))


def test_loops_write_nothing_on_the_host_of_a_graph_on_a_gpu() -> None:
    """A kernel would write a copy. What is the same everywhere is inlined all the same."""

    def function(x: torch.Tensor, count: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scale = torch.full((), 2.0) * 3
        return count + 1, x * scale, scale, torch.sqrt(count), torch.arange(3), table.t().reshape(6), table.t()

    with FakeTensorMode():
        fakes = (torch.empty(3, device="cuda"), torch.empty(()), torch.empty(2, 3))
        traced = make_fx(function)(*fakes)
    graph = lower(traced, name="test", mutations=((0, 1),), constants={}, strides={6: (2, 1)})
    verify(graph)
    devices = {buffer.name: buffer.device for buffer in graph.buffers}
    (nest,) = (op for op in graph.ops if isinstance(op, LoopNest))
    assert [devices[store.buffer] for store in nest.stores] == ["cuda:0"]
    assert len(list(loads(nest))) == 1, "the scale is a constant in the loop"
    calls = [op.target.split(".")[1] for op in graph.ops if isinstance(op, LibraryCall)]
    assert sorted(calls) == ["add", "arange", "clone", "clone", "copy_", "full", "sqrt"]
    table, given = torch.arange(6.0).reshape(2, 3), torch.tensor(4.0)
    new_x, scale, root, places, spread, flipped = interpret(graph, [torch.ones(3), given, table])
    assert (new_x.tolist(), scale.item(), root.item()) == ([6, 6, 6], 6, 2)
    assert (places.tolist(), given.item()) == ([0, 1, 2], 5)
    assert spread.tolist() == [0, 3, 1, 4, 2, 5]
    assert flipped.stride() == (2, 1)
    assert torch.equal(flipped, table.t())


def test_a_write_in_place_is_a_library_call_and_its_value_the_argument() -> None:
    with FakeTensorMode():
        inputs = (torch.empty(3), torch.empty(3))
        module = by_hand((aten.copy_.default, (0, 1)), inputs=inputs)
        graph = lower(module, name="test", constants={})
    (call,) = graph.ops
    assert isinstance(call, LibraryCall)
    assert (call.mutates, call.outputs) == (("x0",), (None,))
    assert graph.outputs == (View("x0", (3,), (1,)),)


def test_uniform_tensors_that_are_written_to_are_in_memory() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        buffer = torch.zeros(3)
        buffer[1:].copy_(x)
        return buffer + 1

    check(function, torch.randn(2), library=["aten.copy_.default"])


def test_a_complex_number_is_an_argument_of_a_library_call() -> None:
    check(lambda x: x * (2 - 1j), torch.tensor([1 + 1j, 0.5, -2j]), library=["aten.mul.Tensor"])


def test_what_no_loop_graph_holds_is_refused_by_name() -> None:
    traced = make_fx(lambda x: x.nonzero(), tracing_mode="symbolic")(torch.ones(3))
    with pytest.raises(CaptureError, match="known only when the model runs"):
        lower(traced, name="test", constants={})


def test_a_missing_constant_is_named() -> None:
    traced = make_fx(lambda x: x + torch.tensor([1.0, 2.0]), tracing_mode="fake")(torch.ones(2))
    with pytest.raises(CaptureError, match="_tensor_constant0"):
        lower(traced, name="test", constants={})


def test_the_source_line_is_the_innermost_one_outside_of_torch() -> None:
    trace = (
        '  File "/home/me/model.py", line 12, in forward\n    return self.norm(x)\n'
        '  File "/usr/lib/python3/site-packages/transformers/norm.py", line 3, in forward\n    y = x * scale\n'
        '  File "/usr/lib/python3/site-packages/torch/nn/modules/module.py", line 9, in __call__\n    return f()\n'
    )
    assert source_line(trace) == "transformers/norm.py:3, y = x * scale"
    assert source_line("") == ""
    here = 'File "{}", line 3, in forward\n    y = x * scale\n'
    assert source_line(here.format(Path.cwd() / "models" / "mlp.py")) == "models/mlp.py:3, y = x * scale"
    assert source_line(here.format("/elsewhere/mlp.py")) == "/elsewhere/mlp.py:3, y = x * scale"


def test_origins_name_the_module() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.ReLU())])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers[0](x) + 1

    program = torch.export.export(Model(), (torch.randn(3),), strict=False)
    graph = lower(program.graph_module, name="test", constants={})
    assert [op.origin.module for op in graph.ops] == ["layers.0.0", ""]
    assert graph.ops[1].origin.source.endswith("return self.layers[0](x) + 1")


def test_what_only_results_without_elements_would_read_is_not_computed() -> None:
    graph = check(lambda x: x * 2 - x.sum(1, keepdim=True).exp(), torch.randn(3, 0))
    assert graph.ops == ()
