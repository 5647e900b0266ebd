"""What programs of users found in ``torch.compile(f, backend="optfuse")``, a test for each class of defect."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.overrides import TorchFunctionMode

from optfuse.runtime.environment import mode
from tests.torch_compile.test_torch_compile import Compiler, compiled, planned

__all__ = ["compiled"]

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


def test_what_a_library_writes_may_be_planned_as_repeated(compiled: Compiler) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.view_as_complex(x).conj().real @ torch.ones(3, 5)

    x = torch.randn(1, 2, 3, 2).expand(2, 2, 3, 2)
    torch.testing.assert_close(compiled(function)(x), function(x))
    assert planned(compiled)


def test_numbers_in_place_of_tensors(compiled: Compiler) -> None:
    """As derivatives under torch.func of what is multiplied by a number."""

    def function(x: Tensor) -> Tensor:
        return x * torch.ops.aten._to_copy.default(0.01, dtype=torch.float64)  # noqa: SLF001

    x = torch.randn(3)
    torch.testing.assert_close(compiled(function)(x), function(x))
    assert planned(compiled)


def test_a_scan_is_trained(compiled: Compiler) -> None:
    """Torch's own decompositions make its body return what it is given."""

    def function(start: Tensor, xs: Tensor, weight: Tensor) -> Tensor:
        last, sums = scan(lambda h, x: ((h @ weight + x).tanh(), (h * 2).sum(-1)), start, xs)
        return last.sin() + sums.sum()

    shapes = (2, 4), (5, 2, 4), (4, 4)
    leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]
    gradients = [torch.autograd.grad(each(*leaves).sum(), leaves) for each in (function, compiled(function))]
    torch.testing.assert_close(*gradients)
    assert planned(compiled)


class Doubling(TorchFunctionMode):
    """Doubles each sine."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What it is asked for, but for sines."""
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.sin else result


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True])
def test_function_modes_change_a_function_once(compiled: Compiler, dynamic: bool | None) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.sin(x) + 1

    step = compiled(function, dynamic=dynamic)
    for size in (3, 4, 0):
        x = torch.ones(size, requires_grad=size == 3)
        with Doubling():
            wanted, got = function(x), step(x)
            for y in (wanted, got) if size == 3 else ():
                y.sum().backward()
        torch.testing.assert_close(got, wanted)
        assert x.grad is None or torch.equal(x.grad, 4 * torch.cos(x)), "of both calls"
        torch.testing.assert_close(step(x), function(x))
    assert planned(compiled)


def test_sizes_that_come_under_a_default_device(compiled: Compiler) -> None:
    step = compiled(lambda x: x.where(x > torch.zeros_like(x) + 1, torch.full_like(x, 2)), dynamic=True)
    for size in (3, 4):
        x = torch.randn(size)
        with torch.device("meta"):
            got = step(x)
        assert got.tolist() == [max(value, 2) if value <= 1 else value for value in x.tolist()]
    assert planned(compiled)


def test_constants_without_values(compiled: Compiler) -> None:
    step = compiled(lambda x: (x + 1, torch.zeros(2, device="meta") + 1))
    _, empty = step(torch.randn(3))
    assert empty.is_meta
    assert "'meta'" in compiled.runs[0].record.unplanned[0][1], "a graph that works on such a device is left"


def test_what_torch_refuses_is_no_defect_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPTFUSE_STRICT")
    values = [nn.Parameter(torch.arange(3.0)) for _ in range(2)]

    def function(x: Tensor, weight: nn.Parameter) -> Tensor:
        weight.data = weight.data * 2
        weight.data.add_(x)
        return weight * x

    compiled = Compiler()
    x = torch.randn(3)
    torch.testing.assert_close(compiled(function)(x, values[0]), function(x, values[1]))
    torch.testing.assert_close(*values)
    (left,) = compiled.runs[0].record.unplanned
    assert left[1].startswith("torch cannot trace it: ")


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_place_that_a_tensor_holds_is_read_at_each_call(dynamic: bool) -> None:
    compiled = Compiler()
    step = compiled(lambda x, start: torch.narrow(x, 0, start, 2) * 2, dynamic=dynamic)
    for n in (5, 6):
        for start in (1, 2, 3):
            x = torch.randn(n, 3)
            torch.testing.assert_close(step(x, torch.tensor(start)), x[start : start + 2] * 2)
    assert [why for run in compiled.runs for why in run.record.unplanned] == []


