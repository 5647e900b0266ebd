"""Jagged nested tensors under torch.compile: their values and offsets are scheduled, with eager's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from optfuse.compiler.frontend.parts.nested import has_nested
from optfuse.runtime.environment import mode
from tests.torch_compile.test_torch_compile import OPTIONS, Compiler, compiled, fresh_dynamo, planned

__all__ = ["compiled", "fresh_dynamo"]

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")

LENGTHS = ((3, 5), (2, 6, 3), (4, 2, 2, 3), (2, 2, 7, 2, 5))


def jagged(lengths: tuple[int, ...], grad: bool = False) -> Tensor:
    rows = [torch.randn(length, 4) for length in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=grad)


def values(results: Any) -> list[Any]:
    """Results with nested tensors as their values and offsets."""
    results = results if isinstance(results, tuple) else (results,)
    return [(x.values(), x.offsets()) if isinstance(x, Tensor) and x.is_nested else x for x in results]


def test_a_model_is_trained_with_one_program_for_all_lengths(compiled: Compiler) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4))
    fast = compiled(model)
    for lengths in LENGTHS:
        rows = jagged(lengths, grad=True)
        leaves = [rows, *model.parameters()]
        got, wanted = fast(rows), model(rows)
        torch.testing.assert_close(values(got), values(wanted))
        gradients = [torch.autograd.grad(each.values().square().sum(), leaves) for each in (got, wanted)]
        torch.testing.assert_close(*[[values(gradient) for gradient in each] for each in gradients])
    assert planned(compiled)
    assert len(compiled.runs) == 2  # torch.compile traces a first number of rows, then any
    assert len(compiled.names()) == 4


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.sum(1), x.mean(1), x.sin().softmax(-1)),
        lambda x: torch.nested.to_padded_tensor(x * 2, 0.0) + 1,
        lambda x: (x.sin(), x.values() + 1, x.offsets() * 2, x.shape[0]),
        lambda x: torch.stack([row.sum(0) for row in x.unbind()]),
        lambda x: torch.cat([x, torch.ones_like(x)], -1) + 1,
    ],
)
def test_what_becomes_of_nested_tensors(compiled: Compiler, function: Callable[..., Any]) -> None:
    fast = compiled(function)
    for lengths in LENGTHS[:2]:
        rows = jagged(lengths)
        torch.testing.assert_close(values(fast(rows)), values(function(rows)))
    assert planned(compiled)


def test_a_ragged_size_is_handed_on(compiled: Compiler) -> None:
    rows = jagged((3, 5))
    doubled, size = compiled(lambda x: (x * 2, x.shape[1]))(rows)
    assert size == rows.shape[1]
    assert doubled.shape == rows.shape
    torch.testing.assert_close(doubled.values(), rows.values() * 2)
    assert planned(compiled)


def test_nested_tensors_are_written(compiled: Compiler) -> None:
    rows = jagged((3, 5))
    before = rows.values().clone()
    torch.testing.assert_close(compiled(lambda x: x.mul_(2) + 1)(rows).values(), before * 2 + 1)
    torch.testing.assert_close(rows.values(), before * 2)
    assert planned(compiled)


def test_values_that_are_dropped_get_no_gradient(compiled: Compiler) -> None:
    rows = torch.nested.nested_tensor([torch.ones(30, 4), torch.ones(50, 4)], layout=torch.jagged, requires_grad=True)
    result = compiled(lambda x: F.dropout(x * 1, 0.5))(rows)
    result.values().sum().backward()
    assert rows.grad is not None
    assert result.values().unique().tolist() == [0.0, 2.0]
    torch.testing.assert_close(rows.grad.values(), result.values().detach())


def test_checkpointed_regions_of_nested_tensors(compiled: Compiler) -> None:
    """Torch hands the number of rows to the forward graph twice, and both halves return it beside other sizes."""
    layer = nn.Linear(4, 4)

    def function(x: Tensor) -> Tensor:
        return checkpoint(lambda y: F.gelu(layer(y)), x, use_reentrant=False) + x

    fast = compiled(function)
    for lengths in LENGTHS[:3]:
        rows = jagged(lengths, grad=True)
        gradients = [torch.autograd.grad(f(rows).values().sin().sum(), layer.weight)[0] for f in (fast, function)]
        torch.testing.assert_close(*gradients)
    assert planned(compiled)


def test_what_a_checkpointed_region_draws_is_saved(compiled: Compiler) -> None:
    rows = torch.nested.nested_tensor([torch.ones(30, 4), torch.ones(50, 4)], layout=torch.jagged, requires_grad=True)
    result = compiled(lambda x: checkpoint(lambda y: F.dropout(y * 1, 0.5), x, use_reentrant=False))(rows)
    result.values().sum().backward()
    assert rows.grad is not None
    torch.testing.assert_close(rows.grad.values(), result.values().detach())
    assert planned(compiled)


def test_one_row(compiled: Compiler) -> None:
    fast = compiled(lambda x: x.sin() * 2)
    for lengths in ((1,), (4,), (1, 1), (1, 5, 1)):
        rows = jagged(lengths)
        torch.testing.assert_close(fast(rows).values(), rows.values().sin() * 2)
    assert planned(compiled)


def test_values_are_no_batch_that_may_be_filled_up() -> None:
    def centred(x: Tensor) -> Tensor:
        return x - x.values().mean(0)

    fast = torch.compile(centred, backend="optfuse", options={**OPTIONS, "buckets": {0: (16, 32)}})
    for lengths in LENGTHS[:2]:
        rows = jagged(lengths)
        torch.testing.assert_close(fast(rows).values(), centred(rows).values())


def test_which_arguments_are_nested() -> None:
    assert has_nested([2, torch.ones(3), jagged((1, 2))])
    assert not has_nested([2, torch.ones(3)])
