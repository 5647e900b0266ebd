"""Walks, refinements and kernel specs, proven by counting every point of small kernels."""

from __future__ import annotations

import itertools
from math import prod

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from optfuse.compiler.analysis.mixed_radix import Digit, coalesce, cuts, is_chain, is_dense, point_count, refine
from optfuse.compiler.extract.extraction import extract
from optfuse.compiler.extract.solution_kernel import kernel_spec
from optfuse.compiler.ir.buffer_layout import row_major
from optfuse.compiler.ir.kernel_spec import KernelSpec, rdigit, xdigit
from optfuse.compiler.ir.nodes import (
    Buffer,
    Call,
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
from optfuse.problem.cost import default_writes
from optfuse.problem.device_files import load_device
from optfuse.problem.solution import Kernel
from tests.strategies import share

FLOAT = "float32"
ORIGIN = Origin("node", "aten.op.default")


def flat(sizes, strides, variable=ivar) -> sympy.Expr:
    return sympy.Add(*(t * variable(k) for k, t in enumerate(strides) if sizes[k] > 1))


def pointwise(name, shape, reads, out, out_strides=None) -> LoopNest:
    """An op over ``shape`` that reads (buffer, strides) pairs."""
    value = Call("neg", (Load(reads[0][0], flat(shape, reads[0][1]), FLOAT),), FLOAT)
    for buffer, strides in reads[1:]:
        value = Call("add", (value, Load(buffer, flat(shape, strides), FLOAT)), FLOAT)
    strides = out_strides or row_major(shape)
    return LoopNest(name, tuple(shape), (), (), (Store(out, flat(shape, strides), value),), ORIGIN)


def reduction(name, shape, kept, buffer, strides, out) -> LoopNest:
    """Sum of ``buffer`` (shape, strides) over the dimensions that are not kept."""
    inner = [k for k in range(len(shape)) if k not in kept]
    index = sympy.Add(
        *(strides[k] * ivar(j) for j, k in enumerate(kept)), *(strides[k] * rvar(j) for j, k in enumerate(inner))
    )
    sizes = tuple(shape[k] for k in kept)
    return LoopNest(
        name,
        sizes,
        tuple(shape[k] for k in inner),
        (Reduction("sum", Load(buffer, index, FLOAT)),),
        (Store(out, flat(sizes, row_major(sizes)), Result(0, FLOAT)),),
        ORIGIN,
    )


def buffer(name, shape, kind="temporary", strides=None) -> Buffer:
    return Buffer(name, FLOAT, tuple(shape), tuple(strides or row_major(shape)), kind)


def graph(buffers, ops, outputs) -> LoopGraph:
    by_name = {b.name: b for b in buffers}
    return LoopGraph(
        "test",
        tuple(buffers),
        tuple(b.name for b in buffers if b.kind == "input"),
        (),
        tuple(ops),
        tuple(View(o, by_name[o].shape, by_name[o].stride) for o in outputs),
    )


def points(spec: KernelSpec):
    """Every assignment of the digits, and for each member the values of its variables there."""
    xs = [xdigit(k) for k in range(len(spec.space.x))]
    rs = [rdigit(k) for k in range(len(spec.space.r))]
    functions = [sympy.lambdify(xs + rs, [*m.ivars, *m.rvars], "math") for m in spec.members]
    for digits in itertools.product(*(range(s) for s in (*spec.space.x, *spec.space.r))):
        yield digits, [tuple(f(*digits)) for f in functions]


def assert_meets(spec: KernelSpec) -> None:
    """Each member visits each of its points (an outer one: once an x), and registers hold the element asked for."""
    visited: list[set] = [set() for _ in spec.members]
    for _, values in points(spec):
        made: dict[str, int] = {}
        for k, (member, at) in enumerate(zip(spec.members, values, strict=True)):
            nest = member.nest
            names = [ivar(j) for j in range(len(nest.sizes))] + [rvar(j) for j in range(len(nest.rsizes))]
            assert all(0 <= v < s for v, s in zip(at, (*nest.sizes, *nest.rsizes), strict=True))
            visited[k].add(at)
            where = dict(zip(names, at, strict=True))
            for root in [r.operand for r in nest.reductions] + [s.value for s in nest.stores]:
                for load in root_loads(root):
                    if load.buffer in spec.registers:
                        assert made[load.buffer] == load.index.subs(where)
            for store in nest.stores:
                made[store.buffer] = store.index.subs(where)
    for member, seen in zip(spec.members, visited, strict=True):
        assert len(seen) == prod((*member.nest.sizes, *member.nest.rsizes))


def assert_stores_once(spec: KernelSpec, member_name: str) -> None:
    """The points at which a repeated member may store reach each of its points exactly once."""
    k, member = next((k, m) for k, m in enumerate(spec.members) if m.nest.name == member_name)
    names = [*(xdigit(j) for j in range(len(spec.space.x))), *(rdigit(j) for j in range(len(spec.space.r)))]
    where = [names.index(symbol) for symbol in member.once]
    stored = [values[k] for digits, values in points(spec) if all(digits[j] == 0 for j in where)]
    assert len(stored) == len(set(stored)) == prod(member.nest.sizes)


def root_loads(expr):
    stack = [expr]
    while stack:
        top = stack.pop()
        if isinstance(top, Load):
            yield top
        elif isinstance(top, Call):
            stack.extend(top.args)


def only_scheme(extraction, ops):
    """The scheme in which all ops meet and every inside edge is allowed."""
    offered = set.intersection(*({o.scheme for o in extraction.instance.ops[k].offers} for k in ops))
    for edge in extraction.instance.edges:
        if edge.src in ops and edge.dst in ops:
            offered &= set(edge.schemes)
    assert offered, "the ops share no scheme"
    return min(offered, key=lambda s: -extraction.instance.schemes[s].r)


def build_spec(buffers, ops, outputs):
    extraction = extract(graph(buffers, ops, outputs), load_device("h200"))
    together = tuple(range(len(ops)))
    scheme = only_scheme(extraction, together)
    kernel = Kernel(together, scheme, default_writes(extraction.instance, together, scheme))
    return extraction, kernel_spec(extraction, kernel, "kernel")


def test_row_reduction_with_pointwise_around_it():
    shape = (6, 10)
    ops = [
        pointwise("before", shape, [("x", (10, 1))], "y"),
        reduction("sum", shape, [0], "y", (10, 1), "s"),
        pointwise("scale", (6,), [("s", (1,))], "t"),
        pointwise("after", shape, [("y", (10, 1)), ("t", (1, 0))], "z"),
    ]
    buffers = [
        buffer("x", shape, "input"),
        buffer("y", shape),
        buffer("s", (6,)),
        buffer("t", (6,)),
        buffer("z", shape),
    ]
    _, spec = build_spec(buffers, ops, ["z"])
    assert (prod(spec.space.x), prod(spec.space.r)) == (6, 10)
    assert spec.registers == {"y", "s", "t"}
    assert spec.stores == ("z",)
    assert [m.full for m in spec.members] == [True, False, False, True]
    assert_meets(spec)


def test_batch_norm_statistics_walk_channels_outside():
    n, c, hw = 3, 4, 5
    shape, strides = (n, c, hw), (c * hw, hw, 1)
    ops = [
        pointwise("square", shape, [("x", strides)], "y"),
        reduction("sum", shape, [1], "y", strides, "s"),
        pointwise("center", shape, [("x", strides), ("s", (0, 1, 0))], "z"),
    ]
    buffers = [buffer("x", shape, "input"), buffer("y", shape), buffer("s", (c,)), buffer("z", shape)]
    _, spec = build_spec(buffers, ops, ["z"])
    assert spec.space.x == (c,)
    assert spec.space.r == (n, hw)
    assert_meets(spec)


def test_shapes_of_different_rank_share_a_refinement():
    ops = [
        pointwise("heads", (4, 3, 2, 5), [("x", (30, 10, 5, 1))], "y"),
        reduction("sum", (12, 10), [0], "y", (10, 1), "s"),
        pointwise("tail", (2, 6, 10), [("y", (60, 10, 1)), ("s", (6, 1, 0))], "z"),
    ]
    buffers = [
        buffer("x", (120,), "input"), buffer("y", (4, 3, 2, 5)), buffer("s", (12,)), buffer("z", (2, 6, 10)),
    ]  # fmt: skip
    extraction, _ = build_spec(buffers, ops[:2], ["y", "s"])
    assert extraction.instance.schemes[1].x in (12, 120)
    # 12 = 4*3 against 2*6: the cut points 3 and 6 (in units of rows) form a chain, so all three meet
    _, spec = build_spec(buffers, ops, ["z"])
    assert_meets(spec)


@pytest.mark.parametrize("shape", [(6, 10), (8, 8)])
def test_transposed_value_meets_in_a_frame_of_its_own(shape):
    """Also where equal extents hide the transposition: the natural walk never holds both."""
    m, n = shape
    ops = [
        pointwise("before", (m, n), [("x", (n, 1))], "y"),
        pointwise("transposed", (n, m), [("y", (1, n))], "z"),
        pointwise("after", (n, m), [("z", (m, 1))], "w"),
    ]
    buffers = [buffer("x", (m, n), "input"), buffer("y", (m, n)), buffer("z", (n, m)), buffer("w", (n, m))]
    extraction, spec = build_spec(buffers, ops, ["w"])
    instance = extraction.instance
    frames = [extraction.placements.walks[s - 1].frame for s in instance.edges[0].schemes]
    assert sorted(frames) == [1, 2]
    assert spec.registers == {"y", "z"}
    assert_meets(spec)
    inside, outside = (
        {o.scheme: o.writes[0].access for o in instance.ops[k].offers}[instance.edges[0].schemes[0]] for k in (0, 2)
    )
    assert {inside, outside} == {"contiguous", "strided"}


def test_reduction_meets_a_window_partition_of_its_result():
    """Rows of (2*2 windows of 3*3) * channels, normalised row by row and stored window by window."""
    image, windows = (6, 6, 4), (2, 2, 3, 3, 4)
    ops = [
        reduction("sum", image, [0, 1], "x", (24, 4, 1), "s"),
        pointwise("center", image, [("x", (24, 4, 1)), ("s", (6, 1, 0))], "y"),
        pointwise("partition", windows, [("y", (72, 12, 24, 4, 1))], "z"),
    ]
    buffers = [buffer("x", image, "input"), buffer("s", (6, 6)), buffer("y", image), buffer("z", windows)]
    extraction, spec = build_spec(buffers, ops, ["z"])
    assert prod(spec.space.r) == 4
    assert_meets(spec)
    partition = extraction.instance.ops[2]
    assert all(
        o.writes[0].access == "contiguous" for o in partition.offers if extraction.instance.schemes[o.scheme].r == 4
    )


def test_broadcast_value_is_computed_again_where_it_is_used():
    """A per-channel scale inside a pointwise kernel over (N, C, HW), and inside a row kernel over its columns."""
    n, c, hw = 2, 6, 5
    ops = [
        pointwise("scale", (2, 3), [("g", (3, 1))], "s"),
        pointwise("shift", (c,), [("s", (1,))], "t"),
        pointwise("apply", (n, c, hw), [("x", (c * hw, hw, 1)), ("t", (0, 1, 0))], "y"),
    ]
    buffers = [
        buffer("g", (2, 3), "input"), buffer("x", (n, c, hw), "input"), buffer("s", (2, 3)), buffer("t", (c,)),
        buffer("y", (n, c, hw)),
    ]  # fmt: skip
    _, spec = build_spec(buffers, ops, ["y", "t"])
    assert spec.registers == {"s", "t"}
    assert_meets(spec)
    assert_stores_once(spec, "scale")
    assert_stores_once(spec, "shift")


@pytest.mark.parametrize("shape", [(6, 10), (8, 8)])
def test_broadcast_along_rows_of_a_reduction(shape):
    """Also where as many columns as rows hide which of the two the small op runs along."""
    m, n = shape
    ops = [
        pointwise("weight", (n,), [("w", (1,))], "v"),
        reduction("sum", shape, [0], "x", (n, 1), "s"),
        pointwise("scale", shape, [("x", (n, 1)), ("s", (1, 0)), ("v", (0, 1))], "y"),
    ]
    buffers = [
        buffer("w", (n,), "input"), buffer("x", shape, "input"), buffer("v", (n,)), buffer("s", (m,)),
        buffer("y", shape),
    ]  # fmt: skip
    _, spec = build_spec(buffers, ops, ["y"])
    assert [m.full for m in spec.members] == [True, False, True]
    assert_meets(spec)
    assert_stores_once(spec, "weight")


def test_slice_of_a_value_stays_apart():
    ops = [
        pointwise("before", (6, 10), [("x", (10, 1))], "y"),
        pointwise("half", (6, 5), [("y", (10, 1))], "z"),
    ]
    buffers = [buffer("x", (6, 10), "input"), buffer("y", (6, 10)), buffer("z", (6, 5))]
    extraction = extract(graph(buffers, ops, ["z"]), load_device("h200"))
    assert extraction.instance.edges[0].schemes == ()


def test_overwritten_input_shares_a_kernel_only_point_by_point():
    aligned = [
        pointwise("read", (6, 10), [("x", (10, 1))], "y"),
        pointwise("overwrite", (6, 10), [("y", (10, 1))], "x"),
    ]
    shifted = [
        pointwise("read", (10, 6), [("x", (1, 10))], "y"),
        pointwise("overwrite", (6, 10), [("w", (10, 1))], "x"),
    ]
    buffers = [buffer("x", (6, 10), "input"), buffer("w", (6, 10), "input"), buffer("y", (6, 10))]
    safe = extract(graph(buffers, aligned, ["y"]), load_device("h200")).instance
    assert [e.buffer is None for e in safe.edges].count(True) == 1
    assert all(e.schemes for e in safe.edges)
    order = [e for e in extract(graph(buffers, shifted, ["y"]), load_device("h200")).instance.edges if e.buffer is None]
    assert [e.schemes for e in order] == [()]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=share(60), deadline=None, derandomize=True)
