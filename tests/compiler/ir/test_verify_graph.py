from dataclasses import replace

import pytest
import sympy
from hypothesis import given

from optfuse.compiler.ir.nodes import (
    Call,
    Const,
    Guard,
    Iota,
    LibraryCall,
    Load,
    LoopGraph,
    Origin,
    Reduction,
    Result,
    Scan,
    Store,
    View,
)
from optfuse.compiler.ir.verify_graph import verify
from optfuse.errors import InvalidGraphError
from tests.compiler.ir.graphs import (
    F32,
    buffer,
    gather_graph,
    graph,
    i0,
    i1,
    load,
    loop_graphs,
    nest,
    r0,
    scan_graph,
    softmax_graph,
    t0,
    update_graph,
    whole,
)

X = buffer("x", 4, 6, kind="input")
H = buffer("h", 4, 6, dtype="bfloat16", kind="input")
N = buffer("n", 4, dtype="int64", kind="input")
B = buffer("b", 4, 6, dtype="bool", kind="input")
C = buffer("c", 4, 6, kind="constant")
Y = buffer("y", 4, 6)
R = buffer("r", 4)
FLAT = 6 * i0 + i1


def of(value, *, target=Y, index=FLAT, sizes=(4, 6), **rest) -> LoopGraph:
    """A graph of one nest that stores ``value``."""
    return graph((X, H, N, C, Y, R), [nest("op", sizes, Store(target.name, index, value), **rest)], ())


def refused(g: LoopGraph, fault: str) -> None:
    with pytest.raises(InvalidGraphError, match=fault):
        verify(g)


@given(loop_graphs())
def test_valid_graphs_pass(g):
    verify(g)


@pytest.mark.parametrize("g", [softmax_graph(), gather_graph(), scan_graph()], ids=["softmax", "gather", "scan"])
def test_examples_pass(g):
    verify(g)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (Load("q", FLAT, F32), "op: unknown buffer q"),
        (load(R, i0), "op: buffer r is used before it is defined"),
        (Load("x", FLAT, "float64"), "loads float64 from x, which is float32"),
        (Load("x", 6 * i0 + r0, F32), "uses r0, which is no variable here"),
        (Load("x", 6 * i0 + t0, F32), "uses t0, which is no variable here"),
        (load(X, FLAT + 1), r"reaches 1\.\.24 of x, which has 24 elements"),
        (load(X, FLAT - 1), r"reaches -1\.\.22 of x"),
        (Load("x", FLAT + 6, F32, (Guard(i0, 0, 4),), Const(0.0, F32)), r"reaches 6\.\.29 of x"),
        (Load("x", FLAT, F32, (Guard(i0, 0, 2),)), "guards without other"),
        (Load("x", FLAT, F32, (Guard(i0, 0, 2),), Const(0.0, "float64")), "yields float64 when guarded"),
        (Load("x", t0, F32, indirect=(load(X, FLAT),)), "indexed by a value of float32"),
        (Call("add", (load(X, FLAT), load(N, i0)), F32), "add of different dtypes"),
        (Call("add", (load(H, FLAT), load(H, FLAT)), "bfloat16"), "a narrow type is not computed with"),
        (Call("neg", (Const(1.0, "float8_e5m2"),), "float8_e5m2"), "a narrow type is not computed with"),
        (Const(-1, "uint16"), "the constant -1 is no uint16"),
        (Const(128, "int8"), "the constant 128 is no int8"),
        (Call("neg", (Const(True, "bool"),), "bool"), "neg of bool"),
        (Call("lt", (Const(True, "bool"), Const(True, "bool")), "bool"), "lt of bool"),
        (Call("bitwise_and", (load(X, FLAT), load(X, FLAT)), F32), "bitwise_and of float32"),
        (Call("exp", (Const(1, "int64"),), "int64"), "exp of int64"),
        (Call("lt", (load(X, FLAT), load(X, FLAT)), F32), "is bool, not float32"),
        (Call("where", (load(X, FLAT), load(X, FLAT), load(X, FLAT)), F32), "condition of a where is float32"),
        (Call("rand", (Const(1, "int64"), load(X, FLAT)), F32), "seed and offset are int64"),
        (Call("frobnicate", (load(X, FLAT),), F32), "unknown function frobnicate"),
        (Call("add", (load(X, FLAT),), F32), "add of 1 operands; it takes 2"),
        (Iota(i0, "bool"), "an index value in bool"),
        (Const(0, "complex64"), "complex64 is no dtype"),
        (Const(1, "int64"), "stores int64 to y, which is float32"),
        (Result(0, F32), "result 0 of 0"),
    ],
)
def test_faulty_values(value, fault):
    refused(of(value), fault)


