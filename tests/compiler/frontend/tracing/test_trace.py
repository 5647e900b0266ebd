"""What a model that cannot be traced says."""

from __future__ import annotations

import sys
from typing import Any, Self

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from optfuse.compiler.frontend import capture, capture_training
from optfuse.compiler.frontend.tracing.trace import trace
from optfuse.errors import CaptureError


class Branches(nn.Module):
    """Control flow on a value."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x


class Broken(nn.Module):
    """An error of the model's own."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ x


@pytest.mark.parametrize("function", [capture, capture_training])
def test_data_dependent_branch_names_the_line(function: object) -> None:
    with pytest.raises(CaptureError) as failure:
        function(Branches(), (torch.ones(3),), name="branches")  # type: ignore[operator]
    message = str(failure.value)
    assert "\n" not in message
    assert message.startswith("branches cannot be captured as one graph")
    assert "test_trace.py" in message
    assert "(if x.sum() > 0:)" in message
    assert "torch.where" in message


def test_error_of_the_model_names_the_line() -> None:
    with pytest.raises(CaptureError, match=r"\(return x @ x\)"):
        capture(Broken(), (torch.ones(2, 3),))


def test_args_must_be_a_tuple() -> None:
    with pytest.raises(CaptureError, match="tuple"):
        capture(Broken(), torch.ones(2, 3))  # type: ignore[arg-type]


def test_nothing_to_train() -> None:
    with pytest.raises(CaptureError, match="requires a gradient"):
        capture_training(nn.ReLU(), (torch.ones(3),))


class Twice(nn.Module):
    """A model whose call passes one tensor twice, which is traced through a wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.model(x) + y


def test_modules_keep_their_names_when_a_tensor_is_passed_twice() -> None:
    x = torch.randn(3, 4)
    for args in ((x, x), (x, torch.randn(3, 4))):
        graph = trace(Twice(), args, None, "twice").program.graph_module.graph
        paths = {path for node in graph.nodes for path, _ in node.meta.get("nn_module_stack", {}).values()}
        assert paths - {""} == {"model"}


def test_a_failed_trace_prints_nothing_of_torchs(capfd: pytest.CaptureFixture[str]) -> None:
    class Talks(Branches):
        def forward(self, x: Tensor) -> Tensor:
            print("the model's own words", file=sys.stderr)
            return super().forward(x)

    class Mismatched(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.nn.functional.linear(x, torch.ones(4, 9))

    for model in (Talks(), Mismatched()):
        with pytest.raises(CaptureError):
            capture(model, (torch.ones(3),))
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == ["the model's own words"]


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((torch.ones(3),), {"nope": 1})])
def test_arguments_that_do_not_fit_are_not_blamed_on_a_line(args: Any, kwargs: Any) -> None:
    with pytest.raises(CaptureError, match="check that the arguments are those that the model takes") as failure:
        capture(nn.ReLU(), args, kwargs)
    assert ".py:" not in str(failure.value)


class Wrapper(torch.Tensor):
    """A tensor whose elements are those of another one."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Self:
        wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # noqa: SLF001 # type: ignore[attr-defined]
        wrapper.inner = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = tree_map(lambda value: value.inner if isinstance(value, Wrapper) else value, args)
        return Wrapper(function(*args, **(kwargs or {})))

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: object) -> Wrapper:
        return Wrapper(inner["inner"])


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        (Wrapper(torch.ones(3)), "Wrapper"),
        (torch.ones(3).to_sparse(), "torch.sparse_coo"),
    ],
)
def test_only_plain_dense_tensors_are_planned(x: Tensor, kind: str) -> None:
    with pytest.raises(CaptureError, match=rf"args\[0\] is a {kind}"):
        capture(nn.ReLU(), (x,))
    holder = nn.ReLU()
    holder.register_buffer("table", x)
    with pytest.raises(CaptureError, match=f"table is a {kind}"):
        capture(holder, (torch.ones(3),))


@pytest.mark.parametrize("function", [capture, capture_training])
def test_a_function_is_no_module(function: Any) -> None:
    with pytest.raises(CaptureError, match=r"must be a torch\.nn\.Module, not a function"):
        function(lambda x: x, (torch.ones(3),))
