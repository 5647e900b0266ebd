"""Passes that call themselves dominance, against exhaustive search on small random graphs without them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Literal

import pytest
import sympy

from optfuse.compiler.analysis.access import accesses
from optfuse.compiler.analysis.dependence import footprint
from optfuse.compiler.extract.extraction import extract
from optfuse.compiler.ir.buffer_layout import row_major
from optfuse.compiler.ir.nodes import (
    Buffer,
    Call,
    Expr,
    LibraryCall,
    Load,
    LoopGraph,
    LoopNest,
    Op,
    Origin,
    Reduction,
    Result,
    Store,
    View,
    ivar,
    rvar,
)
from optfuse.compiler.ir.verify_graph import verify
from optfuse.compiler.simplify.pass_list import PASSES, Pass
from optfuse.compiler.simplify.split_reductions import split_reductions
from optfuse.problem.device_files import load_device
from optfuse.problem.instance import Device
from optfuse.solver.baseline.exhaustive import exhaustive
from tests.strategies import share

DOMINANCE = [each for each in PASSES if each.kind == "dominance"]
#: All with ``--hypothesis-profile=nightly``.
GRAPHS = share(1000)
MOST_OPS = 10


class Draft:
    """A random graph while it grows: sums over rows, and what follows from them."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.buffers: list[Buffer] = []
        self.ops: list[Op] = []

    def graph(self) -> LoopGraph:
        kept = self.draw.choice([(8,), (2, 4), (1024,), (2048,)])
        rows = self.draw.choice([64, 4096, 4096])
        common = [self.buffer("input", (rows, *kept)) for _ in range(self.draw.choice([0, 1, 1]))]
        side = self.buffer("input", kept)
        before = [self.pointwise(side, self.buffer("temporary", kept))] if self.draw.random() < 0.4 else []
        for _ in range(self.draw.choice([2, 2, 3])):
            shape = (rows, *(kept if self.draw.random() < 0.9 else (16,)))
            matching = [b for b in common if b.shape == shape]
            self.add_sum(matching[0] if matching and self.draw.random() < 0.7 else self.buffer("input", shape), before)
            result = next(b for b in self.buffers if b.name == self.ops[-1].name)
            if result.shape == kept:
                before.append(self.scanned(result) if self.draw.random() < 0.3 else result)
            for _ in range(self.draw.choice([0, 0, 1, 1, 2])):
                made = self.follow(result, side)
                before += [made] if made.shape == kept and made.dtype == "float32" else []
        return self.finished()

    def finished(self) -> LoopGraph:
        read = {
            name for op in self.ops for name in footprint(op, accesses(op) if isinstance(op, LoopNest) else None)[0]
        }
        outputs = tuple(
            View(b.name, b.shape, b.stride)
            for b in self.buffers
            if b.kind == "temporary" and (b.name not in read or self.draw.random() < 0.2)
        )
        inputs = tuple(b.name for b in self.buffers if b.kind == "input")
        return LoopGraph("drawn", tuple(self.buffers), inputs, (), tuple(self.ops), outputs)

    def add_sum(self, taken: Buffer, before: list[Buffer]) -> None:
        """A sum over the rows of a value, or of what is computed from it; the result is the last buffer."""
        if self.draw.random() < 0.3:
            taken = self.pointwise(taken, self.buffer("temporary", tuple(int(n) for n in taken.shape)))
        earlier = [b for b in before if b.shape == taken.shape[1:]]
        other = self.draw.choice(earlier) if earlier and self.draw.random() < 0.4 else None
        self.sum("max" if self.draw.random() < 0.2 else "sum", taken, other)

    def sum(self, kind: Literal["sum", "max"], taken: Buffer, other: Buffer | None = None) -> Buffer:
        """The sum, or the maximum, over the rows of a value, ``other`` added to each."""
        kept = tuple(int(n) for n in taken.shape[1:])
        names = [rvar(0), *map(ivar, range(len(kept)))]
        operand: Expr = Load(taken.name, address(taken, names), taken.dtype)
        operand = operand if other is None else plus(operand, other, names[1:])
        result = self.buffer("temporary", kept)
        reduction = Reduction(kind, self.maybe_squared(operand))
        store = Store(result.name, address(result, names[1:]), Result(0, "float32"))
        origin = Origin(result.name, "aten.sum.dim_IntList")
        self.ops.append(LoopNest(result.name, kept, (int(taken.shape[0]),), (reduction,), (store,), origin))
        return result

    def scanned(self, source: Buffer) -> Buffer:
        """What a library call makes of a value: no kernel holds both what is before and what is behind it."""
        made = self.buffer("temporary", tuple(int(n) for n in source.shape))
        args = (View(source.name, source.shape, source.stride), 0)
        self.ops.append(
            LibraryCall(
                made.name, "aten.cumsum.default", args, (), (made.name,), Origin(made.name, "aten.cumsum.default")
            )
        )
        return made

    def follow(self, result: Buffer, side: Buffer) -> Buffer:
        """An op that converts a sum, or adds something to it."""
        kept = tuple(int(n) for n in result.shape)
        turned = len(kept) > 1 and self.draw.random() < 0.5
        made = self.buffer(
            "temporary", kept, self.draw.choice(["bfloat16", "float32"]), (1, *kept[:-1]) if turned else None
        )
        beside = side if side.shape == kept and self.draw.random() < 0.4 else None
        return self.pointwise(result, made, beside)

    def pointwise(self, source: Buffer, target: Buffer, beside: Buffer | None = None) -> Buffer:
        names = [ivar(k) for k in range(len(source.shape))]
        value = self.maybe_squared(Load(source.name, address(source, names), source.dtype))
        value = value if beside is None else plus(value, beside, names)
        if target.dtype != value.dtype:
            value = Call("cast", (value,), target.dtype)
        sizes = tuple(source.shape)
        store = Store(target.name, address(target, names), value)
        self.ops.append(LoopNest(target.name, sizes, (), (), (store,), Origin(target.name, "aten.mul.Tensor")))
        return target

    def maybe_squared(self, value: Expr) -> Expr:
        return Call("mul", (value, value), value.dtype) if self.draw.random() < 0.5 else value

    def buffer(
        self, kind: str, shape: tuple[int, ...], dtype: str = "float32", stride: tuple[int, ...] | None = None
    ) -> Buffer:
        made = Buffer(f"b{len(self.buffers)}", dtype, shape, row_major(shape) if stride is None else stride, kind)  # type: ignore[arg-type]
        self.buffers.append(made)
        return made


