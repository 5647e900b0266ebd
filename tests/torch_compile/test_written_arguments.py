"""Writes into arguments of changing sizes: what autograd records of them, and arguments that share memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor

from optfuse.compiler.frontend.calls.shared_arguments import shared_memory
from optfuse.compiler.frontend.sizes.by_size import BySize
from optfuse.compiler.frontend.sizes.size_reader import SizeReader
from tests.strategies import share
from tests.torch_compile.test_ranges import schedules
from tests.torch_compile.test_torch_compile import Compiler, compiled

__all__ = ["compiled"]


def tripled(x: Tensor) -> Tensor:
    x.mul_(3)
    return x * 2


def saved(x: Tensor) -> Tensor:
    """Torch's minimum cut saves ``x``, and not the product of which eager saves a copy."""
    y = (x * 2).sin()
    x.mul_(3)
    return y


def of_two(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = y * 5
    x.mul_(3)
    return z, y + 1, x * 2


def stepped(function: Callable[..., Any], size: int, apart: bool, windows: int) -> list[Tensor]:
    """Results, arguments and the gradient of what they are made of; ``windows`` of it are the arguments."""
    leaf = torch.arange(3.0 * size).requires_grad_()
    memory = leaf * 1
    arguments = [memory.as_strided((size, 2), (2, 1)), memory.as_strided((size,), (1,))][:windows]
    if apart:
        arguments[1:] = [x.clone() for x in arguments[1:]]
    results = function(*arguments)
    found = [*(results if isinstance(results, tuple) else (results,)), *arguments]
    loss = sum((x * torch.arange(x.numel()).view(x.shape)).sum() for x in found)
    return [*(x.detach() for x in found), *torch.autograd.grad(loss, leaf)]


@pytest.mark.parametrize("function", [tripled, saved])
def test_a_range_records_a_write_into_a_result_of_autograds(compiled: Compiler, function: Any) -> None:
    fast = compiled(function, dynamic=True)
    for size in (5, 7, 4):
        torch.testing.assert_close(stepped(fast, size, True, 1), stepped(function, size, True, 1))
    assert schedules(compiled) == ["compiled0.forward", "compiled0.backward"]


def test_a_write_into_shared_memory_is_compiled_size_by_size(compiled: Compiler) -> None:
    fast = compiled(of_two, dynamic=True)
    for size, apart in ((5, False), (6, False), (5, True), (7, True)):
        torch.testing.assert_close(stepped(fast, size, apart, 2), stepped(of_two, size, apart, 2))
    assert "share memory" in str([run.record.by_size for run in compiled.runs])


def test_a_write_into_a_window_of_a_memory_of_changing_size(compiled: Compiler) -> None:
    """Its graph has no size that changes: that of the memory is no argument."""

    def written(x: Tensor) -> Tensor:
        x[0] = x * 2
        return x + 1

    fast = compiled(written, dynamic=True)
    for size in (5, 7):
        found = [(run(m[:1]), m) for run in (fast, written) for m in [torch.ones(size)]]
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_write_beside_what_the_backward_graph_reads(compiled: Compiler, dynamic: bool) -> None:
    """Autograd counts writes by memory: also a window that is not written is saved as a copy."""

    def beside(x: Tensor, y: Tensor) -> Tensor:
        z = (y * 2).sin()
        x.mul_(3)
        return z

    fast = compiled(beside, dynamic=dynamic)
    for size in (5, 7):
        found = []
        for run in (fast, beside):
            leaf = torch.arange(2.0 * size).requires_grad_()
            memory = leaf * 1
            found += torch.autograd.grad(run(memory[:size], memory[size:]).sum(), leaf)
        torch.testing.assert_close(*found)


def test_what_is_compiled_for_shared_memory_serves_no_others() -> None:
    compiles: list[int] = []

    def compile_size(fixed: torch.fx.GraphModule, *_: Any) -> Callable[..., Any]:
        compiles.append(len(compiles))
        return fixed

    reader = SizeReader((sympy.Symbol("s"),), ((0, ("size", 0)),), nested=False)
    run = BySize(torch.fx.symbolic_trace(lambda x, y: x + y), "g", reader, compile_size, lambda _: None)
    x = torch.zeros(4)
    for y in (x[:], x.clone(), x[:], torch.ones(4)):
        assert torch.equal(run(x, y), x + y)
    assert len(compiles) == 2


def test_shared_memory_that_is_only_read_has_a_range(compiled: Compiler) -> None:
    fast = compiled(lambda x, y: x[:, 0] * y, dynamic=True)
    for size, apart in ((5, False), (6, False), (7, True), (8, True)):
        wanted = stepped(lambda x, y: x[:, 0] * y, size, apart, 2)
        torch.testing.assert_close(stepped(fast, size, apart, 2), wanted)
    assert not any("[" in name for name in compiled.names())


def turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q.mul_(2)
    k.add_(1)
    return q * k + v


@pytest.mark.parametrize("learns", [False, True])
def test_parts_of_rows_are_written_in_a_range(compiled: Compiler, learns: bool) -> None:
    """Parts of each row share no element, though they lie in between each other."""
    fast = compiled(turned, dynamic=True)
    for size in (5, 7, 4):
        found = []
        for run in (fast, turned):
            leaf = torch.arange(12.0 * size).view(size, 12).requires_grad_(learns)
            parts = (leaf * 1).tensor_split(3, -1)
            result = run(*parts)
            found.append((result, *parts, *(torch.autograd.grad(result.square().sum(), leaf) if learns else ())))
        torch.testing.assert_close(*found)
    assert not any("[" in name for name in schedules(compiled))


def test_windows_with_a_common_element_are_known_to_share_memory() -> None:
    draw = random.Random(0)
    apart = 0
    for _ in range(share(3000)):
        pair = [drawn_window(draw) for _ in range(2)]
        common = set.intersection(*(set(window.flatten().tolist()) for window in pair))
        told = shared_memory(pair) != ()
        assert told or not common
        apart += not told
    assert apart > share(3000) // 4


MEMORY = torch.arange(200)


def drawn_window(draw: random.Random) -> Tensor:
    """A window of ``MEMORY``, which some of whose strides it shares with others."""
    shape = [draw.choice([0, 1, 1, 2, 2, 3, 3, 4]) for _ in range(draw.randint(0, 3))]
    strides = draw.sample([0, 1, 2, 3, 4, 6, 12, 24], len(shape))
    return MEMORY.as_strided(shape, strides, draw.randrange(60))


def test_spans_that_meet() -> None:
    x = torch.zeros(4, 6)
    assert shared_memory([x[:2], x[2:], 3, x.clone()]) == ()
    assert shared_memory([x[:2], 3, x[1:3], x[3:], x.t()]) == ((0, 2), (0, 4), (2, 4), (3, 4))
    assert shared_memory([x[:, :3], x[:, 3:], x[1:, 2:4]]) == ((0, 2), (1, 2))
    assert shared_memory([x.view(-1)[::2], x.view(-1)[1::2]]) == ()
    assert shared_memory([x[:0], x]) == ()
