"""Split reductions compute what whole ones do, chunk by chunk, in the semantic oracle."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optfuse.compiler.ir.buffer_layout import row_major
from optfuse.compiler.ir.interpreter import interpret
from optfuse.compiler.ir.nodes import (
    Buffer,
    Call,
    Const,
    Load,
    LoopGraph,
    LoopNest,
    Origin,
    Reduction,
    Result,
    Store,
    View,
    ivar,
    rvar,
)
from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.compiler.ir.sizes import Size
from optfuse.compiler.ir.verify_graph import verify
from optfuse.compiler.simplify.split_reductions import Chunks, period, plan_chunks, split, split_reductions
from optfuse.problem.device_files import load_device
from tests.strategies import share

ORIGIN = Origin("node", "aten.sum.dim_IntList")


def reduction(shape, kept, kind, dtype="float32") -> LoopNest:
    """Reduce x (row-major, ``shape``) over the dimensions that are not kept, with every result stored."""
    strides = row_major(shape)
    inner = [k for k in range(len(shape)) if k not in kept]
    index = sympy.Add(
        *(strides[k] * ivar(j) for j, k in enumerate(kept)), *(strides[k] * rvar(j) for j, k in enumerate(inner))
    )
    sizes = tuple(shape[k] for k in kept)
    out = sympy.Add(*(t * ivar(k) for k, t in enumerate(row_major(sizes))))
    results = 3 if kind == "welford" else 1
    scale = Call("add", (Result(0, dtype), Const(1.0, dtype)), dtype) if dtype == "float32" else Result(0, dtype)
    values = [scale, *(Result(k, dtype) for k in range(1, results))]
    return LoopNest(
        "fold",
        sizes,
        tuple(shape[k] for k in inner),
        (Reduction(kind, Load("x", index, dtype)),),
        tuple(Store(f"y{k}", out, value) for k, value in enumerate(values)),
        ORIGIN,
    )


def graph(nest, shape, dtype="float32") -> LoopGraph:
    outs = [Buffer(s.buffer, dtype, nest.sizes, row_major(nest.sizes)) for s in nest.stores]
    return LoopGraph(
        "test",
        (Buffer("x", dtype, tuple(shape), row_major(shape), "input"), *outs),
        ("x",),
        (),
        (nest,),
        tuple(View(b.name, b.shape, b.stride) for b in outs),
    )


def with_split(whole: LoopGraph, chunks: Chunks) -> LoopGraph:
    nest = whole.ops[0]
    kept = 2 if nest.reductions[0].kind == "welford" else 1
    first, second, partials = split(nest, chunks, [f"p{k}" for k in range(kept)], "cpu")
    return replace(whole, buffers=(*whole.buffers, *partials), ops=(first, second))


def single(name: str, sizes: tuple[int, ...], index: sympy.Expr, read: str) -> LoopNest:
    """One load for each point, stored in their order."""
    point = sympy.Add(*(step * ivar(k) for k, step in enumerate(row_major(sizes))))
    return LoopNest(name, sizes, (), (), (Store(name, point, Load(read, index, "float32")),), ORIGIN)


@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 5, 6, 7]), min_size=1, max_size=4),
    st.sampled_from(["sum", "prod", "max", "min", "any", "all", "welford"]),
    st.randoms(use_true_random=False),
)
@settings(max_examples=share(60), derandomize=True, deadline=None)
def test_chunks_fold_to_the_whole(shape, kind, random):
    kept = [k for k in range(len(shape)) if random.random() < 0.4]
    rsizes = [shape[k] for k in range(len(shape)) if k not in kept]
    if not rsizes:
        return
    whole_dims = random.randrange(len(rsizes) + 1)
    divisors = (
        [d for d in range(2, rsizes[whole_dims] + 1) if rsizes[whole_dims] % d == 0] if whole_dims < len(rsizes) else []
    )
    chunks = Chunks(whole_dims, random.choice(divisors) if divisors else 0)
    if whole_dims < len(rsizes) and kind != "welford" and random.random() < 0.5:  # the last is shorter than the others
        length = random.randrange(1, rsizes[whole_dims] + 1)
        chunks = Chunks(whole_dims, -(-rsizes[whole_dims] // length), length)
    if not chunks.sizes(rsizes) or not chunks.inside(rsizes):
        return  # a stage without points to fold
    dtype = "bool" if kind in ("any", "all") else "float32"
    nest = reduction(shape, kept, kind, dtype)
    one = graph(nest, shape, dtype)
    two = with_split(one, chunks)
    verify(two)
    x = torch.rand(shape, generator=torch.Generator().manual_seed(random.randrange(1000)))
    x = x > 0.5 if dtype == "bool" else x + 0.5
    for a, b in zip(interpret(one, [x]), interpret(two, [x]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        (64 * 197, Chunks(0, 64)),
        (2 * 6301, Chunks(0, 88, 144)),
        (197 * 64 * Size.symbol("s", Decisions({"s": 1}, {"s": (2, 100)})), Chunks(0, 64)),
        (197 * Size.symbol("s", Decisions({"s": 64}, {"s": (2, 100)})), Chunks(0, 197)),
    ],
    ids=["a divisor", "none", "of a size", "more than wanted"],
)
def test_chunks_are_equal_where_about_as_many_are_as_are_wanted(rows: int, parts: Chunks) -> None:
    nest = reduction((rows, 768), [1], "sum")
    buffers = {"x": Buffer("x", "float32", (rows, 768), (768, 1))} | {"y0": Buffer("y0", "float32", (768,), (1,))}
    assert plan_chunks(nest, buffers, load_device("h200")) == parts


def test_chunks_are_images_where_what_is_read_is_cut_from_larger_ones() -> None:
    """So their loops may be one; the number of images changes."""
    images = Size.symbol("s", Decisions({"s": 128}, {"s": (2, 1000)}))
    cut = single("cut", (images, 14, 14 * 576), 129600 * ivar(0) + 8640 * ivar(1) + ivar(2), "images")
    scaled = single("scaled", (images * 196 * 576,), ivar(0), "cut")
    by_rows = single("by_rows", (images * 196, 576), 576 * ivar(0) + ivar(1), "scaled")
    of_rows = single("of_rows", (images * 196, 576), ivar(0), "scaled")
    periods = {"images": 1}
    for nest in (cut, scaled, by_rows, of_rows):
        periods[nest.name] = period(nest, periods)
    assert periods == {"images": 1, "cut": 112896, "scaled": 112896, "by_rows": 112896, "of_rows": 1}
    nest = reduction((images * 196, 576), [1], "sum")
    buffers = {name: Buffer(name, "float32", (images * 196, 576), (576, 1)) for name in ("x", "y0")}
    assert plan_chunks(nest, buffers, load_device("h200"), {"x": 112896}) == Chunks(0, images)
    assert plan_chunks(nest, buffers, load_device("h200"), {"x": 1}) == Chunks(0, 98)


@pytest.mark.parametrize(
    ("shape", "kept", "starved"),
    [
        ((8192, 768), [1], True),  # the bias gradient of a linear layer
        ((64, 64, 56, 56), [1], True),  # batch-norm statistics
        ((8192, 768), [0], False),  # a row reduction has a program a row
        ((8, 1000), [0], False),  # few rows, but nothing to gain
        ((8191, 768), [1], True),  # a prime number of rows: the last chunk is shorter
    ],
)
def test_only_starved_reductions_are_split(shape, kept, starved):
    whole = graph(reduction(shape, kept, "sum"), shape)
    buffers = {b.name: b for b in whole.buffers}
    device = load_device("h200")
    assert (plan_chunks(whole.ops[0], buffers, device) is not None) == starved
    after = split_reductions(whole, device)
    verify(after)
    assert len(after.ops) == (2 if starved else 1)
    if starved:
        first, second = after.ops
        assert 0 <= prod((*first.sizes, *first.rsizes)) - prod(shape) < prod((*first.rsizes, *second.sizes))
        assert second.name == "fold"
        assert second.stores[0].buffer == "y0"


@pytest.mark.parametrize(
    ("pixels", "few", "is_split"),
    [(5000, 4, True), (1000, 4, True), (1000, 8, False), (5000, 32, True), (5000, 64, False)],
    ids=["long", "few bytes", "held", "half a line", "a line"],
)
def test_sums_of_few_neighbours_are_sums_of_each_first(pixels: int, few: int, is_split: bool) -> None:
    """A group norm's moments with channels last: the next group's channels lie beside those of a group."""
    images, groups = 512, 16
    shape = (images, pixels, groups, few)
    nest = reduction(shape, [0, 2], "welford", "bfloat16")
    whole = graph(nest, shape, "bfloat16")
    ops = split_reductions(whole, load_device("h200")).ops
    assert [op.name for op in ops] == (["fold_partial", "fold"] if is_split else ["fold"])
    if is_split:
        assert ops[0].sizes == (few, images, groups)
        assert ops[0].rsizes == (pixels,)


def test_sums_of_few_neighbours_stay_what_they_are() -> None:
    shape = (2, 4200, 3, 4)
    nest = reduction(shape, [0, 2], "welford")
    one = graph(nest, shape)
    two = split_reductions(one, load_device("h200"))
    assert two.ops[0].sizes[0] == 4
    verify(two)
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0)) + 0.5
    for a, b in zip(interpret(one, [x]), interpret(two, [x]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_position_among_neighbours_is_not_split_and_keeps_its_order() -> None:
    """The first of equal elements is asked for, in the order of the dimensions."""
    nest = reduction((512, 5000, 16, 4), [0, 2], "argmax")
    assert split_reductions(graph(nest, (512, 5000, 16, 4)), load_device("h200")).ops == (nest,)
