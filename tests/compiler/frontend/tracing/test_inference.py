"""Captured graphs against eager, on what is awkward to capture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optfuse.compiler.frontend import capture, gather_inputs
from optfuse.errors import CaptureError
from tests.compiler.frontend.running import assert_same, call, capture_and_compare, targets


class Function(nn.Module):
    """A module of one function, for cases without parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def fill(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    values = torch.arange(float(torch.tensor(shape).prod())).sin()
    return values.reshape(shape).to(dtype) if dtype.is_floating_point else (values * 50).reshape(shape).to(dtype)


def in_place(x: Tensor) -> Tensor:
    y = x.mul_(2)
    x[0].add_(1)
    return y + x


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "view of an input": (lambda x: (x[1:], x.t(), x), (fill(3, 4),)),
    "same tensor twice": (lambda x: (y := x.exp(), y), (fill(3, 4),)),
    "input written in place": (in_place, (fill(3, 4),)),
    "index copy into a cache": (
        lambda cache, new, at: cache.index_copy_(1, at, new).sum(),
        (torch.zeros(2, 8, 3), fill(2, 2, 3), torch.tensor([4, 1])),
    ),
    "0-d": (lambda x: (x + 1, x.sum(), x * x), (torch.tensor(2.5),)),
    "empty": (lambda x: (x.exp(), x.sum(1), x.sum(0)), (torch.empty(0, 5),)),
    "non-contiguous": (lambda x, y: (x.relu() + y).softmax(-1), (fill(6, 4).t()[::2], fill(2, 6)[:, ::1])),
    "integers": (lambda x: (x // 3, x % 5, x & 6, -x, x.sum()), (fill(3, 4, dtype=torch.int32),)),
    "bool": (lambda x: (x & ~x.flip(0), x.any(1), x.all(), x + x), (fill(3, 4) > 0,)),
    "half": (lambda x: torch.softmax(x, -1) * torch.nn.functional.gelu(x), (fill(3, 5, dtype=torch.bfloat16),)),
    "python values": (
        lambda x, n, name: {"n": n, "name": name, "none": None, "x": x * n, "k": [1.5, True]},
        (fill(2), 3, "a"),
    ),
    "nested arguments": (lambda a: a["x"][0] - a["x"][1], ({"x": (fill(3), fill(3) + 1)},)),
    "a tensor written down": (lambda x: (x + torch.tensor([1.0, 2.0]), torch.tensor([3, 4])), (fill(2),)),
    "constant result": (lambda x: (torch.arange(5) * 2, torch.ones(2, 3), x), (fill(2),)),
    "clone of an input": (lambda x: (x.clone(), x.contiguous(), x.to(x.dtype)), (fill(2, 2),)),
    "in-place on a clone": (lambda x: (x.clone().zero_(), x), (fill(2, 2),)),
    "split and chunk": (lambda x: (*x.split([1, 3], 1), *x.chunk(2, 0), *x.unbind(1)), (fill(4, 4),)),
    "embedding": (lambda w, i: torch.nn.functional.embedding(i, w), (fill(7, 3), torch.tensor([[0, 6], [3, 3]]))),
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", CASES)
def test_like_eager(name: str) -> None:
    function, args = CASES[name]
    capture_and_compare(Function(function), args)


class Normed(nn.Module):
    """Batch norm and a counter: buffers that change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.norm(x) + self.calls


def test_buffers_change_as_in_eager() -> None:
    model = Normed().train()
    captured = capture_and_compare(model, (fill(5, 4),))
    written = {captured.inputs[position].target for _, position in captured.mutations}
    assert written == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "calls"}
    assert model.calls == 1


def test_batch_norm_in_evaluation_changes_nothing() -> None:
    model = Normed().eval()
    model.register_buffer("calls", torch.zeros(()))
    captured = capture_and_compare(model.norm, (fill(5, 4),))
    assert captured.mutations == ()


class Tied(nn.Module):
    """An embedding that is also the output projection."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embedding(ids))


def test_tied_parameters_are_one_input() -> None:
    captured = capture_and_compare(Tied(), (torch.tensor([[1, 6, 0]]),))
    assert [source.kind for source in captured.inputs].count("parameter") == 1


def test_same_tensor_passed_twice() -> None:
    x = fill(3)
    captured = capture_and_compare(Function(lambda a, b: (a.add_(1), b * 2)), (x, x))
    with pytest.raises(CaptureError, match="one tensor passed twice"):
        gather_inputs(captured, nn.Module(), (fill(3), fill(3)))


def test_writing_into_one_of_two_overlapping_inputs_is_refused() -> None:
    x = fill(4)
    with pytest.raises(CaptureError, match="shares memory"):
        capture(Function(lambda a, b: (a.add_(1), b * 2)), (x, x[1:]))


def test_dropout_follows_the_seed() -> None:
    model = nn.Dropout(0.5).train()
    captured = capture(model, (torch.ones(1000),))
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(call(captured, model, (torch.ones(1000),), {}))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert set(results[0].unique().tolist()) == {0.0, 2.0}
    assert 400 < results[0].count_nonzero() < 600


def test_two_draws_stay_two() -> None:
    captured = capture(Function(lambda x: torch.rand_like(x) - torch.rand_like(x)), (fill(4),))
    assert targets(captured)["aten.rand_like.default"] == 2


@dataclass
class Wrapped:
    """A result of the user's own type."""

    value: Tensor
    extra: Tensor | None = None


def test_model_output_of_transformers() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    result = lambda x: outputs.BaseModelOutput(last_hidden_state=x + 1, attentions=(x, x * 2))  # noqa: E731
    captured = capture_and_compare(Function(result), (fill(3),))
    assert isinstance(call(captured, nn.Module(), (fill(3),), {}), outputs.BaseModelOutput)


def test_registered_dataclass() -> None:
    torch.export.register_dataclass(Wrapped)
    captured = capture(Function(lambda x: Wrapped(x + 1)), (fill(3),))
    result = call(captured, nn.Module(), (fill(3),), {})
    assert isinstance(result, Wrapped)
    assert_same(result.value, fill(3) + 1)


def test_mode_and_model_are_left_alone() -> None:
    model = Normed().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    capture(model, (fill(5, 4),))
    assert model.training
    assert_same(dict(model.state_dict()), before)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((fill(4, 3), 2), "captured for args\\[0\\] torch.float32 \\[3, 4\\] on cpu, not torch.float32 \\[4, 3\\]"),
        ((fill(3, 4, dtype=torch.float64), 2), "not torch.float64"),
        ((fill(3, 4), 3), "captured for the value 2, not 3"),
        ((fill(3, 4),), r"the arguments \(.*\), not \(args\[0\]\)"),
    ],
)
def test_other_arguments_are_refused(args: tuple[Any, ...], message: str) -> None:
    captured = capture(Function(lambda x, n: x * n), (fill(3, 4), 2), name="scaled")
    with pytest.raises(CaptureError, match=message):
        gather_inputs(captured, nn.Module(), args)


def test_other_strides_are_copied() -> None:
    model = Function(lambda x: x.add_(1) * 2)
    captured = capture(model, (fill(3, 4),))
    x = fill(4, 3).t()
    expected = (x + 1) * 2
    assert_same(call(captured, model, (x,), {}), expected)
    assert_same(x, expected / 2)


def test_every_node_has_a_value_and_a_static_shape() -> None:
    captured = capture_and_compare(Normed().eval(), (fill(5, 4),))
    for node in captured.graph.graph.nodes:
        if node.op != "output":
            assert node.meta["val"] is not None
    assert len(captured.placeholders) == len(captured.inputs)
