"""A sampler by exponential numbers is one kernel, and draws each class as often as its probability says."""

import torch
from torch import Tensor, nn

import optfuse


class Sampler(nn.Module):
    def forward(self, logits: Tensor) -> Tensor:
        chances = torch.softmax(logits, -1)
        return torch.argmax(chances / torch.empty_like(chances).exponential_(1), -1)


def test_a_sampler_is_one_kernel() -> None:
    rows = 4096
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5]).repeat(rows, 1)
    schedule = optfuse.optimize(Sampler(), (logits,), device="h200")
    assert schedule.library_ops == ("aten.randint.default",)
    assert len(schedule.to_pandas()) == 2
    torch.manual_seed(0)
    drawn = schedule.compile()(logits)
    shares = torch.bincount(drawn, minlength=5) / rows
    torch.testing.assert_close(shares, torch.softmax(logits[0], -1), rtol=0, atol=0.03)
