"""Updates at positions that tensors hold, in place and not, against eager."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from optfuse.compiler.ir.interpreter import interpret
from tests.compiler.lower.eager import check, lowered, nests
from tests.compiler.lower.tensors import EXACT, FLOATS, INTEGERS, positions, tensors
from tests.compiler.lower.test_gathers import advanced

ADDED = (torch.float32, torch.float64, torch.int32, torch.int64)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def in_place(function, x, *rest, library=(), **tolerance):
    """Assert that loops update ``x`` as eager does, and that a value computed before and one after are right."""

    def around(x, *rest):
        before = x + 1
        function(x, *rest)
        return before, x * 2

    graph, constants = lowered(around, x.clone(), *rest)
    assert [op.target for op in graph.ops if op not in nests(graph)] == list(library)
    mine, theirs = x.clone(), x.clone()
    got = interpret(graph, [mine, *rest], constants)
    for actual, wanted in zip((mine, *got), (theirs, *around(theirs, *rest)), strict=True):
        torch.testing.assert_close(actual, wanted, equal_nan=True, **tolerance)


@st.composite
def slices(draw, dtypes, distinct):
    """A tensor, a dimension, positions along it, and that many slices."""
    x = draw(tensors(dtypes=dtypes, rank=(1, 3), smallest=1))
    dim = draw(st.integers(-x.dim(), x.dim() - 1))
    count = draw(st.integers(0, x.shape[dim] if distinct else 7))
    taken = draw(positions(x.shape[dim], (count,), dtypes=INTEGERS[:2]))
    if distinct:
        order = torch.tensor(draw(st.permutations(range(x.shape[dim]))), dtype=taken.dtype)
        taken = order[:count]
    shape = list(x.shape)
    shape[dim] = count
    return x, dim, taken, draw(tensors(dtypes=(x.dtype,), shape=shape))


@given(slices(FLOATS + INTEGERS, True))
def test_index_copy(case):
    x, dim, taken, source = case
    taken = taken.long()
    check(lambda x, i, s: x.index_copy(dim, i, s), x, taken, source, **EXACT)
    in_place(lambda x, i, s: x.index_copy_(dim, i, s), x, taken, source, **EXACT)


@given(slices(ADDED, False), st.sampled_from([1, 3]))
def test_index_add(case, alpha):
    x, dim, taken, source = case
    check(lambda x, i, s: x.index_add(dim, i, s, alpha=alpha), x, taken, source, **CLOSE)
    in_place(lambda x, i, s: x.index_add_(dim, i, s, alpha=alpha), x, taken, source, **CLOSE)


@given(st.data())
def test_index_put(data):
    x, indices = data.draw(advanced())
    accumulate = data.draw(st.booleans())
    assume(not accumulate or x.dtype in ADDED)
    taken = [i for i in indices if i is not None]

    def put(x, v, *tensors, name):
        rest = iter(tensors)
        places = [None if i is None else next(rest) for i in indices]
        return getattr(torch.ops.aten, name).default(x, places, v, accumulate)

    read = torch.ops.aten.index.Tensor(x, [None if i is None else i.long() for i in indices])
    shape = [data.draw(st.sampled_from([1, n])) if n != 0 else n for n in read.shape]
    values = data.draw(tensors(dtypes=(x.dtype,), shape=shape))
    # which of several values at one place stays is not defined, unless they are equal
    values = values if accumulate else torch.full_like(values, 2)
    check(lambda *a: put(*a, name="index_put"), x, values, *taken, **CLOSE)
    in_place(lambda *a: put(*a, name="index_put_"), x, values, *taken, **CLOSE)


@given(st.data())
def test_scatters(data):
    x = data.draw(tensors(dtypes=ADDED, rank=(1, 3), smallest=1))
    dim = data.draw(st.integers(-x.dim(), x.dim() - 1))
    shape = [data.draw(st.integers(0, n)) for n in x.shape]
    shape[dim] = data.draw(st.integers(0, 7))
    larger = [n + data.draw(st.integers(0, 2)) for n in shape]
    taken, source = data.draw(positions(x.shape[dim], shape)), data.draw(tensors(dtypes=(x.dtype,), shape=larger))
    check(lambda x, i, s: x.scatter_add(dim, i, s), x, taken, source, **CLOSE)
    in_place(lambda x, i, s: x.scatter_add_(dim, i, s), x, taken, source, **CLOSE)
    in_place(lambda x, i: x.scatter_(dim, i, 3), x, taken, **EXACT)
    check(lambda x, i: x.scatter(dim, i, 3), x, taken, **EXACT)
    in_place(lambda x, i, s: x.scatter_(dim, i, s), x, taken, torch.full_like(source, 2), **EXACT)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_half_types_are_rounded_once(dtype):
    i, s = torch.tensor([2, 1, 2, 2, 0, 2, 2, 1]), torch.randn(8, 3).to(dtype)
    functions = [
        lambda i, s: s.new_zeros(4, 3).index_add(0, i, s, alpha=2),
        lambda i, s: s.new_ones(4, 3).scatter_add(0, i[:, None].expand(-1, 3), s),
        lambda i, s: s.new_zeros(4, 3).index_put((i - 4,), s, accumulate=True),
    ]
    for function in functions:
        graph, constants = lowered(function, i, s)
        assert len(nests(graph)) == len(graph.ops)
        (got,) = interpret(graph, [i, s], constants)
        torch.testing.assert_close(got, function(i, s.double()).to(dtype))


def test_few_terms_of_a_half_type_stay_with_the_library():
    i, s = torch.tensor([2, 1]), torch.randn(2, 3).bfloat16()
    check(lambda i, s: s.new_zeros(4, 3).index_add(0, i, s), i, s, library=["aten.index_add.default"])


def test_where_positions_meet_one_of_the_values_stays():
    x, i, s = torch.zeros(4, 3), torch.tensor([2, 2, 0]), torch.arange(9.0).view(3, 3)
    graph, constants = lowered(lambda x, i, s: x.index_copy(0, i, s), x, i, s)
    (got,) = interpret(graph, [x, i, s], constants)
    assert all(got[2, k] in s[:2, k] for k in range(3))
    assert torch.equal(got[[0, 1, 3]], torch.stack([s[2], x[1], x[3]]))


def test_an_empty_index_changes_nothing():
    nothing = torch.zeros(0, dtype=torch.int64)
    in_place(lambda x, i, s: x.index_copy_(0, i, s), torch.randn(4, 3), nothing, torch.zeros(0, 3), **EXACT)


@pytest.mark.parametrize(
    ("function", "inputs", "call"),
    [
        (
            lambda x, m: x.index_put_((m,), x.new_ones(())),
            (torch.randn(5, 3), torch.tensor([1, 0, 1, 1, 0]).bool()),
            "index_put_.default",
        ),
        (
            lambda x, i, s: x.index_add_(0, i, s),
            (torch.randn(5, 3).bfloat16(), torch.tensor([1, 1]), torch.randn(2, 3).bfloat16()),
            "index_add_.default",
        ),
        (
            lambda x, i, s: x.index_add_(0, i, s),
            (torch.randn(()), torch.tensor(0), torch.randn(())),
            "index_add_.default",
        ),
    ],
    ids=["mask", "half", "scalar"],
)
def test_what_stays_with_the_library(function, inputs, call):
    in_place(function, *inputs, library=(f"aten.{call}",), **EXACT)


def test_a_deterministic_torch_keeps_the_library():
    torch.use_deterministic_algorithms(True)
    try:
        check(
            lambda x, i, s: x.index_add(0, i, s),
            *(torch.randn(5, 3), torch.tensor([1, 1]), torch.randn(2, 3)),
            library=["aten.index_add.default"],
        )
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("few", [1, 3])
def test_a_scatter_at_few_positions_of_each_row_is_one_pointwise_nest(few):
    x, source = torch.randn(4, 6, 5), torch.randn(4, few, 5)
    taken = torch.rand(4, 6, 5).argsort(1)[:, :few]
    for function in (lambda x, i, s: x.scatter(1, i, s), lambda x, i, _: x.scatter(1, i, 2.5)):
        (nest,) = nests(check(function, x, taken, source, **EXACT))
        assert not nest.stores[0].indirect
