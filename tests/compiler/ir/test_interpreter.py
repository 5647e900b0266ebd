import math

import pytest
import torch

from optfuse.compiler.ir.interpreter import interpret
from optfuse.compiler.ir.nodes import (
    Buffer,
    Call,
    Const,
    Guard,
    Iota,
    LibraryCall,
    Load,
    Origin,
    Reduction,
    Result,
    Store,
    TorchValue,
    View,
    rvar,
)
from optfuse.compiler.ir.scalar_functions import FUNCTIONS
from optfuse.compiler.ir.torch_semantics import call_function
from optfuse.compiler.ops import philox
from optfuse.errors import InvalidGraphError
from tests.compiler.ir.graphs import (
    F32,
    buffer,
    gather_graph,
    graph,
    i0,
    i1,
    load,
    nest,
    r0,
    scan_graph,
    softmax_graph,
    t0,
    whole,
)

FLAT = 6 * i0 + i1


def run_one(value, dtype=F32, inputs=(), sizes=(4, 6), buffers=(), **rest):
    """What a nest that stores ``value`` over (4, 6) computes."""
    y = buffer("y", *sizes, dtype=dtype)
    index = FLAT if len(sizes) == 2 else i0
    g = graph((*buffers, y), [nest("op", sizes, Store("y", index, value), **rest)], (whole(y),))
    return interpret(g, inputs)[0]


def test_softmax_in_bfloat16():
    x = torch.randn(7, 5).bfloat16()
    (out,) = interpret(softmax_graph(), [x])
    assert torch.equal(out, torch.softmax(x.float(), -1).bfloat16())


def test_double_computes_and_keeps_everything_in_float64():
    x = torch.randn(7, 5).bfloat16()
    (out,) = interpret(softmax_graph(), [x], double=True)
    torch.testing.assert_close(out, torch.softmax(x.double(), -1))


def test_gather_pad_and_library_call():
    table, ids = torch.randn(4, 3), torch.tensor([0, -1, 3, -4, 2])
    copied, row = interpret(gather_graph(), [ids], {"table": table})
    expected = torch.nn.functional.pad(table[ids], (0, 0, 1, 1), value=-math.inf)
    assert torch.equal(copied, expected)
    assert copied.stride() == (1, 7)
    assert torch.equal(row, expected[1])


def test_indirect_loads_are_bounds_checked():
    with pytest.raises(InvalidGraphError, match=r"rows: index -3\.\.11 is out of the bounds of table"):
        interpret(gather_graph(), [torch.tensor([0, 1, 3, -5, 2])], {"table": torch.randn(4, 3)})


def test_guarded_loads_touch_no_memory():
    x = buffer("x", 0, kind="input")
    value = Load("x", i0, F32, (Guard(i0, 0, 0),), Const(7.0, F32))
    assert run_one(value, sizes=(3,), buffers=(x,), inputs=[torch.empty(0)]).tolist() == [7.0] * 3


def test_inputs_may_be_windows_of_larger_storages():
    base = torch.arange(100.0)
    x = base.as_strided((4, 6), (1, 7), 9)
    b = Buffer("x", F32, (4, 6), (1, 7), "input")
    assert torch.equal(run_one(Load("x", i0 + 7 * i1, F32), buffers=(b,), inputs=[x]), x)
    broadcast = torch.randn(4, 1).expand(4, 6)
    b = Buffer("x", F32, (4, 6), (1, 0), "input")
    assert torch.equal(run_one(Load("x", i0, F32), buffers=(b,), inputs=[broadcast]), broadcast)


def test_mutation_reaches_the_callers_tensor_and_outputs_may_alias_it():
    x = buffer("x", 4, 6, kind="input")
    tensor = torch.randn(5, 6)[1:]
    before = tensor.clone()
    value = Call("add", (load(x, FLAT), Const(1.0, F32)), F32)
    g = graph((x,), [nest("op", (4, 6), Store("x", FLAT, value))], (View("x", (6, 4), (1, 6)),))
    (out,) = interpret(g, [tensor])
    assert torch.equal(tensor, before + 1)
    assert out.data_ptr() == tensor.data_ptr()
    assert torch.equal(out, tensor.t())