def test_guards_narrow_what_an_index_reaches():
    inside = Load("x", FLAT + 6, F32, (Guard(i0 + 1, 0, 4),), Const(0.0, F32))
    verify(of(inside))
    mirrored = Load("x", 6 * (2 - i0) + i1, F32, (Guard(2 - i0, 0, 4),), Const(0.0, F32))
    verify(of(mirrored))
    verify(of(Load("x", 6 * t0 + i1, F32, indirect=(load(N, i0),))))


@pytest.mark.parametrize(
    ("g", "fault"),
    [
        (of(load(X, FLAT), index=FLAT + 1), r"reaches 1\.\.24 of y"),
        (of(load(X, FLAT), index=6 * i0), "two points store to the same element of y"),
        (of(load(X, FLAT), index=5 * i0 + i1), "two points store to the same element of y"),
        (of(load(X, FLAT), target=C), "stores to the constant c"),
        (of(load(X, i0), index=i0, sizes=(4,)), "4 points are stored to y, which has 24 elements"),
        (of(load(X, FLAT), sizes=(4, 0)), "a size below 1"),
        (of(load(X, i0), target=R, index=i0, sizes=(4,), rsizes=(6,)), "0 reductions over 1 reduced dimensions"),
        (of(load(X, 23 - FLAT), target=X), "loads of x race with the store"),
    ],
)
def test_faulty_nests(g, fault):
    refused(g, fault)


@pytest.mark.parametrize(
    ("reduction", "result", "fault"),
    [
        (Reduction("sum", load(H, 6 * i0 + r0)), Result(0, F32), "a sum reduction of bfloat16"),
        (Reduction("any", load(X, 6 * i0 + r0)), Result(0, "bool"), "a any reduction of float32"),
        (Reduction("max", Const(True, "bool")), Result(0, "bool"), "a max reduction of bool"),
        (Reduction("welford", load(N, i0)), Result(0, "int64"), "a welford reduction of int64"),
        (Reduction("argmax", load(X, 6 * i0 + r0)), Result(0, F32), "result 0 is int64, not float32"),
        (Reduction("welford", load(X, 6 * i0 + r0)), Result(3, F32), "result 3 of 3"),
        (Reduction("sum", Result(0, F32)), Result(0, F32), "operand uses a result"),
        (Reduction("sum", load(X, 6 * i0 + r0)), load(X, 6 * i0 + r0), "uses r0, which is no variable here"),
        (Reduction("median", load(X, 6 * i0 + r0)), Result(0, F32), "unknown reduction median"),
    ],
)
def test_faulty_reductions(reduction, result, fault):
    refused(of(result, target=R, index=i0, sizes=(4,), rsizes=(6,), reductions=(reduction,)), fault)


SUM = Call("add", (Result(0, F32), Result(1, F32)), F32)
ROW = load(X, 6 * i0 + r0)


@pytest.mark.parametrize(
    ("scan", "fault"),
    [
        (Scan((load(H, 6 * i0 + r0),), (SUM,)), "a scan of bfloat16"),
        (Scan((), ()), "a scan of 0 operands combines 0"),
        (Scan((ROW, ROW), (SUM,)), "a scan of 2 operands combines 1"),
        (Scan((ROW,), (Call("cast", (SUM,), "float64"),)), "a scan of float32 combines to float64"),
        (Scan((ROW,), (Result(2, F32),)), "combines result 2 as float32"),
        (Scan((ROW,), (Call("add", (Result(0, F32), ROW), F32),)), "combines results alone"),
        (Scan((Result(0, F32),), (SUM,)), "operand uses a result"),
        (Scan((load(X, 6 * i1 + r0),), (SUM,)), "uses i1, which is no variable here"),
    ],
)
def test_faulty_scans(scan, fault):
    refused(of(Result(0, F32), index=6 * i0 + r0, sizes=(4,), rsizes=(6,), scan=scan), fault)


def test_a_scan_is_along_one_variable_and_stores_every_point():
    scan = Scan((ROW,), (SUM,))
    verify(of(Result(0, F32), index=6 * i0 + r0, sizes=(4,), rsizes=(6,), scan=scan))
    both = (Reduction("sum", ROW),)
    refused(of(Result(0, F32), index=6 * i0 + r0, sizes=(4,), rsizes=(6,), scan=scan, reductions=both), "beside it")
    refused(of(Result(0, F32), index=i0, sizes=(4,), rsizes=(2, 3), scan=scan), "along one variable")
    refused(of(Result(0, F32), target=R, index=i0, sizes=(4,), rsizes=(6,), scan=scan), "two points store")
    one = Scan((load(X, i0),), (SUM,))
    refused(of(Result(0, F32), target=R, index=i0, sizes=(4,), rsizes=(1,), scan=one), "a scan of one element")


