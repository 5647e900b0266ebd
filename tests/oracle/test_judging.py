"""The judge of whole programs: honest rounding passes, and every kind of wrong result fails."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.oracle.judging import judge_program


class Net(nn.Module):
    """A key's bias (whose gradient is zero), a norm with statistics, and an output of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.norm(self.project(x))
        return hidden.square().mean() + hidden.sum() * 0.1 + hidden[0].exp().sum(), hidden


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().train()


def failures(program: Any, net: Net) -> list[str]:
    rows = judge_program(
        program, net, (torch.randn(16, 8, generator=torch.Generator().manual_seed(1)),), {}, train=True
    )
    return [row.name for row in rows if row.fault]


def test_the_model_itself_passes(net: Net) -> None:
    assert failures(net, net) == []


def test_another_order_of_rounding_passes(net: Net) -> None:
    def program(x: Tensor) -> Any:
        hidden = net.norm(
            torch.flip(torch.flip(x, (1,)) @ net.project.weight.flip(1).t(), (1,)).flip(1) + net.project.bias
        )
        return hidden.square().mean() + hidden.sum() * 0.1 + hidden[0].exp().sum(), hidden

    assert failures(program, net) == []


def test_results_that_are_off_by_little_fail(net: Net) -> None:
    assert failures(lambda x: tuple(y * (1 + 1e-4) for y in net(x)), net)[:2] == ["output 0", "output 1"]


def test_one_wrong_element_fails(net: Net) -> None:
    def program(x: Tensor) -> Any:
        loss, hidden = net(x)
        wrong = hidden.detach().clone()
        wrong[3, 3] += 1e-2
        return loss, wrong

    assert failures(program, net) == ["output 1"]


def test_a_wrong_gradient_fails(net: Net) -> None:
    def program(x: Tensor) -> Any:
        loss, hidden = net(x)
        return loss + (hidden - hidden.detach()).sum() * 1e-3, hidden

    assert "gradient of norm.bias" in failures(program, net)


def test_a_gradient_that_should_be_zero_fails_when_it_is_not(net: Net) -> None:
    def program(x: Tensor) -> Any:
        loss, hidden = net(x)
        return loss + (net.project.bias - net.project.bias.detach()).sum() * 1e-3, hidden

    assert failures(program, net) == ["gradient of project.bias"]


def test_statistics_that_are_forgotten_fail(net: Net) -> None:
    still = copy.deepcopy(net)

    def program(x: Tensor) -> Any:
        still.load_state_dict(net.state_dict())
        hidden = nn.functional.batch_norm(net.project(x), None, None, net.norm.weight, net.norm.bias, training=True)
        return hidden.square().mean() + hidden.sum() * 0.1 + hidden[0].exp().sum(), hidden

    assert {"buffer norm.running_mean", "buffer norm.num_batches_tracked"} <= set(failures(program, net))


def test_an_input_that_is_spoilt_fails(net: Net) -> None:
    def program(x: Tensor) -> Any:
        result = net(x.clone())
        x.zero_()
        return result

    assert failures(program, net) == ["input 0"]


def test_a_missing_gradient_fails(net: Net) -> None:
    def program(x: Tensor) -> Any:
        net.norm.weight.requires_grad_(False)
        result = net(x)
        net.norm.weight.requires_grad_(True)
        return result

    with pytest.raises(AssertionError, match=r"norm\.weight"):
        failures(program, net)
