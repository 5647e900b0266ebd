"""The list of rewrites: each shows truthfully what it does, and is of the kind that it says."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from optfuse.compiler.extract.extraction import extract
from optfuse.compiler.ir.nodes import LoopGraph, LoopNest
from optfuse.compiler.ir.printer import print_call, print_nest
from optfuse.compiler.ir.verify_graph import verify
from optfuse.compiler.simplify.decisions import Decision, decisions_from_json, decisions_to_json, of_graph, uncertified
from optfuse.compiler.simplify.pass_list import PASSES, Pass, rewrite
from optfuse.problem.device_files import load_device
from tests.compiler.extract.functions import graph_of

DEVICE = load_device("h200")


def half(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def single(*shape: int) -> Tensor:
    return torch.zeros(shape)


def show(name: str, function: Callable[..., Any], *tensors: Tensor) -> None:
    """Print a function's ops before and after a pass, behind the passes that come first."""
    position = [each.name for each in PASSES].index(name)
    before = graph_of(function, *tensors)
    for each in PASSES[:position]:
        before = each.run(before, DEVICE)
    print_ops("before", before)
    print_ops("after", PASSES[position].run(before, DEVICE))


def print_ops(title: str, graph: LoopGraph) -> None:
    print(f"{title}:")
    for op in graph.ops:
        text = print_nest(op) if isinstance(op, LoopNest) else print_call(op)
        for line in text.splitlines():
            print(f"  {line}")


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", [each.name for each in PASSES])
def test_examples(name: str) -> None:
    function = getattr(import_module(f"optfuse.compiler.simplify.{name}"), name)
    names = {"show": show, "half": half, "single": single, "pad": torch.nn.functional.pad}
    (example,) = doctest.DocTestFinder().find(function, name, globs=names)
    assert len(example.examples) == 1
    printed = example.examples[0].want
    before, after = printed.split("after:")
    assert " ".join(before.split()[1:]) != " ".join(after.split()), "an example in which the pass does something"
    found = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example)
    assert found == doctest.TestResults(0, 1)


def everything(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Something for every pass."""
    x, y, z, w, a, b = tensors
    wide = z.float()
    compared = z.cos().argmax(-1)
    return (
        x.sum(0), (y * 3).sum(0), wide.sum(0), wide.sum(1), torch.nn.functional.pad(w * 2, (0, 256)), compared,
        a + 1, b + 1,
    )  # fmt: skip


def everything_of() -> LoopGraph:
    long, square = single(16384, 64), single(256, 256)
    return graph_of(everything, long, long.clone(), square.bfloat16(), square, single(4), single(4))


def test_the_graph_is_valid_behind_each_pass() -> None:
    graph = everything_of()
    for each in PASSES:
        before, graph = graph, each.run(graph, DEVICE)
        verify(graph)
        assert graph != before, f"{each.name} has nothing to do here"


def test_what_is_decided_is_counted() -> None:
    made = rewrite(everything_of(), DEVICE)
    assert [str(decision) for decision in made.decided] == [
        "1 op joined to others like them",
        "1 value inlined",
        "1 value moved",
        "2 reductions split",
        "1 second stage joined to others",
    ]
    assert [d.name for d in made.decided] == [each.name for each in PASSES if each.kind != "normal form"]
    covered = {d.name for d in made.decided} - {d.name for d in uncertified(made.decided, capped=False)}
    assert covered == {each.name for each in PASSES if each.kind == "dominance"}
    assert uncertified(made.decided, capped=True) == made.decided


@pytest.mark.parametrize("each", [each for each in PASSES if each.kind == "normal form"], ids=lambda each: each.name)
def test_a_normal_form_leaves_legality_and_prices(each: Pass) -> None:
    functions: list[tuple[Any, list[Tensor]]] = [
        (everything, [single(512, 64), single(512, 64), half(64, 64), single(64, 64), single(4), single(4)]),
        (lambda x: (x.exp().amax(0), (x.cos() * 2).argmax(-1)), [half(64, 96)]),
        (lambda x, y: (z := x + x * y) == z.amax(-1, keepdim=True), [single(64, 96), single(64, 96)]),
    ]
    for function, tensors in functions:
        graph = graph_of(function, *tensors)
        after = each.run(graph, DEVICE)
        assert after != graph
        assert extract(after, DEVICE).instance == extract(graph, DEVICE).instance


def test_a_graph_shows_library_calls_and_padded_rows() -> None:
    graph = graph_of(lambda x, y: torch.mm(x, y).relu(), single(8, 8), single(8, 8))
    (calls,) = of_graph(graph)
    assert str(calls) == "1 operator given to libraries (aten.mm 1)"
    apart = tuple(
        b if b.kind != "temporary" else type(b)(b.name, b.dtype, b.shape, (32, 1), b.kind, b.device)
        for b in graph.buffers
    )
    padded = of_graph(type(graph)(graph.name, apart, graph.inputs, graph.constants, graph.ops, graph.outputs))
    assert [(d.name, d.count) for d in padded] == [("choose_layouts", 2), ("library_calls", 1)]


def test_decisions_are_plain_data() -> None:
    parts = tuple((f"aten.op{k}", 9 - k) for k in range(8))
    decided = (Decision("inline_cheap", "decision", 1, "values inlined"), Decision("x", "decision", 44, "calls", parts))
    assert decisions_from_json(decisions_to_json(decided)) == decided
    assert str(decided[0]) == "1 value inlined"
    assert str(decided[1]).endswith("aten.op5 4, others 5)")
    with pytest.raises(ValueError, match="no kind of decision is called 'guess'"):
        decisions_from_json([["x", "guess", 1, "things", []]])
