import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.compiler.lower.eager import check
from tests.compiler.lower.tensors import EXACT, positions, shapes, tensors

INDEX = (torch.int64, torch.int32)


@given(st.data())
def test_embedding(data):
    table = data.draw(tensors(rank=(2, 2), smallest=1))
    ids = data.draw(positions(table.shape[0], data.draw(shapes(rank=(0, 3))), dtypes=INDEX))
    check(lambda t, i: torch.ops.aten.embedding.default(t, i, 0), table, ids, **EXACT)


@given(st.data())
def test_index_select(data):
    x = data.draw(tensors(rank=(1, 3), smallest=1))
    dim = data.draw(st.integers(-x.dim(), x.dim() - 1))
    taken = data.draw(positions(x.shape[dim], data.draw(shapes(rank=(0, 1))), dtypes=INDEX))
    check(lambda x, i: x.index_select(dim, i), x, taken, **EXACT)


@given(st.data())
def test_gather(data):
    x = data.draw(tensors(rank=(1, 3), smallest=1))
    dim = data.draw(st.integers(-x.dim(), x.dim() - 1))
    shape = [data.draw(st.integers(0, n)) for n in x.shape]
    shape[dim] = data.draw(st.integers(0, 4))
    taken = data.draw(positions(x.shape[dim], shape))
    check(lambda x, i: x.gather(dim, i), x, taken, **EXACT)


@st.composite
def advanced(draw):
    """A tensor, and for each dimension None or positions whose shapes broadcast."""
    x = draw(tensors(rank=(1, 4), smallest=1))
    broadcast = draw(shapes(rank=(0, 2)))
    indices = []
    for size in x.shape[: draw(st.integers(1, x.dim()))]:
        if draw(st.booleans()):
            indices.append(None)
            continue
        # fake tensors get the shape wrong where scalars and vectors index together
        shape = [draw(st.sampled_from([1, n])) for n in broadcast[draw(st.integers(0, max(0, len(broadcast) - 1))) :]]
        indices.append(draw(positions(size, shape, negative=True, dtypes=INDEX)))
    assume(any(i is not None for i in indices))
    return x, indices


@given(advanced())
def test_index(case):
    x, indices = case
    given_indices = [i for i in indices if i is not None]

    def index(x, *tensors):
        rest = iter(tensors)
        out = torch.ops.aten.index.Tensor(x, [None if i is None else next(rest) for i in indices])
        return out.contiguous()  # fake tensors get the strides wrong that eager gives to permuted inputs

    check(index, x, *given_indices, **EXACT)


@given(st.data())
def test_scatter_of_one_position_a_row(data):
    x = data.draw(tensors(rank=(1, 3), smallest=1))
    dim = data.draw(st.integers(-x.dim(), x.dim() - 1))
    rows = list(x.shape)
    rows[dim] = 1
    where = data.draw(positions(x.shape[dim], rows))
    source = data.draw(tensors(dtypes=(x.dtype,), shape=rows))
    check(lambda x, i, s: (x.scatter(dim, i, s), x.scatter(dim, i, 1)), x, where, source, **EXACT)


def test_scatter_of_several_positions_a_row():
    where = torch.tensor([[0, 2], [1, 1]])
    check(lambda x, i: x.scatter(1, i, 1.0), torch.zeros(2, 3), where, **EXACT)
    check(lambda x, i, s: x.scatter(-1, i, s), torch.zeros(2, 3), where[:, :1], torch.ones(2, 3), **EXACT)


def test_one_hot_gradient_of_a_loss():
    """What the backward of nll_loss does: -1 at each target, scaled."""
    where = torch.tensor([[0], [2], [1]])

    def gradient(g, i):
        return torch.zeros(3, 4).scatter(1, i, -1.0) * g

    check(gradient, torch.randn(3, 1), where, **EXACT)
