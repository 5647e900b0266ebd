import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optfuse.compiler.ir.nodes import LibraryCall
from optfuse.compiler.ir.printer import print_graph
from tests.compiler.lower.eager import check, nests
from tests.compiler.lower.tensors import EXACT, FLOATS, shapes, tensors


@st.composite
def cat_cases(draw):
    """Tensors that agree but along one dimension, with different dtypes and layouts, some empty."""
    shape = draw(shapes(rank=(1, 3)))
    dim = draw(st.integers(0, len(shape) - 1))
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.integers(0, 4))
        parts.append(draw(tensors(shape=[*shape[:dim], size, *shape[dim + 1 :]])))
    return parts, dim - draw(st.sampled_from([0, len(shape)]))


@given(cat_cases())
def test_cat(case):
    parts, dim = case
    check(lambda *parts: torch.cat(parts, dim), *parts, **EXACT)


def test_cat_forgives_a_tensor_of_no_elements():
    check(lambda a, b: torch.cat([a, b], 1), torch.empty(0), torch.randn(2, 3), **EXACT)


def test_cat_with_a_uniform_part_needs_no_memory_for_it():
    graph = check(lambda x: torch.cat([torch.zeros(2, 3), x, torch.ones(2, 1)], 1), torch.randn(2, 3), **EXACT)
    assert len(nests(graph)) == 1


@given(tensors(rank=(0, 3)), st.integers(-4, 3), st.integers(1, 3))
def test_stack(x, dim, count):
    dim = max(-x.dim() - 1, min(x.dim(), dim))
    check(lambda x: torch.stack([x] * count, dim), x, **EXACT)


@given(tensors(rank=(1, 3), smallest=1), st.data(), st.sampled_from([0, 1, float("-inf")]))
def test_constant_pad(x, data, value):
    if not x.dtype.is_floating_point:
        value = 1
    pads = []
    for d in reversed(range(x.dim())):
        before = data.draw(st.integers(1 - x.shape[d], 3))
        pads += [before, data.draw(st.integers(1 - x.shape[d] - min(0, before), 3))]
    pads = pads[: 2 * data.draw(st.integers(0, x.dim()))]
    check(lambda x: torch.constant_pad_nd(x, pads, value), x, **EXACT)


@given(tensors(rank=(1, 3), smallest=1), st.data())
def test_slice_scatter(x, data):
    dim = data.draw(st.integers(-x.dim(), x.dim() - 1))
    size = x.shape[dim]
    start, end = data.draw(st.integers(-size, size)), data.draw(st.integers(-size, size + 3))
    step = data.draw(st.integers(1, 3))
    shape = list(x.shape)
    shape[dim] = len(range(*slice(start, end, step).indices(size)))
    source = data.draw(tensors(dtypes=(x.dtype,), shape=shape))
    check(lambda x, s: torch.slice_scatter(x, s, dim, start, end, step), x, source, **EXACT)


@given(tensors(rank=(1, 3), smallest=1), st.data())
def test_select_scatter(x, data):
    dim = data.draw(st.integers(-x.dim(), x.dim() - 1))
    position = data.draw(st.integers(-x.shape[dim], x.shape[dim] - 1))
    source = data.draw(tensors(dtypes=(x.dtype,), shape=x.select(dim, 0).shape))
    check(lambda x, s: torch.select_scatter(x, s, dim, position), x, source, **EXACT)


def test_uniform_sources_are_inlined():
    x = torch.randn(3, 4)
    graph = check(lambda x: torch.slice_scatter(x, torch.ones(3, 2), 1, 0, 4, 2), x, **EXACT)
    assert len(nests(graph)) == 1
    graph = check(lambda x: torch.select_scatter(x, torch.ones(3), 1, -1), x, **EXACT)
    assert len(nests(graph)) == 1


@given(tensors(rank=(2, 4)), st.integers(-6, 6))
def test_triangles(x, diagonal):
    check(lambda x: (x.tril(diagonal), x.triu(diagonal)), x, **EXACT)


@given(tensors(rank=(1, 4)), st.data())
def test_flip(x, data):
    dims = data.draw(st.lists(st.integers(0, x.dim() - 1), unique=True))
    check(lambda x: x.flip(dims), x, **EXACT)


@given(tensors(rank=(1, 3)), st.data())
def test_roll(x, data):
    dims = data.draw(st.lists(st.integers(-x.dim(), x.dim() - 1), min_size=1, max_size=3))
    shifts = [data.draw(st.integers(-7, 7)) for _ in dims]
    check(lambda x: x.roll(shifts, dims), x, **EXACT)


@given(tensors(rank=(1, 3)), st.integers(-7, 7))
def test_roll_of_all_elements(x, shift):
    check(lambda x: x.contiguous().roll(shift), x, **EXACT)


@given(tensors(rank=(0, 3)), st.data())
def test_repeat(x, data):
    extra = data.draw(st.integers(0, 2))
    repeats = [data.draw(st.integers(0 if data.draw(st.integers(0, 5)) == 0 else 1, 3)) for _ in range(x.dim() + extra)]
    check(lambda x: x.repeat(repeats), x, **EXACT)


@given(tensors(rank=(4, 4), smallest=1, dtypes=FLOATS), st.integers(1, 3), st.integers(1, 3))
def test_upsample_nearest(x, high, wide):
    size = (x.shape[2] * high, x.shape[3] * wide)
    check(lambda x: torch.ops.aten.upsample_nearest2d.default(x.contiguous(), size), x, **EXACT)


def test_upsample_by_a_fraction_is_a_library_call():
    target = "aten.upsample_nearest2d.default"
    check(lambda x: torch.ops.aten.upsample_nearest2d.default(x, (5, 7)), torch.randn(1, 2, 3, 4), library=[target])


@pytest.mark.parametrize("pads", [(0, 1, 0, 1), (-1, 2)])
def test_pads_read_no_memory_outside(pads, golden):
    graph = check(lambda x: torch.constant_pad_nd(x, pads, 0.0), torch.randn(2, 3, 4), **EXACT)
    assert not any(isinstance(op, LibraryCall) for op in graph.ops)
    if pads == (0, 1, 0, 1):
        golden(print_graph(graph))