def test_mutation_by_a_library_call():
    x = buffer("x", 3, kind="input")
    call = LibraryCall("op", "aten.relu_.default", (whole(x),), (), (None,), Origin("op", ""), ("x",))
    tensor = torch.tensor([-1.0, 0.0, 2.0])
    interpret(graph((x,), [call], ()), [tensor])
    assert tensor.tolist() == [0.0, 0.0, 2.0]


@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        ("sum", lambda x: x.sum(-1)),
        ("prod", lambda x: x.prod(-1)),
        ("max", lambda x: x.amax(-1)),
        ("min", lambda x: x.amin(-1)),
        ("argmax", lambda x: x.argmax(-1)),
        ("argmin", lambda x: x.argmin(-1)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int64", "int32"])
def test_reductions(kind, reference, dtype):
    x = torch.randint(-3, 4, (4, 6), dtype=getattr(torch, dtype))
    if dtype == F32:
        x[1, 2], x[2, 4] = math.nan, math.inf
    b = buffer("x", 4, 6, dtype=dtype, kind="input")
    result = "int64" if kind.startswith("arg") else dtype
    fold = Reduction(kind, load(b, 6 * i0 + r0))
    out = run_one(Result(0, result), result, [x], (4,), (b,), rsizes=(6,), reductions=(fold,))
    torch.testing.assert_close(out, reference(x).to(out.dtype), equal_nan=True)


def test_logical_reductions():
    x = torch.tensor([[False, False], [True, False], [True, True]])
    b = buffer("x", 3, 2, dtype="bool", kind="input")
    for kind in ("any", "all"):
        fold = Reduction(kind, load(b, 2 * i0 + r0))
        out = run_one(Result(0, "bool"), "bool", [x], (3,), (b,), rsizes=(2,), reductions=(fold,))
        assert torch.equal(out, getattr(x, kind)(-1))


def test_argmax_takes_the_first_among_equals_and_nan_before_all():
    x = torch.tensor([[1.0, 3.0, 3.0], [3.0, math.nan, math.nan], [-math.inf] * 3])
    b = buffer("x", 3, 3, kind="input")
    for kind, expected in (("argmax", [1, 1, 0]), ("argmin", [0, 1, 0])):
        fold = Reduction(kind, load(b, 3 * i0 + r0))
        out = run_one(Result(0, "int64"), "int64", [x], (3,), (b,), rsizes=(3,), reductions=(fold,))
        assert out.tolist() == expected


def test_welford_yields_mean_m2_and_count():
    x = torch.randn(4, 6)
    b = buffer("x", 4, 6, kind="input")
    fold = Reduction("welford", load(b, 6 * i0 + r0))
    for k, expected in enumerate((x.mean(-1), x.var(-1, correction=0) * 6, torch.full((4,), 6.0))):
        out = run_one(Result(k, F32), F32, [x], (4,), (b,), rsizes=(6,), reductions=(fold,))
        torch.testing.assert_close(out, expected)


def test_reduction_over_two_dimensions_is_row_major():
    x = torch.tensor([[[0.0, 1.0, 5.0], [5.0, 2.0, 5.0]]])
    b = buffer("x", 1, 2, 3, kind="input")
    fold = Reduction("argmax", load(b, 3 * r0 + rvar(1)))
    out = run_one(Result(0, "int64"), "int64", [x], (1,), (b,), rsizes=(2, 3), reductions=(fold,))
    assert out.tolist() == [2]


def test_scans_keep_every_partial_result():
    a = torch.tensor([[0.5, 2.0, -1.0, 0.0, 3.0], [1.0, 1.0, 1.0, 1.0, -math.inf]])
    out, place = interpret(scan_graph(2, 5), [a])
    assert out.tolist() == [[1.0, 3.0, -2.0, 1.0, 4.0], [1.0, 2.0, 3.0, 4.0, -math.inf]]
    assert place.tolist() == [[0, 1, 1, 1, 4], [0, 1, 2, 3, 3]]
    (exact, _) = interpret(scan_graph(2, 5), [a], double=True)
    assert exact.dtype == torch.float64


def test_iota_and_casts():
    shown = Call("cast", (Iota(FLAT, "int64"),), F32)
    assert run_one(shown).flatten().tolist() == list(range(24))
    truncated = Call("cast", (Const(-1.7, F32),), "int32")
    assert run_one(truncated, "int32").unique().tolist() == [-1]


def test_stores_round_to_the_buffers_dtype():
    assert run_one(Const(1.003, F32), "bfloat16").unique().tolist() == [1.0]


def test_random_numbers_are_philox_of_seed_and_offset():
    value = Call("rand", (Const(5, "int64"), Iota(FLAT, "int64")), F32)
    expected = philox.rand(torch.tensor(5).numpy(), torch.arange(24).numpy())
    assert torch.equal(run_one(value).flatten(), torch.as_tensor(expected))


def test_integer_division_by_zero_does_not_trap():
    x = buffer("x", 3, dtype="int64", kind="input")
    divided = Call("floordiv", (Const(7, "int64"), load(x, i0)), "int64")
    safe = Call("where", (Call("eq", (load(x, i0), Const(0, "int64")), "bool"), Const(0, "int64"), divided), "int64")
    out = run_one(safe, "int64", [torch.tensor([0, 2, -2])], (3,), (x,))
    assert out.tolist() == [0, 3, -4]


def test_every_function_has_a_meaning():
    for name, function in FUNCTIONS.items():
        operands = [torch.tensor([2.0])] * function.arity
        if name in ("bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "lshift", "rshift", "rand", "randn"):
            operands = [torch.tensor([2])] * function.arity
        if name == "where":
            operands = [torch.tensor([True]), *operands[1:]]
        assert call_function(name, operands, torch.float32).shape == (1,)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (Call("add", (Const(1, "int64"), Const(1.0, F32)), "int64"), "is declared int64 but computes torch.float32"),
        (Load("x", FLAT + 1, F32), r"index 1\.\.24 is out of the bounds of x"),
        (Load("z", FLAT, F32), "buffer z is read before it is defined"),
        (Load("x", FLAT, F32, (Guard(i0, 0, 4),)), "says no other value"),
    ],
)
def test_faults_name_the_op(value, fault):
    x, z = buffer("x", 4, 6, kind="input"), buffer("z", 4, 6)
    with pytest.raises(InvalidGraphError, match=f"op: .*{fault}"):
        run_one(value, buffers=(x, z), inputs=[torch.zeros(4, 6)])


