"""Choices that are the same for a program are branches: nothing of the other side is computed, and nothing is lost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import optfuse
from optfuse.compiler.codegen.kernel_writer import Line, render
from optfuse.compiler.codegen.uniform_branches import with_branches


def assigned(target: str, value: str, *choice: str) -> Line:
    chosen = (choice[0], choice[1], choice[2]) if choice else None
    return Line(f"{target} = {value}", target, choice=chosen)


A, B, C = (assigned(name, f"tl.load({name}_ptr)") for name in "abc")
CHOICE = assigned("d", "tl.where(row < 8, a * c, b + c)", "row < 8", "a * c", "b + c")


def text(lines: list[Line]) -> list[str]:
    return [line.removeprefix("    ") for line in render(lines)]


def test_each_side_computes_what_only_it_uses() -> None:
    assert text(with_branches([A, B, C, CHOICE, Line("tl.store(d_ptr, d)")])) == [
        "c = tl.load(c_ptr)",
        "if row < 8:",
        "    a = tl.load(a_ptr)",
        "    d = a * c",
        "else:",
        "    b = tl.load(b_ptr)",
        "    d = b + c",
        "tl.store(d_ptr, d)",
    ]


def test_choices_within_a_choice_are_branches_too() -> None:
    outer = assigned("e", "tl.where(row < 4, c, d)", "row < 4", "c", "d")
    inner = assigned("d", "tl.where(row < 8, a, b)", "row < 8", "a", "b")
    made = text(with_branches([A, B, C, inner, outer]))
    assert made[:4] == ["if row < 4:", "    c = tl.load(c_ptr)", "    e = c", "else:"]
    assert made[4:] == [
        "    if row < 8:",
        "        a = tl.load(a_ptr)",
        "        d = a",
        "    else:",
        "        b = tl.load(b_ptr)",
        "        d = b",
        "    e = d",
    ]


@pytest.mark.parametrize("later", [Line("tl.store(out, a + b)"), assigned("f", "a - b")])
def test_what_is_used_later_stays_in_front(later: Line) -> None:
    lines = [A, B, C, CHOICE, later]
    assert with_branches(lines) == lines


def test_loads_stay_in_front_of_a_store() -> None:
    lines = [A, B, C, Line("tl.store(a_ptr, c)"), CHOICE]
    assert with_branches(lines) == lines


def test_choices_without_loads_stay_choices() -> None:
    lines = [A, B, C, assigned("n", "a * c"), assigned("d", "tl.where(row < 8, n, b)", "row < 8", "n", "b")]
    kept = [*lines, Line("tl.store(out, a + b + c)")]
    assert with_branches(kept) == kept


class Projections(nn.Module):
    """The gradients of three projections side by side, as of attention whose projections are one matmul."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.stack([q * 2, k.sin(), v], 0).permute(1, 3, 0, 2, 4).contiguous()


def test_parts_that_are_stacked_are_loaded_by_their_programs_alone() -> None:
    tensors = tuple(torch.randn(2, 4, 128, 64, generator=torch.Generator().manual_seed(k)) for k in range(3))
    schedule = optfuse.optimize(Projections(), tensors)
    assert isinstance(schedule, optfuse.Schedule)
    lines = schedule.source.splitlines()
    loads = [line for line in lines if "tl.load(" in line]
    assert len(loads) == 3
    assert all(line.startswith(" " * 8) for line in loads)
    assert torch.equal(schedule.compile()(*tensors), Projections()(*tensors))
