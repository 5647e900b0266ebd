"""What leads to a comparison is rounded as in eager; nothing else is."""

import torch

from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.ir.interpreter import interpret
from optfuse.compiler.ir.nodes import Call, LoopNest
from optfuse.compiler.lower import lower
from optfuse.compiler.simplify.round_compared import compared, round_compared

HALF = torch.linspace(-3, 3, 36, dtype=torch.bfloat16).reshape(4, 9)


def graph_of(function, *inputs):
    class Model(torch.nn.Module):
        def forward(self, *args):
            return function(*args)

    captured = capture(Model(), inputs)
    return lower(captured.graph, name="g", mutations=captured.mutations, constants=captured.constants)


def led(function, *inputs):
    """The operators whose values lead to a comparison."""
    graph = graph_of(function, *inputs)
    return {graph.ops[k].origin.target.split(".")[1] for k in compared(graph)}


def test_both_sides_of_an_equality_are_rounded():
    assert led(lambda x: (y := x.cos()) == y.abs().amax(-1, keepdim=True), HALF) == {"cos", "abs", "amax"}


def test_an_extremum_that_lasts_may_be_compared_elsewhere():
    assert led(lambda x: x.cos().amax(-1), HALF) == {"cos"}
    assert led(lambda x: x.cos().amax(-1), HALF.float()) == {"cos"}
    assert led(lambda x: x.cos().amax(-1) + 1, HALF) == set()


def test_positions_of_extrema_compare():
    assert led(lambda x: x.cos().argmax(-1), HALF) == {"cos"}


def test_a_threshold_is_no_comparison_of_values():
    assert led(lambda x: x.cos() > 0.5, HALF) == set()
    assert led(lambda x: torch.relu(x.cos()) * (x.sin() != 0), HALF) == set()


def test_libraries_read_what_is_stored():
    assert led(lambda x: (x.cos() @ x.T).argmax(-1), HALF) == set()


def test_casts_are_put_before_stores_of_half_types_only():
    graph = round_compared(graph_of(lambda x: (x.cos().float() * 2).argmax(-1), HALF))
    cast = {
        op.origin.target.split(".")[1]: isinstance(op.stores[0].value, Call) and op.stores[0].value.dtype == "bfloat16"
        for op in graph.ops
        if isinstance(op, LoopNest)
    }
    assert cast == {"cos": True, "_to_copy": False, "mul": False, "argmax": False}


def test_products_stand_alone_on_the_way():
    wide = HALF.float()
    graph = round_compared(graph_of(lambda x, y: (z := x + x * y) == z.amax(-1, keepdim=True), wide, wide.flip(0)))
    assert [op.stores[0].value.function for op in graph.ops[:2]] == ["lone_mul", "add"]
    graph = round_compared(graph_of(lambda x, y: x + x * y, wide, wide.flip(0)))
    assert graph.ops[0].stores[0].value.function == "mul"


def test_results_are_what_they_were():
    def function(x):
        return (x.cos() == x.cos().amax(-1, keepdim=True)), x.cos().argmax(-1)

    graph = graph_of(function, HALF)
    for one, other in zip(interpret(graph, [HALF]), interpret(round_compared(graph), [HALF]), strict=True):
        assert torch.equal(one, other)