def plus(value: Expr, other: Buffer, names: list[sympy.Symbol]) -> Expr:
    return Call("add", (value, Load(other.name, address(other, names), other.dtype)), value.dtype)


def address(buffer: Buffer, names: list[sympy.Symbol]) -> sympy.Expr:
    return sympy.Add(*(int(step) * name for step, name in zip(buffer.stride, names, strict=True)))


def behind_a_library_call() -> LoopGraph:
    """Two sums of one form. The first shares its input with what the second waits for: joined, it cannot."""
    draft = Draft(0)
    x, y = (draft.buffer("input", (64, 1024)) for _ in range(2))
    draft.sum("sum", y, draft.scanned(draft.sum("max", x)))
    draft.sum("sum", x)
    return draft.finished()


def beside_its_input() -> LoopGraph:
    """Long sums of one form. What follows the last shares its input with what the second waits for."""
    draft = Draft(0)
    x, y, z = (draft.buffer("input", (4096, 2048)) for _ in range(3))
    side = draft.buffer("input", (2048,))
    draft.sum("sum", y, draft.pointwise(draft.sum("sum", x), draft.buffer("temporary", (2048,)), side))
    draft.pointwise(draft.sum("sum", z), draft.buffer("temporary", (2048,)), side)
    return draft.finished()


def device(seed: int) -> Device:
    """The H200, or one on which launches or memory count for more."""
    h200 = load_device("h200")
    return replace(h200, **random.Random(seed).choice([{}, {"launch_ps": h200.launch_ps // 20}, {"l2_bytes": 0}]))


def best(graph: LoopGraph, target: Device) -> int:
    outcome = exhaustive(extract(graph, target).instance)
    assert outcome.complete
    assert outcome.solution is not None
    return outcome.solution.objective


@pytest.mark.parametrize("each", DOMINANCE, ids=lambda each: each.name)
def test_a_best_schedule_survives(each: Pass) -> None:
    acted = 0
    for seed in range(GRAPHS):
        target = device(seed)
        before = split_reductions(Draft(seed).graph(), target)
        verify(before)
        after = each.run(before, target)
        if len(before.ops) > MOST_OPS or after == before:
            continue
        verify(after)
        acted += 1
        assert best(after, target) <= best(before, target), f"graph {seed}"
    assert acted >= GRAPHS // 20


@pytest.mark.parametrize("each", DOMINANCE, ids=lambda each: each.name)
@pytest.mark.parametrize("trap", [behind_a_library_call, beside_its_input])
def test_a_best_schedule_survives_where_a_looser_rule_would_lose_it(trap: Callable[[], LoopGraph], each: Pass) -> None:
    target = replace(load_device("h200"), l2_bytes=0)
    before = split_reductions(trap(), target)
    verify(before)
    after = each.run(before, target)
    verify(after)
    assert best(after, target) <= best(before, target)


def test_graphs_are_of_many_forms() -> None:
    graphs = [Draft(seed).graph() for seed in range(GRAPHS)]
    points = {prod(int(n) for n in op.sizes) for graph in graphs for op in graph.ops if isinstance(op, LoopNest)}
    assert {8, 16, 1024, 4096 * 8} <= points
    assert len({len(graph.ops) for graph in graphs}) > 4
