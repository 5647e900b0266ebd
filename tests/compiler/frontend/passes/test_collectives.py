"""Collectives in fewer and cheaper calls: joined ones compute the same on two ranks, and what must not be is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.passes.collectives import coalesce_collectives, join_reductions, reduce_in_place
from tests.compiler.frontend.passes.graphs import operators, traced

pytest.importorskip("torch.distributed._functional_collectives")

c10d = torch.ops._c10d_functional  # noqa: SLF001 - the operators that torch.distributed traces to


def reduced(x: Tensor, operation: str = "sum", group: str = "0") -> Tensor:
    return c10d.wait_tensor(c10d.all_reduce(x, operation, group))


def scattered(x: Tensor, group: str = "0") -> Tensor:
    return c10d.wait_tensor(c10d.reduce_scatter_tensor(x, "sum", 2, group))


def gathered(x: Tensor) -> Tensor:
    return c10d.wait_tensor(c10d.all_gather_into_tensor(x, 2, "0"))


def _communicated(name: str, sent: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    if name == "all_gather_into_tensor":
        return (torch.cat(sent),) * 2
    total = sent[0] + sent[1]
    return (total, total) if name == "all_reduce" else total.chunk(2)


def on_two_ranks(captured: Captured, *inputs: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    graph = captured.graph
    values: dict[torch.fx.Node, Any] = dict(zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True))

    def value(x: Any, rank: int) -> Any:
        def of(node: torch.fx.Node) -> Any:
            return values[node][rank]

        return torch.fx.node.map_arg(x, of)

    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        name = str(node.target).removeprefix("_c10d_functional.").removesuffix(".default").removesuffix("_")
        args = [value(node.args, rank) for rank in range(2)]
        if name == "wait_tensor":
            values[node] = values[node.args[0]]
        elif name.endswith("_coalesced"):
            pairs = zip(*(arguments[0] for arguments in args), strict=True)
            done = [_communicated(name.removesuffix("_coalesced"), pair) for pair in pairs]
            values[node] = tuple(zip(*done, strict=True))
        elif name in ("all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor"):
            values[node] = _communicated(name, (args[0][0], args[1][0]))
        else:
            values[node] = tuple(node.target(*arguments, **node.kwargs) for arguments in args)
    return [values[node] for node in captured.outputs]  # type: ignore[index]


def split_gradients(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """The gradient of a tensor that three products read."""
    return (reduced(x @ a) + reduced(x @ b) + reduced(x @ c),)


def scattered_gradients(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    return ((scattered(x @ a) + scattered(x @ b)).relu() + gathered((x @ c)[:1]),)


def read_twice(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """A result that another op reads as well must be there."""
    first = reduced(x @ a)
    return (first + reduced(x @ b), first * 2)


def of_other_groups(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    return (reduced(x @ a) + reduced(x @ b, group="1"), reduced(x @ a, "max") + reduced(x @ b, "max"))


def inputs() -> list[Tensor]:
    return [torch.randn(4, 4) for _ in range(4)]


def check_on_two_ranks(function: Callable[..., Any], rewrite: Callable[[Captured], Captured]) -> Captured:
    captured = traced(function, *inputs())
    rewritten = rewrite(captured)
    rewritten.graph.graph.lint()
    given = [(a, b) for a, b in zip(inputs(), inputs(), strict=True)]
    for expected, found in zip(on_two_ranks(captured, *given), on_two_ranks(rewritten, *given), strict=True):
        torch.testing.assert_close(found, expected)
    return rewritten


def count(captured: Captured, name: str) -> int:
    return sum(name in operator for operator in operators(captured))


def test_sums_of_reductions_are_one_reduction() -> None:
    assert count(check_on_two_ranks(split_gradients, join_reductions), "all_reduce") == 1
    scattered_once = check_on_two_ranks(scattered_gradients, join_reductions)
    assert count(scattered_once, "reduce_scatter") == 1


def test_what_is_read_elsewhere_or_not_linear_stays() -> None:
    assert count(check_on_two_ranks(read_twice, join_reductions), "all_reduce") == 2
    assert count(join_reductions(traced(of_other_groups, *inputs())), "all_reduce") == 4


def test_a_mean_in_half_precision_that_is_added_in_single_stays() -> None:
    def mixed(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return (reduced((x @ a).half()) + reduced(x @ b),)

    assert count(join_reductions(traced(mixed, *inputs())), "all_reduce") == 2


@pytest.mark.parametrize(
    ("function", "in_place"),
    [
        (lambda x, *_: (reduced((x @ x).view(2, 8)),), 1),
        (lambda x, *_: (reduced(x),), 0),  # the caller's own
        (lambda x, *_: (reduced(x.t()),), 0),
        (lambda x, *_: ((y := x * 2), reduced(y)), 0),  # read by the caller
        (lambda x, *_: (reduced((x * 2)[:2]),), 0),
        (lambda x, *_: (reduced((x * 2).t()),), 0),
    ],
)
def test_a_value_of_the_graphs_own_is_reduced_in_place(function: Callable[..., Any], in_place: int) -> None:
    assert count(check_on_two_ranks(function, reduce_in_place), "all_reduce_.default") == in_place


def parameters(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """Each is gathered where it is read."""
    y = x @ gathered(a)[:4]
    y = torch.ops.aten.relu(y) @ gathered(b)[:4]
    return (y @ gathered(c)[:4],)


def gradients(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """Each is scattered where it is computed; what reads the first result comes before the last is known."""
    first = scattered(x @ a)
    used = first.sum()
    y = x @ b
    return (first, scattered(y), scattered(y @ c), used)


def chained(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """The second needs the first."""
    return (reduced(reduced(x) @ a),)


def interleaved(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """The order of starts in each group must stay."""
    return (gathered(a), reduced(b), gathered(c))


@pytest.mark.parametrize(
    ("function", "calls"),
    [(parameters, 1), (gradients, 1), (chained, 2), (interleaved, 3)],
)
def test_small_collectives_that_can_start_together_are_one_call(function: Callable[..., Any], calls: int) -> None:
    rewritten = check_on_two_ranks(function, coalesce_collectives)
    assert sum("all_" in name or "reduce_scatter" in name for name in operators(rewritten)) == calls


def test_a_draw_does_not_move_behind_other_nodes() -> None:
    def drawing(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        noise = torch.rand_like(scattered(x @ a))
        return (noise, scattered(x @ b))

    captured = traced(drawing, *inputs())
    assert operators(coalesce_collectives(captured)) == operators(captured)
