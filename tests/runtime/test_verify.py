"""The verdict: it passes honest rounding, and nothing else."""

import math

import pytest
import torch

from optfuse.runtime.check.verify import compare, largest_error, verify


@pytest.fixture
def rounded():
    exact = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return exact, exact.bfloat16()


def only(got, eager, exact):
    (check,) = compare([got], [eager], [exact])
    return check


def test_rounding_like_eager_passes(rounded):
    exact, eager = rounded
    check = only(eager.clone(), eager, exact)
    assert check.passed
    assert 0 < check.error == check.eager_error < 1e-2


def test_three_times_eagers_error_fails(rounded):
    exact, eager = rounded
    worse = (exact + 4 * (eager.double() - exact)).bfloat16()
    check = only(worse, eager, exact)
    assert not check.passed
    assert check.error > 2 * check.eager_error


def test_one_rounding_is_allowed_where_eager_is_exact(rounded):
    _, eager = rounded
    assert only(eager, eager, eager.double()).passed
    assert not only((eager.double() * 1.01).bfloat16(), eager, eager.double()).passed


def test_a_large_result_is_held_to_twice_eagers_error_and_no_more(rounded):
    exact, eager = rounded
    exact, eager = exact.float().double(), (exact * (1 + 1e-3)).float()
    error = eager.double() - exact
    assert only((exact + 1.99 * error).float(), eager, exact).passed
    assert not only((exact + 2.01 * error).float(), eager, exact).passed


@pytest.mark.parametrize(("count", "factor"), [(1, 4.0), (9, 2.0), (99, 1 + 3 / 99**0.5), (100, 1.0), (10**6, 1.0)])
def test_the_limit_by_size(count, factor):
    assert largest_error(1e-3, torch.float32, count) == pytest.approx(2e-3 * factor)
    assert largest_error(0.0, torch.float32, count) == pytest.approx(2**-25 * factor)


def test_few_elements_may_be_exact_by_luck():
    one = torch.tensor([1.0])
    ulp = torch.finfo(torch.float32).eps
    assert only(one + ulp, one, one.double()).passed
    assert not only(one + 2 * ulp, one, one.double()).passed
    many = torch.ones(10_000)
    assert not only(many + ulp, many, many.double()).passed


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_single_bad_number_fails(rounded, value):
    exact, eager = rounded
    got = eager.clone()
    got[17] = value
    assert not only(got, eager, exact).passed


def test_nan_never_passes():
    x = torch.tensor([math.nan, 1.0])
    assert not only(x, x, x.double()).passed
    assert not only(torch.ones(2), x, x.double()).passed


def test_equal_infinities_pass():
    x = torch.tensor([math.inf, 1.0])
    assert only(x, x, x.double()).passed
    assert not only(-x, x, x.double()).passed


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8])
def test_integers_are_exact(dtype):
    eager = torch.tensor([0, 1, 1]).to(dtype)
    assert only(eager.clone(), eager, eager).passed
    check = only(torch.tensor([0, 1, 0]).to(dtype), eager, eager)
    assert check.fault == "1 of 3 elements differ"


def test_dtype_and_shape_are_judged():
    x = torch.ones(2)
    assert "float64[2] where eager has float32[2]" in only(x.double(), x, x.double()).fault
    assert not only(torch.ones(2, 1), x, x.double()).passed


def test_scalars_and_counts():
    assert all(c.passed for c in compare([3, None], [3, None], [3, None]))
    assert not only(3, 4, 4).passed
    assert not only(1, True, True).passed
    assert "1 outputs where eager has 2" in compare([1], [1, 2], [1, 2])[0].fault


def test_empty_and_all_zero_outputs():
    empty, zero = torch.empty(0), torch.zeros(4)
    assert only(empty, empty, empty.double()).passed
    assert only(zero, zero, zero.double()).passed
    assert not only(zero + 1e-3, zero, zero.double()).passed


def test_mutated_inputs_are_outputs_too():
    def eager(tensors):
        tensors[0].add_(1)
        return [tensors[1] * 2]

    def forgets(tensors):
        return [tensors[1] * 2]

    def spoils(tensors):
        tensors[1].zero_()
        return eager([tensors[0], torch.ones(3)])

    inputs = [torch.zeros(3), torch.ones(3)]
    good = verify(eager, eager, eager, inputs)
    assert good.passed
    assert [check.name for check in good.outputs] == ["output 0", "input 0"]
    assert inputs[0].tolist() == [0, 0, 0]
    bad = verify(forgets, eager, eager, inputs)
    assert bad.worst.name == "input 0"
    assert "1 of 2 outputs agree" in str(bad)
    assert verify(spoils, eager, eager, inputs).worst.name == "input 1"


def test_copies_keep_strides():
    seen = []

    def record(tensors):
        seen.append([t.stride() for t in tensors])
        return []

    verify(record, record, record, [torch.ones(4, 3).t(), torch.ones(3, 1).expand(3, 5)])
    assert seen == [[(1, 3), (1, 0)]] * 3
