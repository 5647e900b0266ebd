from dataclasses import replace

from optfuse.compiler.ir.nodes import Buffer, Call, Const, Reduction, Result, Store
from optfuse.compiler.ir.printer import print_expr, print_graph, print_nest
from tests.compiler.ir.graphs import (
    F32,
    buffer,
    gather_graph,
    i0,
    i1,
    load,
    nest,
    r0,
    scan_graph,
    softmax_graph,
    update_graph,
)

X = buffer("x", 4, 6, kind="input")


def test_softmax(golden):
    golden(print_graph(softmax_graph()))


def test_gather(golden):
    golden(print_graph(gather_graph()))


def test_scans(golden):
    golden(print_graph(scan_graph()))


def test_updates(golden):
    golden(print_graph(update_graph()))


def test_shared_values_are_named_once():
    v = Call("exp", (load(X, i0),), F32)
    for _ in range(40):  # printed as a tree this would be 2**40 calls
        v = Call("mul", (v, v), F32)
    lines = print_nest(nest("op", (24,), Store("y", i0, v))).splitlines()
    assert lines[:3] == ["op: for i0 < 24", "  v0 = exp(x[i0])", "  v1 = v0 * v0"]
    assert lines[-1] == "  y[i0] = v39 * v39"


def test_equal_values_are_one_value():
    def squared():
        return Call("mul", (load(X, i0), load(X, i0)), F32)

    text = print_nest(nest("op", (24,), Store("y", i0, Call("add", (squared(), squared()), F32))))
    assert text.splitlines()[1:] == ["  v0 = x[i0] * x[i0]", "  y[i0] = v0 + v0"]


def test_results_are_numbered_across_reductions():
    folds = (Reduction("welford", load(X, 6 * i0 + r0)), Reduction("sum", load(X, 6 * i0 + r0)))
    text = print_nest(nest("op", (4,), Store("m", i0, Result(3, F32)), rsizes=(6,), reductions=folds))
    assert text.splitlines()[1:] == [
        "  s0, s1, s2 = welford of x[6*i0 + r0] for r0 < 6",
        "  s3 = sum of x[6*i0 + r0] for r0 < 6",
        "  m[i0] = s3",
    ]


def test_literals_show_their_dtype_unless_it_is_the_usual():
    values = [Const(1.0, F32), Const(1.0, "float64"), Const(1, "int64"), Const(1, "int32"), Const(True, "bool")]
    assert [print_expr(v) for v in values] == ["1.0", "1.0:float64", "1", "1:int32", "True"]


def test_nested_operators_have_parentheses():
    inner = Call("add", (load(X, i0), Const(1.0, F32)), F32)
    assert print_expr(Call("mul", (inner, Call("cast", (load(X, i1),), F32)), F32)) == "(x[i0] + 1.0) * float32(x[i1])"


def test_strides_are_shown_unless_row_major():

    g = softmax_graph()
    transposed = Buffer("x", "bfloat16", (7, 5), (1, 7), "input", "cuda:0")
    assert "input x: bfloat16[7, 5] strides (1, 7) on cuda:0" in print_graph(
        replace(g, buffers=(transposed, *g.buffers[1:]))
    )
