"""Sizes that are filled up: results, gradients and writes are eager's, and few sizes come to the graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optfuse.compiler.frontend.sizes.buckets import checked_buckets
from optfuse.errors import InvalidOptionError

BUCKETS = {0: (4, 8, 16)}
OPTIONS = {"time_limit": 2, "workers": 1, "strict": True, "buckets": BUCKETS}


class Recorded:
    """``torch.compile`` with buckets; ``sizes`` has the first dimensions that reach the graph's function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from optfuse.compiler.frontend.sizes import by_size

        self.sizes: list[int] = []
        called = by_size.BySize.__call__

        def spy(owner: Any, *arguments: Any) -> Any:
            self.sizes.append(next(x.shape[0] for x in arguments if isinstance(x, Tensor) and x.dim() == 3))
            return called(owner, *arguments)

        monkeypatch.setattr(by_size.BySize, "__call__", spy)

    def __call__(self, model: Any) -> Any:
        torch.compiler.reset()
        return torch.compile(model, backend="optfuse", options=OPTIONS, dynamic=None)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(monkeypatch)


def marked(x: Tensor) -> Tensor:
    torch._dynamo.mark_dynamic(x, 0)  # noqa: SLF001 - torch's name for it
    return x


def test_a_training_step_has_eagers_results_and_gradients(recorded: Recorded) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Softmax(-1), nn.Linear(5, 3))
    fast = recorded(model)
    for rows in (3, 7, 4, 20, 2):
        x = torch.randn(rows, 2, 6, requires_grad=True)
        found, wanted = [], []
        for call, kept in ((fast, found), (model, wanted)):
            out = call(marked(x))
            gradients = torch.autograd.grad(out.square().sum(), [x, *model.parameters()])
            kept += [out, *gradients]
        torch.testing.assert_close(found, wanted)
    assert recorded.sizes == [4, 8, 4, 20, 4]


def test_writes_reach_the_inputs_and_numbers_are_filled_up(recorded: Recorded) -> None:
    def step(x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        cache.add_(x.sum(1))
        return cache * 2, x.new_ones(x.shape[0]).cumsum(0)[:, None] * x[:, 0]

    fast = recorded(step)
    for rows, mode in ((3, torch.no_grad()), (6, torch.no_grad()), (5, torch.inference_mode())):
        with mode:
            x = torch.randn(rows, 2, 6)
            ours, theirs = torch.zeros(rows, 6), torch.zeros(rows, 6)
            torch.testing.assert_close(fast(marked(x), marked(ours)), step(x, theirs))
            torch.testing.assert_close(ours, theirs)
    assert recorded.sizes == [4, 8, 8]


def test_lengths_are_cut_to_dense_results() -> None:
    torch.compiler.reset()

    def causal(x: Tensor) -> Tensor:
        return x.cumsum(1) * 2

    fast = torch.compile(causal, backend="optfuse", options={**OPTIONS, "buckets": {1: (8, 16)}})
    for length in (5, 9):
        x = torch.randn(3, length, 4)
        torch._dynamo.mark_dynamic(x, 1)  # noqa: SLF001 - torch's name for it
        found = fast(x)
        torch.testing.assert_close(found, causal(x))
        assert found.is_contiguous()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.sum(0), "no dimension of that size"),
        (lambda x: x.flatten(0, 1), "computed from it"),
    ],
)
def test_what_mixes_rows_runs_at_its_own_size_and_says_so(
    recorded: Recorded, caplog: pytest.LogCaptureFixture, function: Any, reason: str
) -> None:
    x = marked(torch.randn(3, 2, 6))
    torch.testing.assert_close(recorded(function)(x), function(x))
    assert recorded.sizes == [3]
    assert reason in caplog.text


@pytest.mark.parametrize("value", [8, {0: 8}, {0: ()}, {0: (1, 4)}, {-1: (4,)}, {0: (4.0,)}, {"x": (4,)}])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(InvalidOptionError, match="buckets must be sizes"):
        checked_buckets(value)