@pytest.mark.parametrize(
    ("tensors", "fault"),
    [
        ([], "1 inputs are needed, 0 were given"),
        ([torch.zeros(4, 5)], "the graph wants shape"),
        ([torch.zeros(6, 4).t()], "the graph wants shape"),
        ([torch.zeros(4, 6, dtype=torch.float64)], "the graph wants float32"),
    ],
)
def test_wrong_inputs_are_refused(tensors, fault):
    x = buffer("x", 4, 6, kind="input")
    with pytest.raises(InvalidGraphError, match=fault):
        run_one(load(x, FLAT), buffers=(x,), inputs=tensors)


def test_missing_constant():
    with pytest.raises(InvalidGraphError, match="constant table has no value"):
        interpret(gather_graph(), [torch.zeros(5, dtype=torch.int64)])


def test_library_results_are_checked():
    y = buffer("y", 3)
    dtype = (("dtype", TorchValue("dtype", "float64")),)
    call = LibraryCall("op", "aten.full.default", ((3,), 1.0), dtype, ("y",), Origin("op", ""))
    with pytest.raises(InvalidGraphError, match=r"op: aten\.full\.default returned torch\.float64"):
        interpret(graph((y,), [call], (whole(y),)), [])


def test_unwritten_memory_shows():
    y = buffer("y", 3)
    g = graph((y,), [nest("op", (2,), Store("y", i0, Const(1.0, F32)))], (whole(y),))
    assert math.isnan(interpret(g, [])[0][2])


def test_indirect_index_of_another_integer_dtype():
    x, ids = buffer("x", 4, kind="input"), buffer("ids", 3, dtype="int32", kind="input")
    value = Load("x", t0, F32, indirect=(load(ids, i0),))
    tensor = torch.randn(4)
    out = run_one(value, inputs=[tensor, torch.tensor([3, 0, 1], dtype=torch.int32)], sizes=(3,), buffers=(x, ids))
    assert torch.equal(out, tensor[[3, 0, 1]])
