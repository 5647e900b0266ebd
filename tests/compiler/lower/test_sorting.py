import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optfuse.compiler.lower.sorting import LONGEST_ROW, MOST_COMPARISONS
from tests.compiler.lower.eager import check, lowered, nests
from tests.compiler.lower.tensors import EXACT, FLOATS, INTEGERS, tensors


@given(tensors(rank=(1, 3), smallest=1), st.booleans(), st.data())
def test_stable_sorts(x, descending, data):
    dim = data.draw(st.integers(-x.dim(), x.dim() - 1))
    check(lambda x: torch.sort(x, stable=True, dim=dim, descending=descending), x, **EXACT)


@given(tensors(dtypes=FLOATS + INTEGERS, rank=(1, 3), smallest=1))
def test_sorted_values(x):
    check(lambda x: (x.sort()[0], x.msort(), x.sort(0, descending=True)[0]), x, **EXACT)


def test_topk_of_many_elements_of_a_short_row():
    x = torch.randperm(300).reshape(3, 100)
    check(lambda x: (x.topk(30), x.topk(40, largest=False)), x)
    check(lambda x: x.topk(2, 0), torch.randperm(12).reshape(3, 4))


def test_positions_alone_read_no_values():
    graph, _ = lowered(lambda x: x.argsort(stable=True), torch.randn(3, 20))
    assert [(op.sizes, op.rsizes) for op in nests(graph)] == [((3, 20), (20,))] * 2


def test_long_rows_are_a_library_call():
    check(lambda x: torch.sort(x, stable=True), torch.randn(LONGEST_ROW + 1), library=("aten.sort.stable",))


@pytest.mark.parametrize("rows", [256, 257])
def test_many_rows_are_a_library_call(rows):
    graph, _ = lowered(lambda x: torch.sort(x, stable=True), torch.randn(rows, LONGEST_ROW))
    assert len(nests(graph)) == (3 if rows * LONGEST_ROW**2 <= MOST_COMPARISONS else 0)
