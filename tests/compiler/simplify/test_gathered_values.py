"""Elements that are looked up are computed where they are: which ones, that results stay, and what stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from optfuse.compiler.extract.extraction import extract
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.ir.interpreter import interpret
from optfuse.compiler.ir.nodes import LoopGraph
from optfuse.compiler.ir.verify_graph import verify
from optfuse.compiler.simplify.inline_cheap import inline_cheap
from optfuse.compiler.stages import lowered
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve
from tests.compiler.extract.functions import model
from tests.compiler.simplify.test_inline_cheap import DEVICE, names

ROWS, COLUMNS = 48, 1600


def loss(x: Tensor, labels: Tensor) -> Tensor:
    """Of the logarithms a loss needs one a row."""
    return F.cross_entropy(x.float(), labels)


def loss_in_half(x: Tensor, labels: Tensor) -> Tensor:
    """Logarithms in bfloat16."""
    return F.cross_entropy(x, labels)


def along_rows(x: Tensor, labels: Tensor) -> Tensor:
    """One element of each column."""
    return (x.float() * 2 - x.float().exp().sum(0)).gather(0, labels[None, :].expand(1, COLUMNS) % ROWS)


def in_three(x: Tensor, labels: Tensor) -> Tensor:
    """The middle one of three dimensions is looked up."""
    cube = x.float().view(4, 12, COLUMNS).exp() + 1
    return cube.gather(1, labels[:4, None, None].expand(4, 1, 16) % 12)


def flattened(x: Tensor, labels: Tensor) -> Tensor:
    """An index runs over rows and columns: which row's sum is meant is not known before."""
    return (x.float() - x.float().sum(1, keepdim=True)).view(-1)[labels]


def pairs_of_rows(x: Tensor, labels: Tensor) -> Tensor:
    """An index may lie in the second of two rows."""
    difference = x.float() - x.float().sum(1, keepdim=True)
    return difference.view(ROWS // 2, -1).gather(1, labels[: ROWS // 2, None])


def by_position(x: Tensor, labels: Tensor) -> Tensor:
    """What is masked by position."""
    return x.float().triu(1).gather(1, labels[:, None])


def needed_as_a_whole(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """All of the value is returned as well."""
    value = x.float().exp() - 1
    return value, value.gather(1, labels[:, None])


def most_of_it(x: Tensor, labels: Tensor) -> Tensor:
    """As many elements are looked up as there are."""
    return (x.float().exp() - 1).gather(1, labels[:, None].expand(ROWS, COLUMNS).contiguous())


COMPUTED: list[Callable[..., object]] = [loss, loss_in_half, along_rows, in_three, by_position]
KEPT: list[Callable[..., object]] = [flattened, pairs_of_rows, needed_as_a_whole, most_of_it]


def tensors_of(function: Callable[..., object]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = COLUMNS if function is along_rows else ROWS
    x = torch.randn(ROWS, COLUMNS, generator=generator).to(torch.bfloat16)
    return [x, torch.randint(0, COLUMNS, (labels,), generator=generator)]


@cache
def captured_of(function: Callable[..., object]) -> Captured:
    return capture(model(function), tuple(tensors_of(function)), {}, name="model")


@pytest.mark.spread(3)
@pytest.mark.parametrize("function", [*COMPUTED, *KEPT], ids=lambda f: f.__name__)
def test_results_are_the_same_to_the_bit(function: Callable[..., object]) -> None:
    captured, tensors = captured_of(function), tensors_of(function)
    graph = lowered(captured)
    again = inline_cheap(graph)
    verify(again)
    before, after = (interpret(g, tensors, captured.constants) for g in (graph, again))
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.spread(2, 1)
@pytest.mark.parametrize("function", COMPUTED, ids=lambda f: f.__name__)
def test_few_elements_are_computed_where_they_are_looked_up(function: Callable[..., object]) -> None:
    graph = lowered(captured_of(function))
    again = inline_cheap(graph)
    assert names(again) < names(graph)
    (price, most), (less, least) = largest(graph), largest(again)
    assert less < price
    assert most >= ROWS * COLUMNS * 2
    assert least < ROWS * COLUMNS


@pytest.mark.parametrize("function", KEPT, ids=lambda f: f.__name__)
def test_what_is_not_clear_or_not_few_stays_in_memory(function: Callable[..., object]) -> None:
    assert largest(inline_cheap(lowered(captured_of(function))))[1] >= ROWS * COLUMNS


def largest(graph: LoopGraph) -> tuple[int, int]:
    """The best schedule's price, and the bytes of the largest buffer that it writes."""
    instance = extract(graph, DEVICE).instance
    found = solve(instance, SolveOptions(time_limit=10, workers=1))
    sizes = [instance.buffers[k].bytes for kernel in found.solution.kernels for k in kernel.writes]
    return found.objective, max(sizes)