def test_any_reduction_meets_its_producer_and_consumer(shape, random):
    """Whatever dimensions are reduced, over whatever memory order, the members meet point by point."""
    order = list(range(len(shape)))
    random.shuffle(order)
    ranked = row_major([shape[k] for k in order])
    strides = tuple(ranked[order.index(k)] for k in range(len(shape)))
    kept = [k for k in range(len(shape)) if random.random() < 0.5]
    memory = sorted(range(len(shape)), key=lambda k: -strides[k])
    kept = [k for k in memory if k in kept]
    sizes = tuple(shape[k] for k in kept)
    steps = dict(zip(kept, row_major(sizes), strict=True))
    ops = [
        pointwise("before", shape, [("x", strides)], "y", strides),
        reduction("sum", shape, kept, "y", strides, "s"),
        pointwise(
            "after", shape, [("y", strides), ("s", tuple(steps.get(k, 0) for k in range(len(shape))))], "z", strides
        ),
    ]
    buffers = [
        buffer("x", shape, "input", strides), buffer("y", shape, strides=strides), buffer("s", sizes),
        buffer("z", shape, strides=strides),
    ]  # fmt: skip
    _, spec = build_spec(buffers, ops, ["z"])
    assert_meets(spec)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
@settings(max_examples=share(100), deadline=None, derandomize=True)
def test_coalesce_and_refine_keep_every_point(sizes):
    digits = [Digit(s, t) for s, t in zip(sizes, row_major(sizes), strict=True)]
    assert is_dense(sizes, row_major(sizes))
    assert point_count(coalesce(digits)) == prod(sizes)
    whole = Digit(prod(sizes), 1)
    parts = refine(whole, cuts(digits)) if prod(sizes) > 1 else ()
    assert point_count(parts) == prod(sizes)
    assert is_chain(cuts(digits))
    covered = sorted(
        sum(d.stride * v for d, v in zip(parts, vs, strict=True))
        for vs in itertools.product(*(range(d.size) for d in parts))
    )
    assert covered == list(range(prod(sizes)))


def test_incompatible_shapes_are_no_chain():
    assert not is_chain(cuts([Digit(2, 6), Digit(6, 1)]) | cuts([Digit(3, 4), Digit(4, 1)]))


@pytest.mark.parametrize("name", ["h200"])
def test_shipped_devices_load(name):
    assert load_device(name).name == name
