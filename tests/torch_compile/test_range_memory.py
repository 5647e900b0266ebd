"""One schedule for a range of sizes: training steps whose graphs are made of sizes, and their memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import optfuse
from optfuse.compiler.ir.sizes import symbols_in
from optfuse.errors import InfeasibleError
from optfuse.schedule.size_peak import size_peak
from tests.torch_compile.test_ranges import marked, schedules
from tests.torch_compile.test_torch_compile import OPTIONS, Compiler, compiled

__all__ = ["compiled"]


class Padded(nn.Module):
    """A length padded to a multiple of four and summed in fours; the loss is computed of sizes by torch."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.pad(x, (0, 0, 0, (4 - x.shape[1] % 4) % 4))
        return F.mse_loss(y.unflatten(1, (-1, 4)).cumsum(2), y.unflatten(1, (-1, 4)).sin()) + y.mean()


class Bags(nn.Module):
    """Sums of rows of a table by columns of one tensor of ids: each begins where the one before ends."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(7, 5, mode="sum")

    def forward(self, x: Tensor) -> Tensor:
        ids = x.argsort(0).remainder(7).unbind(1)
        return torch.stack([self.table(column[:, None]) for column in ids]).square().mean()


class Patches(nn.Module):
    """As many positions as an image of ten by ten has: its sizes are held, the batch changes."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, 8, 2, 2), nn.Parameter(torch.randn(1, 25, 8))

    def forward(self, x: Tensor) -> Tensor:
        return (self.patches(x).flatten(2).transpose(1, 2) + self.places).softmax(-1).square().mean()


class Added(nn.Module):
    """Rows of the batch added to rows of the batch, dropout, and activations that the step saves or computes again."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(6, 40)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        order = tokens[:, 0].argsort()
        sums = torch.zeros_like(tokens).index_add(0, order // 2, tokens[order] * 2)
        return (F.dropout(self.wide(sums).sigmoid(), 0.5) * 0 + self.wide(tokens).tanh()).square().mean()


TRAINED: list[tuple[nn.Module, list[tuple[int, ...]]]] = [
    (Padded(), [(2, 10, 3), (3, 13, 3), (2, 15, 3)]),
    (Bags(), [(5, 3), (8, 3), (6, 3)]),
    (Patches(), [(2, 3, 10, 10), (5, 3, 10, 10), (3, 3, 10, 10)]),
    (Added(), [(2, 7, 6), (5, 9, 6), (3, 7, 6)]),
]


@pytest.mark.slow
@pytest.mark.spread(4, 2)
@pytest.mark.parametrize(("model", "shapes"), TRAINED, ids=["padded", "bags", "patches", "added"])
def test_one_pair_of_schedules_trains_at_any_size(
    compiled: Compiler, model: nn.Module, shapes: list[tuple[int, ...]]
) -> None:
    torch.manual_seed(0)
    fast = compiled(model, dynamic=True)
    for shape in shapes:
        given, found = torch.randn(shape), []
        for call in (fast, model):
            model.zero_grad()
            x = given.clone().requires_grad_()
            loss = call(x)
            loss.backward()
            found.append([loss.detach(), x.grad, *(p.grad for p in model.parameters())])
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert schedules(compiled) == ["compiled0.forward", "compiled0.backward"]


def normed(x: Tensor, weight: Tensor) -> Tensor:
    y = (x @ weight).relu()
    return ((y - y.mean(-1, keepdim=True)) @ weight).sigmoid() + x


def test_memory_is_reused_where_sizes_are_equal_at_any_size(compiled: Compiler) -> None:
    """Of the six values of this program three are live at once; the peak says so for every size."""
    fast, weight = compiled(normed), torch.randn(16, 16)
    with torch.no_grad():
        for rows_ in (6, 33):
            x = marked(rows_, 16)
            torch.testing.assert_close(fast(x, weight), normed(x, weight), rtol=1e-4, atol=1e-5)
    (schedule,) = [schedule for run in compiled.runs for schedule in run.record.schedules]
    assert "= window(mm" in schedule.source
    peak = size_peak(schedule.extraction, schedule.solution)
    (name,) = symbols_in(peak.terms[0])
    assert str(peak) == f"({name}*192 + 1024)"
    assert peak.at({name: 100}) == 3 * 100 * 16 * 4 + 16 * 16 * 4
    assert optfuse.compiled_graphs()[-1].peak == str(peak)


def test_a_cap_on_memory_bounds_the_range(compiled: Compiler) -> None:
    weight = torch.randn(16, 16)
    fast = torch.compile(normed, backend="optfuse", options={**OPTIONS, "peak_memory": 192 * 40 + 1024})
    with torch.no_grad():
        for rows_ in (6, 40, 9):
            x = marked(rows_, 16)
            torch.testing.assert_close(fast(x, weight), normed(x, weight), rtol=1e-4, atol=1e-5)
        assert optfuse.compiled_graphs()[-1].status
        with pytest.raises(InfeasibleError, match="peak_memory"):
            fast(marked(41, 16), weight)