def copy_of(name: str, source=X, target=Y):
    return nest(name, (4, 6), Store(target.name, FLAT, load(source, FLAT)))


def call(**fields) -> LibraryCall:
    base = LibraryCall("call", "aten.relu_.default", (whole(X),), (), (None,), Origin("call", ""), ("x",))
    return replace(base, **fields)


@pytest.mark.parametrize(
    ("ops", "fault"),
    [
        ([copy_of("a"), copy_of("b")], "b: buffer y is defined twice"),
        ([copy_of("a"), copy_of("a", target=R)], "two ops are named a"),
        ([copy_of("a-b")], "'a-b' is no identifier"),
        ([copy_of("a", C, X), copy_of("b", X, Y)], "b: reads x after a has overwritten it"),
        ([copy_of("a", C, X), call(mutates=(), outputs=("y",))], "call: reads x after a has overwritten it"),
        ([copy_of("a", C, X), copy_of("b", C, X)], "b: x was overwritten already, by a"),
        ([call(args=(View("x", (5, 6), (6, 1)),))], "a view of x ends at 30, past its 24 elements"),
        ([call(args=(whole(Y),))], "call: buffer y is used before it is defined"),
        ([call(args=(whole(C),), mutates=("c",))], "mutates the constant c"),
        ([call(mutates=("n",))], "mutates n, which is not among its arguments"),
        ([call(outputs=("x",))], "the output x is not a temporary"),
        ([call(outputs=("q",))], "unknown buffer q"),
    ],
)
def test_faulty_programs(ops, fault):
    refused(graph((X, H, N, C, Y, R), ops, ()), fault)


def test_faulty_graphs():
    refused(graph((X, X), [], ()), "two buffers are named x")
    refused(graph((X, Y), [], (whole(Y),)), "outputs: buffer y is used before it is defined")
    refused(replace(graph((X,), [], ()), inputs=()), "buffer x is not both marked and listed as input")
    refused(graph((replace(X, stride=(1,)),), [], ()), "2 sizes, 1 strides")


def test_empty_tensors_need_no_definition():
    empty = buffer("e", 0, 3)
    verify(graph((empty,), [], (whole(empty),)))


def test_an_input_may_be_renewed_in_place():
    value = Call("add", (load(X, FLAT), Const(1.0, F32)), F32)
    verify(graph((X,), [nest("a", (4, 6), Store("x", FLAT, value))], (whole(X),)))


def test_indices_outside_the_grammar_are_not_judged_but_symbols_are():
    verify(of(load(X, 6 * i0 + sympy.Mod(i1, 6))))
    refused(of(load(X, sympy.floor(r0 / 2))), "uses r0")


PLACE = (load(N, i0),)


def updating(store, *more) -> LoopGraph:
    return graph((X, H, B, N, C, Y, R), [nest("op", (4, 6), store), *more], ())


def test_updates_at_places_that_data_tell():
    verify(update_graph())
    store = Store("x", 6 * t0 + i1, load(Y, FLAT), PLACE)
    verify(updating(Store("h", 6 * t0 + i1, Const(0.0, F32), PLACE, adds=True)))
    fill = nest("fill", (4, 6), Store("y", FLAT, Const(0.0, F32)))
    verify(graph((X, H, N, C, Y, R), [fill, nest("op", (4, 6), store)], ()))


@pytest.mark.parametrize(
    ("store", "fault"),
    [
        (Store("y", 6 * t0 + i1, Const(0.0, F32), PLACE), "buffer y is used before it is defined"),
        (Store("c", 6 * t0 + i1, Const(0.0, F32), PLACE), "stores to the constant c"),
        (Store("x", 6 * t0 + i1, load(X, FLAT), PLACE), "loads of x race with the indirect store to it"),
        (
            Store("x", 6 * t0 + i1, Const(0.0, F32), (Const(0.0, F32),)),
            "the store of x is indexed by a value of float32",
        ),
        (Store("x", FLAT, Const(0.0, F32), adds=True), "cannot add"),
        (Store("b", 6 * t0 + i1, Const(False, "bool"), PLACE, adds=True), "cannot add"),
        (Store("x", 6 * t0 + i1 + r0, Const(0.0, F32), PLACE), "uses r0"),
    ],
)
def test_faulty_updates(store, fault):
    refused(updating(store), fault)
