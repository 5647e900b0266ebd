"""Comparisons of torch's symbols that formulas decide: answers are those at the hint, guards hold where they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, guard_or_false

from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.compiler.ir.sizes import Size
from optfuse.compiler.symbols.formula_shapes import FormulaShapes

Sizes = tuple[FormulaShapes, Decisions, Any, Any]


@pytest.fixture
def sizes() -> Sizes:
    """An environment with the sizes s = 12 and t = 5."""
    environment, hints = FormulaShapes(), {"s": 12, "t": 5}
    traced: dict[str, torch.SymInt] = {}
    for name, hint in hints.items():
        source = ConstantSource(name)
        symbol = environment.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
        traced[name] = environment.create_symintnode(symbol, hint=hint, source=source)
    decisions = Decisions(hints, dict.fromkeys(hints, (2, 1000)), traced=traced)
    environment.decide_by(decisions)
    return environment, decisions, traced["s"], traced["t"]


@pytest.mark.parametrize(
    ("compare", "others"),
    [
        (lambda s, t: s > t, [(6, 5), (5, 5), (4, 5)]),
        (lambda s, t: s >= 2 * t, [(10, 5), (9, 5)]),
        (lambda s, t: s < t, [(4, 5), (5, 5), (6, 5)]),
        (lambda s, t: s <= t + 7, [(12, 5), (13, 5)]),
        (lambda s, t: s // 5 != t, [(24, 5), (25, 5)]),
        (lambda s, t: (s + t) % 4 == 2, [(13, 5), (12, 5)]),
    ],
)
def test_guards_hold_where_the_answer_is_the_same(
    sizes: Sizes, compare: Callable[[Any, Any], Any], others: list[tuple[int, int]]
) -> None:
    environment, decisions, s, t = sizes
    answer = bool(compare(s, t))
    assert answer == compare(12, 5)
    assert decisions.guards
    assert not environment.guards
    for other in others:
        assert decisions.holds(dict(zip("st", other, strict=True))) == (compare(*other) == answer)


def test_what_holds_everywhere_is_no_guard(sizes: Sizes) -> None:
    environment, decisions, s, t = sizes
    assert s * t + s == s * (t + 1)
    assert s + t > 3
    assert (4 * s) // 4 == s
    assert not guard_or_false(s * t == s - 2 * s)
    assert not decisions.guards
    assert not environment.guards


def test_equal_sizes_are_left_to_torch_which_replaces_one_by_the_other(sizes: Sizes) -> None:
    environment, decisions, s, t = sizes
    assert s == t + 7
    assert s == 12
    assert len(environment.guards) == 2
    assert isinstance(s.node.expr, type(t.node.expr * 0 + 12))
    assert not decisions.guards


def test_comparisons_without_guards_leave_none(sizes: Sizes) -> None:
    environment, decisions, s, t = sizes
    with environment.suppress_guards():
        assert s > t
    assert not decisions.guards


def test_ranges_of_another_build_are_taken_over() -> None:
    decisions = Decisions({"s": 12}, {"s": (2, 1000)})
    size = Size.symbol("s", decisions)
    assert 2 % size == 2
    assert decisions.guards
    other = Decisions({"s": 13}, {"s": (2, 1000)})
    other.narrow({"s": (3, 2000)})
    assert other.ranges == {"s": (3, 1000)}
    assert 2 % Size.symbol("s", other) == 2
    assert not other.guards
