import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optfuse.compiler.ir.nodes import Call, Load
from tests.compiler.lower.eager import check, nests
from tests.compiler.lower.tensors import FLOATS, INTEGERS, tensors


@st.composite
def cases(draw, one_dim=False, **options):
    """A tensor, dimensions of it (some negative) and keepdim."""
    x = draw(tensors(**options))
    rank = x.dim()
    if one_dim:
        return x, draw(st.integers(-rank, rank - 1)) if rank else 0, draw(st.booleans())
    dims = draw(st.lists(st.integers(0, max(0, rank - 1)), unique=True, max_size=rank))
    return x, [d - rank if draw(st.booleans()) else d for d in dims], draw(st.booleans())


def tolerance(x):
    """Exact for integers; elsewhere what a reordered sum and one rounding allow."""
    if not x.dtype.is_floating_point:
        return {"rtol": 0, "atol": 0}
    return {"rtol": 2e-2, "atol": 1e-2} if x.dtype in (torch.bfloat16, torch.float16) else {"rtol": 1e-5, "atol": 1e-5}


@given(cases())
def test_sum(case):
    x, dims, keepdim = case
    check(lambda x: x.sum(dims, keepdim), x, **tolerance(x))


@given(cases(dtypes=INTEGERS + FLOATS), st.sampled_from([torch.float32, torch.float64, torch.int64]))
def test_sum_into_another_dtype(case, dtype):
    x, dims, keepdim = case
    x = x.nan_to_num(1, 2, -2) if x.dtype.is_floating_point else x
    check(lambda x: x.sum(dims, keepdim, dtype=dtype), x, **tolerance(x))


@given(cases(dtypes=FLOATS))
def test_mean(case):
    x, dims, keepdim = case
    check(lambda x: x.mean(dims, keepdim), x, **tolerance(x))


@given(cases(smallest=1))
def test_amax_and_amin_are_exact(case):
    x, dims, keepdim = case
    check(lambda x: (x.amax(dims, keepdim), x.amin(dims, keepdim)), x, rtol=0, atol=0)


@given(cases(smallest=1, one_dim=True))
def test_extrema_with_positions_are_exact(case):
    x, dim, keepdim = case
    check(lambda x: (*x.max(dim, keepdim), *x.min(dim, keepdim)), x, rtol=0, atol=0)


@given(cases(smallest=1, one_dim=True, dtypes=FLOATS + INTEGERS))
def test_argmax_and_argmin_are_exact(case):
    x, dim, keepdim = case
    check(lambda x: (x.argmax(dim, keepdim), x.argmin(dim, keepdim)), x, rtol=0, atol=0)


@given(tensors(smallest=1, dtypes=FLOATS + INTEGERS))
def test_positions_in_the_flattened_tensor(x):
    check(lambda x: (x.argmax(), x.argmin(keepdim=True), x.max(), x.min()), x, rtol=0, atol=0)


@given(cases(one_dim=True))
def test_prod(case):
    x, dim, keepdim = case
    check(lambda x: (x.prod(dim, keepdim), x.prod()), x, **tolerance(x))


@given(cases())
def test_any_and_all(case):
    x, dims, keepdim = case
    dims = dims or None
    check(lambda x: (torch.any(x, dims, keepdim), torch.all(x, dims, keepdim), x.any(), x.all()), x, rtol=0, atol=0)


def test_any_and_all_over_no_dimension_fold_nothing():
    check(lambda x: (torch.any(x, []), torch.all(x, [], True)), torch.tensor([[0.0, 2.0], [-1.0, 0.0]]), rtol=0, atol=0)
    check(lambda x: torch.any(x, []), torch.tensor([0, 2], dtype=torch.uint8), rtol=0, atol=0)


@given(cases(one_dim=True))
def test_any_and_all_over_one_dimension(case):
    x, dim, keepdim = case
    check(lambda x: (x.any(dim, keepdim), x.all(dim, keepdim)), x, rtol=0, atol=0)


@given(cases(dtypes=(torch.float32, torch.float64, torch.bfloat16)), st.sampled_from([0, 1, 2, 0.5]))
def test_variance(case, correction):
    x, dims, keepdim = case
    x = x.nan_to_num(1, 2, -2)
    aten = torch.ops.aten

    def moments(x):
        both = aten.var_mean.correction(x, dims, correction=correction, keepdim=keepdim)
        return (*both, aten.std.correction(x, dims, correction=correction, keepdim=keepdim))

    check(moments, x, **tolerance(x))


def test_variance_by_flag_and_of_all():
    x = torch.randn(4, 5)
    check(lambda x: (x.var(1, unbiased=False), x.std(0, unbiased=True, keepdim=True), x.var(), x.std(False)), x)
    check(lambda x: torch.std_mean(x, 1, keepdim=True), x)


@given(cases(dtypes=FLOATS, smallest=1), st.sampled_from([2, 1, 0, math.inf, -math.inf, 3, 0.5]))
def test_vector_norm(case, order):
    x, dims, keepdim = case
    x = x.nan_to_num(1, 2, -2)
    check(lambda x: torch.linalg.vector_norm(x, order, dims or None, keepdim), x, **tolerance(x))


@given(cases())
def test_count_nonzero(case):
    x, dims, _ = case
    check(lambda x: (torch.count_nonzero(x, dims), torch.count_nonzero(x)), x, rtol=0, atol=0)


def test_aminmax():
    check(lambda x: (*torch.aminmax(x), *torch.aminmax(x, dim=1, keepdim=True)), torch.randn(3, 4), rtol=0, atol=0)


def test_a_reduction_of_a_uniform_tensor():
    check(lambda x: (torch.ones(3, 4).sum(1) * x, torch.ones(3, 4).mean()), torch.randn(3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_accumulate_in_float32(dtype):
    graph = check(lambda x: x.sum(1), torch.ones(2, 5000, dtype=dtype), rtol=0, atol=0)
    (nest,) = nests(graph)
    assert nest.reductions[0].operand == Call("cast", (_only_load(nest),), "float32")


def _only_load(nest):
    (operand,) = nest.reductions[0].operand.args
    assert isinstance(operand, Load)
    return operand


def test_extrema_and_positions_share_one_nest():
    graph = check(lambda x: x.max(1), torch.randn(3, 4), rtol=0, atol=0)
    assert [[r.kind for r in nest.reductions] for nest in nests(graph)] == [["max", "argmax"]]
