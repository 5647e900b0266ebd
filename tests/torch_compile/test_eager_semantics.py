"""What the fuzzer of ``fuzzed`` found: a test for each class of difference from eager execution."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from optfuse.runtime.environment import mode
from tests.torch_compile.test_torch_compile import Compiler, planned

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


@pytest.fixture
def compiled() -> Compiler:
    torch.compiler.reset()
    torch.manual_seed(0)
    return Compiler()


def same(got: Any, wanted: Any) -> None:
    """Equal values, dtypes and strides, result by result."""
    assert len(got) == len(wanted)
    for x, y in zip(got, wanted, strict=True):
        assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
        tolerance = {"rtol": 1e-14, "atol": 0} if x.dtype is torch.float64 else {"rtol": 1e-6, "atol": 1e-7}
        torch.testing.assert_close(x, y, **tolerance, equal_nan=True)


def check(compiled: Compiler, function: Any, *args: Tensor) -> None:
    """The function's results and what it leaves of its arguments are eager's."""
    ours, theirs = ([x.clone() for x in args] for _ in range(2))
    same((*compiled(function)(*ours), *ours), (*function(*theirs), *theirs))


@pytest.mark.spread(3)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
@pytest.mark.parametrize("scalar", [-2, 300, 70_000])
def test_whole_numbers_out_of_range_wrap_around(compiled: Compiler, dtype: torch.dtype, scalar: int) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x > scalar, x == scalar, x + scalar, x * scalar, x & scalar, x % scalar, x // scalar, scalar - x

    check(compiled, function, torch.tensor([0, 1, 2, 100, 127]).to(dtype))
    assert planned(compiled)


def test_bools_are_clamped(compiled: Compiler) -> None:
    x, y = torch.tensor([True, False, True]), torch.tensor([False, True, True])
    check(compiled, lambda x, y: (x.clamp(min=y), x.clamp(max=y)), x, y)
    assert planned(compiled)


@pytest.mark.parametrize("value", [0.5, 1.5, -1.5, 2])
def test_integers_are_multiplied_by_the_whole_part(compiled: Compiler, value: float) -> None:
    x = torch.arange(5, dtype=torch.int32)
    check(compiled, lambda x: (torch.addcmul(x, x, x + 1, value=value),), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_dynamo_writes_as_one_multiplication_and_addition_is_no_library_call(
    compiled: Compiler, dtype: torch.dtype
) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x.addcmul_(y, y, value=0.5)
        y.addcdiv_(x, y * y + 1, value=-0.25)
        return (x + y,)

    check(compiled, function, torch.arange(6.0).to(dtype), torch.arange(6.0).to(dtype) - 2)
    assert [schedule.library_ops for run in compiled.runs for schedule in run.record.schedules] == [()]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_compared_with_what_a_number_is_in_them(compiled: Compiler, dtype: torch.dtype) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        rounded = (x == 0.3, x != 0.3, x > 0.3, x >= 0.3, x < 0.3, x <= 0.3, 0.3 == x)  # noqa: SIM300
        return *rounded, x % 0.3, torch.fmod(x, 0.3), 0.3 % x, F.hardshrink(x, 0.3)

    check(compiled, function, torch.tensor([0.3, 0.6, 0.9, -0.3, 1.0, 2.0]).to(dtype))
    assert planned(compiled)


def test_windows_that_overlap_themselves_are_written_as_traced(compiled: Compiler) -> None:
    def function(x: Tensor, whole: Tensor) -> tuple[Tensor, ...]:
        x[:, 2:] = -1
        return (whole * 2,)

    results = []
    for run in (compiled(function), function):
        whole = torch.arange(20.0)
        results.append((run(whole.as_strided((3, 4), (2, 1), 1), whole), whole))
    torch.testing.assert_close(*results)


def by_place(x: Tensor) -> tuple[Tensor, ...]:
    window = x.as_strided((2,), (1,), 4)
    window.mul_(2)
    return window * 1, x + 1


def outside(x: Tensor) -> tuple[Tensor, ...]:
    window = x.as_strided((5,), (1,), 1)
    window.mul_(2)
    return (window[::3].exp(),)


def scattered(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.as_strided_scatter(x, x.flatten()[:2] * 2, (2,), (1,), 3),)


def repeated(x: Tensor) -> tuple[Tensor, ...]:
    y = x[:1].expand(3, 1, 3)
    return (torch.as_strided_scatter(y, y.flatten()[:2] * 2, (2,), (1,), 0),)


def converted(x: Tensor) -> tuple[Tensor, ...]:
    y = x > 5
    return (torch.as_strided_scatter(y, y.flatten()[:2] * 2, (2,), (1,), 0),)


def copied(x: Tensor) -> tuple[Tensor, ...]:
    y = x.clone()
    y.as_strided((4,), (1,), 0).add_(1)
    return (y * 2,)


def twice(x: Tensor) -> tuple[Tensor, ...]:
    return (x.as_strided((2, 3, 4), (1, 4, 1), 1).as_strided((4,), (1,), 2) * 2,)


@pytest.mark.spread(4)
@pytest.mark.parametrize("function", [by_place, outside, scattered, repeated, converted, copied, twice])
@pytest.mark.parametrize("offset", [0, 3])
def test_places_count_from_the_start_of_the_storage(compiled: Compiler, function: Any, offset: int) -> None:
    results = []
    for run in (compiled(function), function):
        x = torch.arange(16.0).as_strided((2, 1, 3), (3, 3, 1), offset)
        results.append((*run(x), x))
    same(*results)
    assert planned(compiled)


def before(x: Tensor) -> Tensor:
    x[:1] = 1.0
    return x.as_strided((), (), 0) * 2


def gaps(x: Tensor) -> Tensor:
    x[:1] = 1.0
    return x.as_strided((12,), (1,), 0) * 2


def filled(x: Tensor) -> Tensor:
    x.copy_(torch.ones(2))
    return x.as_strided((12,), (1,), 0) * 2


def one_gap(x: Tensor) -> Tensor:
    x[:1] = 1.0
    return x.as_strided((), (), 1) * 2


def over_a_gap(x: Tensor) -> Tensor:
    x.copy_(x * 2)
    return x.as_strided((2, 2), (4, 1), 1) * 2


@pytest.mark.parametrize(("function", "offset"), [(gaps, 0), (before, 1), (filled, 0), (one_gap, 0), (over_a_gap, 0)])
def test_memory_beside_the_elements_of_a_computed_tensor_is_not_planned(
    compiled: Compiler, function: Any, offset: int
) -> None:
    results = []
    for run in (compiled(function), function):
        x = torch.arange(20.0).as_strided((4, 2), (4, 2), offset)
        results.append(run(x))
    torch.testing.assert_close(*results)
    assert "reaches beyond the tensor" in compiled.runs[0].record.unplanned[0][1]


@pytest.mark.parametrize("value", [1.0, torch.arange(3.0)])
def test_memory_around_a_dense_window_that_was_written_is_not_planned(compiled: Compiler, value: Any) -> None:
    def function(x: Tensor) -> Tensor:
        x.copy_(torch.as_tensor(value))
        return x.as_strided((3, 3), (1, 2), 0) * 2

    results = [run(torch.arange(8.0)[:3]) for run in (compiled(function), function)]
    torch.testing.assert_close(*results)
    assert "reaches beyond the tensor" in compiled.runs[0].record.unplanned[0][1]


def test_windows_of_what_was_written_are_planned(compiled: Compiler) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        x.copy_(torch.ones(()))
        y = x * 2
        return (
            x.as_strided((2,), (3,), 1) * 2,
            y.as_strided((3,), (1,), 1) * 3,
            torch.ones(6)[2:].as_strided((6,), (1,), 0),
        )

    results = [run(torch.arange(6.0).as_strided((2, 2), (3, 1))) for run in (compiled(function), function)]
    torch.testing.assert_close(*results)
    assert planned(compiled)


def written_view(x: Tensor, y: Tensor) -> Tensor:
    result = y.sigmoid() * y.float()
    y.add_(1)
    return result


def written_beside(x: Tensor, y: Tensor) -> Tensor:
    result = y.float().exp() * y.float().sin()
    x[::2].abs_()
    return result


def written_in_the_graph(x: Tensor, y: Tensor) -> Tensor:
    result = y.t().float().exp() * y.float().sin()
    y.detach().add_(1)
    return result


@pytest.mark.parametrize("function", [written_view, written_beside, written_in_the_graph])
@pytest.mark.parametrize("own", [False, True])
def test_gradients_are_those_at_the_values_before_a_write(compiled: Compiler, function: Any, own: bool) -> None:
    results = []
    for run in (compiled(function), function):
        leaf = torch.arange(10.0).sub(4.5).half().requires_grad_()
        memory = leaf * 1
        x, y = memory[:1], memory[:9].view(3, 3)
        y = y * 1 if own else y
        results.append((run(x, y), torch.autograd.grad(run(x, y).sum(), leaf)[0], y.detach()))
    torch.testing.assert_close(*results, rtol=2e-3, atol=2e-3)
    assert planned(compiled)


def test_a_view_of_a_library_calls_result_returned_twice_is_one_object(compiled: Compiler) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.einsum("ai,bi->ab", x, x)
        return y.to(y.dtype), y

    one, other = compiled(function)(torch.arange(6.0).view(2, 3))
    assert one is other


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_parts_of_complex_numbers_share_no_memory_with_what_these_were_made_of(
    compiled: Compiler, shape: tuple[int, ...]
) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        z = torch.complex(x, x)
        return (
            z.real.contiguous(),
            torch.view_as_real(z + 1)[..., 1].contiguous(),
            torch.view_as_real(z.conj_physical()).select(-1, 0).contiguous(),
        )

    x = torch.ones(shape)
    for result in compiled(function)(x):
        result.zero_()
    assert x.eq(1).all()
    first, second, third = compiled(function)(x)
    first.zero_(), second.zero_()
    assert third.eq(1).all()


@pytest.mark.parametrize("shape", [(4, 3), (0, 4), (0, 0)])
def test_a_diagonal_is_filled(compiled: Compiler, shape: tuple[int, ...]) -> None:
    check(compiled, lambda x: (x.fill_diagonal_(0.25), x * 2), torch.zeros(shape))


@pytest.mark.parametrize("places", [[-1], [0, -2], [3, -4]])
def test_places_to_fill_count_from_the_end(compiled: Compiler, places: list[int]) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x.index_fill(0, torch.tensor(places), 7)
        return y, x.index_fill_(0, torch.tensor(places), -0.5) + 1

    check(compiled, function, torch.arange(8.0).view(4, 2))


def test_repetitions_are_dense(compiled: Compiler) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x.repeat(1, 2)
        return (
            y,
            x + y,
            x.expand(5, 3).repeat(2, 1, 1),
            x.t().repeat(2, 1),
            x[0].sum().repeat(3),
            torch.ones(3).repeat(2),
        )

    check(compiled, function, torch.arange(5.0).view(5, 1))
    assert planned(compiled)


def test_constants_that_repeat_are_there_once(compiled: Compiler) -> None:
    def function() -> tuple[Tensor, ...]:
        ones = torch.ones(3).as_strided((3, 3), (0, 1))
        return ones, torch.zeros(3, 1).expand(3, 4), torch.full((), 2.0).expand(2, 2), torch.ones(6).unfold(0, 3, 1)

    got, wanted = compiled(function)(), function()
    same(got, wanted)
    for results in (got, wanted):
        for x in results:
            x.as_strided((1,), (1,)).add_(1)
    same(got, wanted)
    assert planned(compiled)


@pytest.mark.parametrize("written", ["view", "memory"])
def test_a_view_that_is_written_before_the_backward_pass_is_refused(compiled: Compiler, written: str) -> None:
    leaf = torch.ones(3, 3, requires_grad=True)
    for run in (compiled(torch.mul), torch.mul):
        memory = torch.ones(4, 3)
        result = run(leaf, memory[1:])
        (memory[1:] if written == "view" else memory).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()
    assert planned(compiled)


def same_object(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return y, y.contiguous(), y[:1]


def same_view(x: Tensor) -> tuple[Tensor, ...]:
    y = x.chunk(2)[-1]
    return y, y.flatten(), x * 2


def nothing(x: Tensor) -> tuple[Tensor, ...]:
    y = x[:0] * 2
    return y, y.chunk(2)[0], y.view(0)


def argument_and_view(x: Tensor) -> tuple[Tensor, ...]:
    y = (x + 1)[1:]
    return x * 2, y, y, x


@pytest.mark.spread(2)
@pytest.mark.parametrize("function", [same_object, same_view, nothing, argument_and_view])
def test_results_are_one_object_where_eagers_are(compiled: Compiler, function: Any) -> None:
    x = torch.randn(3, requires_grad=function is same_view)
    found = [
        [[one is other for one in results] for other in results] for results in (compiled(function)(x), function(x))
    ]
    assert found[0] == found[1]
    assert planned(compiled)


def test_a_window_of_what_is_detached_wants_no_gradient(compiled: Compiler) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = F.pad(x, [0, -1]) * 2
        return y, y.detach().as_strided((3, 1), (1, 1), 0), y[1:]

    x = torch.arange(12.0).view(3, 4).requires_grad_()
    got, wanted = compiled(function)(x), function(x)
    assert [y.requires_grad for y in got] == [y.requires_grad for y in wanted]
    gradients = [torch.autograd.grad((y.square().sum() + z.sum()), x)[0] for y, _, z in (got, wanted)]
    torch.testing.assert_close(*gradients)
    with torch.no_grad():
        for results in (got, wanted):
            results[1].add_(1)
        torch.testing.assert_close(got, wanted)


def halves(x: Tensor) -> tuple[Tensor, ...]:
    return x.chunk(2)


def rows_and_more(x: Tensor) -> tuple[Tensor, ...]:
    first, second = x.unbind()
    return first, second, first, x * 2


@pytest.mark.parametrize("function", [halves, rows_and_more])
def test_parts_of_an_argument_with_a_gradient_are_views_of_it(compiled: Compiler, function: Any) -> None:
    """Autograd refuses writes into one of several parts, and to read it after a write into the whole."""
    leaf = torch.ones(2, 3, requires_grad=True)
    whole = leaf * 2
    parts = compiled(function)(whole)
    assert len({id(part) for part in parts}) == len({id(part) for part in function(whole)})
    with pytest.raises(RuntimeError, match="returns multiple views"):
        parts[0].mul_(3)
    (gradient,) = torch.autograd.grad(parts[0].sum() + parts[1].prod(), leaf, retain_graph=True)
    torch.testing.assert_close(gradient, torch.tensor([[2.0] * 3, [8.0] * 3]))
    whole.mul_(3)
    with pytest.raises(RuntimeError, match="has been modified inplace"):
        parts[0].sum()


def test_padding_is_as_exact_as_what_it_pads(compiled: Compiler) -> None:
    x = torch.arange(6.0, dtype=torch.float64).view(2, 3)
    check(compiled, lambda x: (F.pad(x, [1, 1], value=0.3), F.pad(x, [1, -1], value=1e300)), x)
    assert planned(compiled)
