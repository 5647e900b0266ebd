"""Samplers are one kernel each, and draw each class as often as its probability says."""

import pytest
import torch
from torch import Tensor, nn

import optfuse
from tests.oracle.judging import Function


class Sampler(nn.Module):
    def forward(self, logits: Tensor) -> Tensor:
        chances = torch.softmax(logits, -1)
        return torch.argmax(chances / torch.empty_like(chances).exponential_(1), -1)


def choosing(logits: Tensor) -> Tensor:
    return torch.multinomial(torch.softmax(logits, -1), 1)[:, 0]


def nucleus(logits: Tensor) -> Tensor:
    """Of the classes, which are sorted, those within a probability of 0.8."""
    chances = torch.softmax(logits, -1)
    within = chances.cumsum(-1) - chances < 0.8
    return torch.multinomial(torch.where(within, chances, 0.0), 1)[:, 0]


def expected(logits: Tensor, sampler: nn.Module) -> Tensor:
    chances = torch.softmax(logits, -1)
    if sampler is CASES["nucleus"]:
        chances = torch.where(chances.cumsum(-1) - chances < 0.8, chances, 0.0)
    return chances / chances.sum()


CASES: dict[str, nn.Module] = {
    "exponential numbers": Sampler(),
    "multinomial": Function(choosing),
    "nucleus": Function(nucleus),
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", CASES)
def test_a_sampler_is_one_kernel(name: str) -> None:
    sampler = CASES[name]
    rows = 4096
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0]).repeat(rows, 1)
    schedule = optfuse.optimize(sampler, (logits,), device="h200")
    assert schedule.library_ops == ("aten.randint.default",)
    assert len(schedule.to_pandas()) == 2
    torch.manual_seed(0)
    drawn = schedule.compile()(logits)
    shares = torch.bincount(drawn, minlength=5) / rows
    torch.testing.assert_close(shares, expected(logits[0], sampler), rtol=0, atol=0.03)
