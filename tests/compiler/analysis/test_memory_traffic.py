"""Places: which reads and writes of a walk meet each element at one point only, the same for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import sympy

from optfuse.compiler.analysis.edge_legality import ONE_PASS_POINTS
from optfuse.compiler.analysis.iteration_orders import Walk
from optfuse.compiler.analysis.memory_traffic import COLUMN_TILE, scheme_of
from optfuse.compiler.analysis.mixed_radix import Digit
from optfuse.compiler.extract.extraction import extract
from optfuse.compiler.ir.buffer_layout import row_major
from optfuse.compiler.ir.nodes import Buffer, Call, Const, Guard, Load, LoopNest, Store, ivar, tvar
from optfuse.problem.device_files import load_device
from optfuse.problem.instance import Instance
from tests.compiler.extract.test_kernel_space import FLOAT, ORIGIN, buffer, flat, graph, pointwise, reduction

ROWS, COLUMNS = 6, 10
SHAPE = (ROWS, COLUMNS)


def instance_of(buffers: Sequence[Buffer], ops: Sequence[LoopNest], *outputs: str) -> Instance:
    return extract(graph(buffers, ops, outputs), load_device("h200")).instance


def places(instance: Instance, op: int, r: int) -> tuple[dict[str, set[int]], dict[str, int]]:
    """The places of an op's reads and of its writes, by buffer, in its one scheme with ``r`` inner points."""
    (offer,) = [offer for offer in instance.ops[op].offers if instance.schemes[offer.scheme].r == r]
    reads: dict[str, set[int]] = {}
    for read in offer.reads:
        reads.setdefault(instance.buffers[read.buffer].name, set()).add(read.place)
    return reads, {instance.buffers[write.buffer].name: write.place for write in offer.writes}


def one_op(op: LoopNest, *buffers: Buffer) -> tuple[dict[str, set[int]], dict[str, int]]:
    """The places of an op on its own that writes z."""
    return places(instance_of(buffers, [op], "z"), 0, 1)


def test_a_chain_of_aligned_ops_has_one_place() -> None:
    ops = [
        pointwise("first", SHAPE, [("x", (COLUMNS, 1))], "y"),
        pointwise("second", (ROWS * COLUMNS,), [("y", (1,))], "z"),
    ]
    instance = instance_of([buffer("x", SHAPE, "input"), buffer("y", SHAPE), buffer("z", (60,))], ops, "z")
    (reads, writes), (later_reads, later_writes) = (places(instance, op, 1) for op in (0, 1))
    place = writes["y"]
    assert place
    assert reads == {"x": {place}}
    assert later_reads == {"y": {place}}
    assert later_writes == {"z": place}


def test_a_transposed_read_has_another_place_than_the_write() -> None:
    op = pointwise("turn", (ROWS, COLUMNS), [("x", (1, ROWS))], "z")
    reads, writes = one_op(op, buffer("x", (COLUMNS, ROWS), "input"), buffer("z", SHAPE))
    assert reads["x"] != {writes["z"]}
    assert writes["z"]


@pytest.mark.parametrize("strides", [(0, 1), (1, 0)])
def test_a_broadcast_read_has_no_place(strides: tuple[int, int]) -> None:
    op = pointwise("spread", SHAPE, [("x", (COLUMNS, 1)), ("b", strides)], "z")
    small = buffer("b", (COLUMNS if strides[1] else ROWS,), "input")
    reads, writes = one_op(op, buffer("x", SHAPE, "input"), small, buffer("z", SHAPE))
    assert reads == {"x": {writes["z"]}, "b": {0}}


def loading(load: Load) -> LoopNest:
    """z = -load, over all points."""
    store = Store("z", flat(SHAPE, row_major(SHAPE)), Call("neg", (load,), FLOAT))
    return LoopNest("op", SHAPE, (), (), (store,), ORIGIN)


