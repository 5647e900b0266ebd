import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optfuse.compiler.ir.interpreter import interpret
from optfuse.compiler.ir.nodes import LibraryCall
from optfuse.compiler.lower.selection import LONGEST_ROW, MOST_ROUNDS
from tests.compiler.lower.eager import check, lowered, nests
from tests.compiler.lower.tensors import EXACT, FLOATS, INTEGERS, tensors


def chosen(function, x, dim):
    """The values and positions that the loops find, after checks that eager has those values, and x has them there."""
    graph, constants = lowered(function, x)
    assert not [op for op in graph.ops if isinstance(op, LibraryCall)]
    values, places = interpret(graph, [x], constants)
    wanted, at = function(x)
    torch.testing.assert_close(values, wanted, equal_nan=True, **EXACT)
    assert (places.dtype, places.shape) == (at.dtype, at.shape)
    assert bool(((places >= 0) & (places < x.shape[dim])).all())
    kept = places if places.dim() == x.dim() else places.unsqueeze(dim)
    torch.testing.assert_close(x.gather(dim, kept).reshape(values.shape), values, equal_nan=True, **EXACT)
    return values, places


@st.composite
def cases(draw):
    """A tensor and one of its dimensions, which is not empty."""
    x = draw(tensors(dtypes=FLOATS + INTEGERS, rank=(1, 3), smallest=1))
    return x, draw(st.integers(-x.dim(), x.dim() - 1))


@given(cases(), st.booleans(), st.data())
def test_topk(case, largest, data):
    x, dim = case
    k = data.draw(st.integers(1, x.shape[dim]))
    _, places = chosen(lambda x: x.topk(k, dim, largest), x, dim)
    assert bool((places.sort(dim)[0].diff(dim=dim) > 0).all()), "a position is taken twice"


@pytest.mark.parametrize("largest", [True, False])
def test_topk_of_extremes_takes_each_position_once(largest):
    inf, nan = torch.inf, torch.nan
    rows = [[-inf, 3, -inf, -inf], [inf, inf, nan, inf], [nan, nan, inf, nan], [nan] * 4, [inf] * 4, [-inf] * 4]
    x = torch.tensor(rows)
    for k in range(1, 5):
        _, places = chosen(lambda x, k=k: x.topk(k, -1, largest), x, -1)
        assert all(len(set(row)) == k for row in places.tolist())
    least = torch.iinfo(torch.int64)
    x = torch.tensor([[least.min, 0, least.max, least.min], [least.max] * 4])
    _, places = chosen(lambda x: x.topk(4, -1, largest), x, -1)
    assert all(len(set(row)) == 4 for row in places.tolist())


@given(cases(), st.data())
def test_kth_value(case, data):
    x, dim = case
    k = data.draw(st.integers(1, x.shape[dim]))
    chosen(lambda x: x.kthvalue(k, dim, keepdim=data.draw(st.just(k % 2 == 0))), x, dim)


@given(cases(), st.booleans())
def test_median(case, keepdim):
    x, dim = case
    chosen(lambda x: x.median(dim, keepdim), x, dim)


def test_kth_value_is_found_from_the_nearer_end():
    assert len(nests(lowered(lambda x: x.kthvalue(99, 1), torch.randn(2, 100))[0])) == 2


def test_topk_is_a_round_for_each_element_and_a_nest_that_collects():
    graph, _ = lowered(lambda x: x.topk(3), torch.randn(4, 16))
    assert [(op.sizes, op.rsizes) for op in nests(graph)] == [((4,), (16,))] * 3 + [((4, 3), ())]


@pytest.mark.parametrize(
    ("row", "k", "library"),
    [(LONGEST_ROW, MOST_ROUNDS, False), (LONGEST_ROW + 1, 1, True), (LONGEST_ROW, MOST_ROUNDS + 1, True)],
)
def test_long_rows_and_many_elements_are_a_library_call(row, k, library):
    x = torch.randperm(2 * row).reshape(2, row)
    check(lambda x: x.topk(k), x, library=("aten.topk.default",) if library else ())
