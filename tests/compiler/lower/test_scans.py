import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optfuse.compiler.lower.scans import LONGEST_ROW, MANY_ROWS
from tests.compiler.lower.eager import check, nests
from tests.compiler.lower.tensors import EXACT, FLOATS, INTEGERS, tensors

#: Half types are scanned in float32, as eager's CPU kernels do.
CLOSE = {torch.bfloat16: (2e-2, 1e-2), torch.float16: (2e-3, 1e-3), torch.float32: (1e-5, 1e-5)}


def tolerance(x):
    rtol, atol = CLOSE.get(x.dtype, (0, 0) if not x.dtype.is_floating_point else (1e-12, 1e-12))
    return {"rtol": rtol, "atol": atol}


@st.composite
def cases(draw, **options):
    """A tensor and one of its dimensions."""
    x = draw(tensors(**options))
    return x, draw(st.integers(-x.dim(), x.dim() - 1)) if x.dim() else draw(st.integers(-1, 0))


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@given(case=cases())
def test_running_sums_and_products(name, case):
    x, dim = case
    check(lambda x: getattr(x, name)(dim), x, **tolerance(x))


@given(cases(dtypes=INTEGERS), st.sampled_from([torch.float32, torch.int32, torch.int64, torch.int8, torch.uint8]))
def test_running_sum_into_another_dtype(case, dtype):
    x, dim = case
    check(lambda x: (x * 50).cumsum(dim, dtype=dtype), x, **EXACT)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@given(case=cases())
def test_running_extrema_and_their_positions(name, case):
    x, dim = case
    check(lambda x: getattr(x, name)(dim), x, **EXACT)


@given(cases(dtypes=FLOATS))
def test_running_logarithm_of_sums(case):
    x, dim = case
    check(lambda x: x.logcumsumexp(dim), x, **tolerance(x))


def test_numbers_and_empty_tensors():
    for x in (torch.tensor(3.0), torch.tensor(7), torch.ones(0), torch.ones(2, 0, 3)):
        check(lambda x: (x.cumsum(0), x.cumprod(-1), x.cummax(0)), x, **EXACT)


def test_the_scanned_dimension_is_the_r_variable_of_one_nest():
    (nest,) = nests(check(lambda x: x.cumsum(1), torch.randn(3, 4, 5)))
    assert (nest.sizes, nest.rsizes, nest.reductions) == ((3, 5), (4,), ())
    assert nest.scan is not None
    assert not nest.pointwise


@pytest.mark.parametrize(
    ("rows", "row", "library"), [(1, LONGEST_ROW, False), (1, LONGEST_ROW + 1, True), (MANY_ROWS, 9000, False)]
)
def test_few_long_rows_are_a_library_call(rows, row, library):
    x = torch.zeros(rows, row, dtype=torch.int64)
    check(lambda x: x.cumsum(1), x, library=("aten.cumsum.default",) if library else ())