def test_a_gathered_read_has_no_place() -> None:
    chosen = Load("ids", ivar(0), "int64")
    row = Load("x", COLUMNS * tvar(0) + ivar(1), FLOAT, indirect=(chosen,))
    ids = Buffer("ids", "int64", (ROWS,), (1,), "input")
    reads, writes = one_op(loading(row), buffer("x", SHAPE, "input"), ids, buffer("z", SHAPE))
    assert reads["x"] == {0}
    assert writes["z"]


def test_a_guarded_read_has_no_place() -> None:
    index = flat(SHAPE, row_major(SHAPE))
    padded = Load("x", index, FLOAT, (Guard(ivar(0), sympy.Integer(1), sympy.Integer(ROWS)),), Const(0.0, FLOAT))
    reads, _ = one_op(loading(padded), buffer("x", SHAPE, "input"), buffer("z", SHAPE))
    assert reads["x"] == {0}


def test_a_shifted_read_has_another_place() -> None:
    read = Load("x", flat(SHAPE, row_major(SHAPE)) + COLUMNS, FLOAT)
    reads, writes = one_op(loading(read), buffer("x", (ROWS + 1, COLUMNS), "input"), buffer("z", SHAPE))
    assert reads["x"] not in ({0}, {writes["z"]})


def test_elements_of_another_size_have_another_place() -> None:
    value = Call("cast", (Load("x", flat(SHAPE, row_major(SHAPE)), "bfloat16"),), FLOAT)
    op = LoopNest("op", SHAPE, (), (), (Store("z", flat(SHAPE, row_major(SHAPE)), value),), ORIGIN)
    x = Buffer("x", "bfloat16", SHAPE, row_major(SHAPE), "input")
    reads, writes = one_op(op, x, buffer("z", SHAPE))
    assert reads["x"] not in ({0}, {writes["z"]})


@pytest.mark.parametrize(("columns", "held"), [(COLUMNS, True), (ONE_PASS_POINTS, True), (ONE_PASS_POINTS + 1, False)])
def test_rows_have_places_where_they_are_walked_once(columns: int, held: bool) -> None:
    """The reduction reads and the op after it writes at one place, unless the row could be read a second time."""
    shape = (ROWS, columns)
    ops = [
        reduction("sum", shape, [0], "x", (columns, 1), "s"),
        pointwise("center", shape, [("x", (columns, 1)), ("s", (1, 0))], "z"),
    ]
    instance = instance_of([buffer("x", shape, "input"), buffer("s", (ROWS,)), buffer("z", shape)], ops, "z")
    (summed, sums), (centered, written) = (places(instance, op, columns) for op in (0, 1))
    assert sums == {"s": 0}
    assert centered["s"] == {0}
    assert summed["x"] == centered["x"] == {written["z"]}
    assert bool(written["z"]) == held


def test_equal_addresses_of_different_walks_are_different_places() -> None:
    ops = [
        reduction("sum", SHAPE, [0], "x", (COLUMNS, 1), "s"),
        pointwise("center", SHAPE, [("x", (COLUMNS, 1)), ("s", (1, 0))], "z"),
    ]
    instance = instance_of([buffer("x", SHAPE, "input"), buffer("s", (ROWS,)), buffer("z", SHAPE)], ops, "z")
    assert places(instance, 1, 1)[1]["z"] != places(instance, 1, COLUMNS)[1]["z"]


def test_a_reduction_in_a_frame_counts_as_columns() -> None:
    """What a kernel of a frame touches may run along x: a tile then has some of few columns, not one row."""
    digits = (Digit(200, 50_000),), (Digit(50_000, 1),)
    natural, framed = (scheme_of(Walk(*digits, frame)) for frame in (0, 1))
    assert natural.parallel == 200
    assert framed.parallel == 200 // COLUMN_TILE
    assert scheme_of(Walk((Digit(200, 1),), (Digit(50_000, 200),))).parallel == framed.parallel
    assert scheme_of(Walk((Digit(200, 1),), (), 1)) == replace(
        scheme_of(Walk((Digit(200, 1),))), name="x[200:1] frame 1"
    )
