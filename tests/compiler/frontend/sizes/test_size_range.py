"""What is compiled for a range of sizes is checked at other sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from optfuse.compiler.frontend.sizes.size_range import OneSizeError, Ranged, checked_range
from optfuse.compiler.ir.size_decisions import Decisions


def ranged(check: Callable[[Decisions], None], guards: Sequence[str] = ()) -> tuple[Ranged | None, list[str]]:
    """A graph without arguments for the sizes s and t; ``guards`` are names of sizes that its build has read."""

    def build(graph: GraphModule, _: Sequence[Any], decisions: Decisions) -> Callable[..., Any]:
        for name in guards:
            decisions.require(name, decisions.hints[name])
        return graph

    reasons: list[str] = []
    graph = torch.fx.symbolic_trace(lambda: torch.zeros(()))
    return checked_range(graph, {"s": 5, "t": 9}, [], build, check, reasons.append), reasons


def test_a_range_is_checked_at_sizes_that_all_differ() -> None:
    checked: list[Decisions] = []
    found, reasons = ranged(checked.append)
    assert found is not None
    assert reasons == []
    (one,) = checked
    assert one.hints["s"] != 5
    assert one.hints["t"] != 9
    assert one.chosen_at == {"s": 5, "t": 9}


def test_a_program_that_differs_everywhere_has_no_range() -> None:
    tried: list[dict[str, int]] = []

    def check(decisions: Decisions) -> None:
        tried.append(decisions.hints)
        raise ValueError("another text")

    found, reasons = ranged(check)
    assert found is None
    assert len(tried) == 3
    assert reasons == ["ValueError: another text"]


def test_a_size_that_a_guard_fixes_stays_in_the_check() -> None:
    checked: list[Decisions] = []
    found, _ = ranged(checked.append, guards=["t"])
    assert found is not None
    assert checked[0].hints["t"] == 9
    assert found.holds({"s": 7, "t": 9})
    assert not found.holds({"s": 7, "t": 8})
    assert found.broken({"s": 7, "t": 9}) == ""
    assert found.broken({"s": 7, "t": 8}) != ""


def test_sizes_held_by_guards_leave_no_range() -> None:
    with pytest.raises(OneSizeError, match="valid at one size only"):
        ranged(lambda _: None, guards=["s", "t"])