def test_a_trace_that_torch_stops_inside_of_a_transform_leaves_it() -> None:
    """Torch's trace of forward gradients of a window of a window fails, where eager execution does not."""

    def function(x: Tensor) -> Tensor:
        return torch.func.jvp(lambda t: t[..., :1] * t, (x,), (x * 2,))[0]

    x = (torch.arange(12.0, requires_grad=True) * 1).as_strided((6,), (2,), 1)
    compiled = Compiler()
    for _ in range(2):
        torch.testing.assert_close(compiled(function)(x), function(x))
    assert compiled.runs[0].record.unplanned[0][1].startswith("torch cannot trace it: ")


def test_an_integer_of_an_argument_may_be_a_size() -> None:
    def ones(count: torch.Tensor) -> torch.Tensor:
        n = int(count.item())
        return torch.ones(1, n) @ torch.ones(n, 1)

    with torch._dynamo.config.patch(capture_scalar_outputs=True):  # noqa: SLF001 - its public face
        fast = torch.compile(ones, fullgraph=True, backend="optfuse", options={"time_limit": 2})
        for n in (5, 7):
            assert fast(torch.tensor(n)).item() == n


@pytest.mark.parametrize("beside", [False, True])
def test_values_written_at_a_mask_are_trained(beside: bool) -> None:
    """Beside other indices, their gradient has as many rows as the mask has places: torch does not trace that."""

    def function(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        y = x * 2
        if beside:
            y[mask[:, 0], torch.tensor([1])] = values[:2]
        else:
            y[mask] = values
        return y.sin()

    x, values = torch.randn(4, 3, requires_grad=True), torch.randn(6, requires_grad=True)
    mask = torch.arange(12).view(4, 3) % 2 == 0
    compiled = Compiler()
    step = compiled(function, dynamic=True)
    gradients = [torch.autograd.grad(each(x, mask, values).sum(), (x, values)) for each in (function, step)]
    torch.testing.assert_close(*gradients)
    left = any("torch cannot trace it" in why for run in compiled.runs for _, why in run.record.unplanned)
    assert left == beside


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("write", "right", "wrong"),
    [
        (lambda x, y: torch.slice_scatter(x * 2, y, 0, -20, -4), (4, 6), [(1, 6), (0, 6), (5, 6), (6,)]),
        (lambda x, y: torch.select_scatter(x * 2, y, 0, 1), (6,), [(1,), (0,), ()]),
        (lambda x, y: torch.diagonal_scatter(x * 2, y), (6,), [(1,), (0,), (5,)]),
    ],
    ids=["slice", "select", "diagonal"],
)
def test_values_of_another_shape_than_their_window_are_refused(
    monkeypatch: pytest.MonkeyPatch, write: Any, right: tuple[int, ...], wrong: list[tuple[int, ...]], dynamic: bool
) -> None:
    """As by eager execution, which torch's trace does not; and it is no defect of ours."""
    monkeypatch.delenv("OPTFUSE_STRICT")
    compiled = Compiler()
    step = compiled(write, dynamic=dynamic)
    x = torch.randn(8, 6)
    for shape in (right, *wrong, right):
        y = torch.randn(shape)
        if shape == right:
            torch.testing.assert_close(step(x, y), write(x, y))
        else:
            with pytest.raises(RuntimeError, match="expected src to have a size equal to the slice of self"):
                step(x, y)
    left = [why for run in compiled.runs for _, why in run.record.unplanned]
    assert left
    assert all("expected src to have a size" in why and "defect" not in why for why in left)


def test_a_range_ends_where_values_have_another_shape_than_their_window(compiled: Compiler) -> None:
    def write(x: Tensor, y: Tensor) -> Tensor:
        return torch.slice_scatter(x, y, 0, -20, -16)

    step = compiled(write, dynamic=True)
    for size, written in ((10, 0), (12, 0), (20, 4), (25, 4)):
        x, y = torch.randn(size), torch.randn(written)
        torch.testing.assert_close(step(x, y), write(x, y))
    with pytest.raises(RuntimeError, match="expected src to have a size equal to the slice of self"):
        step(torch.randn(20), torch.randn(0))
