"""Every scalar function, every reduction and every cast in every dtype that it takes, against torch."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from optfuse.compiler.codegen.block_sizes import LARGEST_TILE
from optfuse.compiler.codegen.kernel_source import KernelSource
from optfuse.compiler.codegen.triton_kernel import emit_kernel
from optfuse.compiler.ir.kernel_spec import KernelSpec, Space, rdigit
from optfuse.compiler.ir.nodes import Buffer, Const, Iota, Load, Result, rvar
from optfuse.compiler.ir.scalar_functions import FUNCTIONS
from optfuse.compiler.ir.torch_semantics import call_function, reduce_operand
from optfuse.compiler.ir.verify_graph import verify
from optfuse.runtime.loader import load_source
from tests.compiler.codegen.running import check, graph_of, module_text, run
from tests.compiler.codegen.specs import Kernel, call, i0, r0

FLOATS, INTEGERS = ("float32", "float64"), ("int64", "int32", "int16", "int8", "uint8")
UNSIGNED, FLOAT8 = ("uint16", "uint32", "uint64"), ("float8_e4m3fn", "float8_e5m2")
INTEGER_FUNCTIONS = (
    "neg abs sign relu bitwise_not add sub mul maximum minimum fmax fmin floordiv truncdiv remainder fmod pow "
    "bitwise_and bitwise_or bitwise_xor lshift rshift eq ne lt le gt ge where"
).split()
BOOL_FUNCTIONS = "bitwise_not bitwise_and bitwise_or bitwise_xor eq ne where".split()
NO_FLOAT = "bitwise_and bitwise_or bitwise_xor bitwise_not lshift rshift position".split()
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 3.0, 7.25, -7.25, 1e-30, 60.0, -60.0]
SPECIAL += [float("inf"), float("-inf")]

Case = tuple[KernelSource, KernelSpec, dict[str, Buffer], dict[str, torch.Tensor]]


def torch_dtype(name: str) -> torch.dtype:
    return getattr(torch, name)


def operands(function: str, dtype: str, count: int) -> list[torch.Tensor]:
    """Values in the function's domain, special ones first; all pairs of a few small ones for two operands."""
    generator = torch.Generator().manual_seed(len(function))
    kind = torch_dtype(dtype)
    if dtype == "bool":
        return [torch.randint(0, 2, (200,), generator=generator).bool() for _ in range(count)]
    if not kind.is_floating_point:
        low = 0 if dtype == "uint8" else -9
        values = [torch.randint(low, 10, (200,), generator=generator).to(kind) for _ in range(count)]
        if function in ("floordiv", "truncdiv", "remainder", "fmod"):
            values[1][values[1] == 0] = 3
        return values
    normal = [torch.randn(200, generator=generator, dtype=torch.float64) * 3 for _ in range(count)]
    special = list(itertools.product(SPECIAL, repeat=count))
    specials = [torch.tensor([values[k] for values in special], dtype=torch.float64) for k in range(count)]
    return [torch.cat([s, n]).to(kind) for s, n in zip(specials, normal, strict=True)]


def function_cases() -> list[tuple[str, str]]:
    """(function, dtype) of everything that the loop IR allows."""
    found = []
    for function in FUNCTIONS:
        if function in ("cast", "rand", "randn"):
            continue
        if function not in NO_FLOAT:
            found += [(function, dtype) for dtype in FLOATS]
        if function in INTEGER_FUNCTIONS:
            found += [(function, dtype) for dtype in INTEGERS]
        if function in BOOL_FUNCTIONS:
            found.append((function, "bool"))
    return found


def elementwise(name: str, function: str, inputs: list[torch.Tensor], dtype: str) -> Case:
    """One kernel that applies a function to as many inputs as there are."""
    k = Kernel((inputs[0].numel(),), name=name)
    for number, tensor in enumerate(inputs):
        k.input(f"a{number}", tensor.numel(), dtype=str(tensor.dtype).removeprefix("torch."))
    values = [Load(f"a{number}", i0, str(t.dtype).removeprefix("torch.")) for number, t in enumerate(inputs)]
    k.pointwise("out", call(function, *values, dtype=dtype))
    spec = k.spec("out")
    verify(graph_of(spec, k.buffers))
    return emit_kernel(spec, k.buffers), spec, k.buffers, {f"a{n}": t for n, t in enumerate(inputs)}


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    """All cases in one module, which is imported once."""
    cases: dict[tuple[str, str], Case] = {}
    for function, dtype in function_cases():
        arity, rule = FUNCTIONS[function].arity, FUNCTIONS[function].rule
        inputs = operands(function, dtype, 2 if rule == "where" else arity)
        if rule == "where":
            inputs = [torch.arange(inputs[0].numel()) % 3 == 0, *inputs]
        result = "bool" if rule == "bool" else dtype
        cases[function, dtype] = elementwise(f"{function}_{dtype}", function, inputs, result)
    module = load_source(module_text([case[0] for case in cases.values()]), tmp_path_factory.mktemp("functions"))
    return cases, module


@pytest.mark.spread(3)
@pytest.mark.parametrize(("function", "dtype"), function_cases())
def test_function(functions, function, dtype):
    cases, module = functions
    kernel, _, buffers, inputs = cases[function, dtype]
    result = torch_dtype(buffers["out"].dtype)
    expected = call_function(function, list(inputs.values()), result)
    got = run(module, kernel, buffers, inputs, kernel.config)["out"]
    torch.testing.assert_close(got, expected, rtol=1e-6 if dtype == "float32" else 1e-12, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_minus_zero_is_the_negative_of_zero(dtype, tmp_path):
    x = torch.tensor([0.0, -0.0, 1.5], dtype=torch_dtype(dtype))
    kernel, _, buffers, inputs = elementwise("negative", "neg", [x], dtype)
    got = run(load_source(module_text([kernel]), tmp_path), kernel, buffers, inputs, kernel.config)["out"]
    assert got.signbit().tolist() == [True, False, True]
    assert "-1.0" in kernel.source, "Triton's own minus is 0 - x on a GPU"


@pytest.mark.parametrize("function", ["div", "reciprocal", "exp", "sqrt", "sigmoid", "tanh", "erf"])
def test_what_serves_half_types_is_far_more_exact_than_they_are(function, tmp_path):
    """Also for tiny, huge, infinite and undefined operands."""
    wide = torch.logspace(-6, 1.9, 4000)
    edges = torch.tensor([0.0, float("inf"), float("nan"), 1e-20, 1e30])
    x = torch.cat([wide, edges]) if function == "sqrt" else torch.cat([wide, -wide, edges, -edges])
    inputs = [x, x.flip(0)] if FUNCTIONS[function].arity == 2 else [x]
    k = Kernel((x.numel(),))
    for number in range(len(inputs)):
        k.input(f"a{number}", x.numel())
    k.pointwise("out", call(function, *(k.load(f"a{n}", i0) for n in range(len(inputs)))))
    spec = k.spec("out")
    spec = replace(spec, members=tuple(replace(member, approximate=True) for member in spec.members))
    kernel = emit_kernel(spec, k.buffers)
    exact = call_function(function, [value.double() for value in inputs], torch.float64).float()
    got = run(
        load_source(module_text([kernel]), tmp_path),
        kernel,
        k.buffers,
        {f"a{n}": v for n, v in enumerate(inputs)},
        kernel.config,
    )
    torch.testing.assert_close(got["out"], exact, rtol=5e-5, atol=1e-37, equal_nan=True)


@pytest.mark.spread(7)
@pytest.mark.parametrize("target", ["bool", *INTEGERS, *UNSIGNED, *FLOAT8, "float16", "bfloat16", *FLOATS])
@pytest.mark.parametrize("source", ["bool", *INTEGERS, *UNSIGNED, *FLOAT8, *FLOATS])
def test_cast(source, target, tmp_path):
    value = torch.tensor([0, 1, 2, -3, 5, 100, -100, 300, 70_000], dtype=torch.float64)
    if torch_dtype(source).is_floating_point:
        value = torch.cat([value, torch.tensor([0.5, -0.5, 1.7, -1.7, 1.00390625, 2.9999])])
    if "uint" in source or ("uint" in target and torch_dtype(source).is_floating_point):
        value = value[(value > -1)]  # what becomes of others is up to the machine
    value = value.to(torch_dtype(source)) if source != "bool" else value > 0
    kernel, _, buffers, inputs = elementwise("cast", "cast", [value], target)
    module = load_source(module_text([kernel]), tmp_path)
    got = run(module, kernel, buffers, inputs, kernel.config)["out"]
    assert got.dtype == torch_dtype(target)
    assert_equal(got, value.to(torch_dtype(target)))


def assert_equal(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """The same numbers; one nan is as good as another."""
    torch.testing.assert_close(got.double(), wanted.double(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.spread(4)
@pytest.mark.parametrize("source", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("target", FLOAT8)
def test_every_number_is_rounded_to_float8_as_torch_does(source, target, tmp_path):
    """Every number of the half types; of float32 those around each number of the target and around its limits."""
    if source == "float32":
        every = torch.arange(256).to(torch.uint8).view(torch_dtype(target)).float()
        finite = every[every.isfinite()].unique()
        middle = (finite[1:] + finite[:-1]) / 2
        ends = torch.tensor([464.0, 480.0, 57344.0, 61440.0, 65536.0, 1e30, float("inf"), float("nan"), 1e-30])
        value = torch.cat([finite, middle, ends, -ends])
        value = torch.cat([value, value.nextafter(torch.tensor(0.0)), value.nextafter(value * 2)])
    else:
        value = torch.arange(65536).to(torch.uint16).view(torch_dtype(source))
    kernel, _, buffers, inputs = elementwise("cast", "cast", [value], target)
    got = run(load_source(module_text([kernel]), tmp_path), kernel, buffers, inputs, kernel.config)["out"]
    assert_equal(got, value.to(torch_dtype(target)))


@pytest.mark.parametrize("source", FLOAT8)
@pytest.mark.parametrize("target", ["float16", "bfloat16", "float32", "float64"])
def test_every_float8_is_read_exactly(source, target, tmp_path):
    value = torch.arange(256).to(torch.uint8).view(torch_dtype(source))
    kernel, _, buffers, inputs = elementwise("cast", "cast", [value], target)
    got = run(load_source(module_text([kernel]), tmp_path), kernel, buffers, inputs, kernel.config)["out"]
    assert_equal(got, value.to(torch_dtype(target)))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_in_a_register_is_rounded(dtype, tmp_path):
    """To quantise and read again is more than to hand on: unlike a half type, it is rounded in one kernel, too."""
    value = torch.linspace(-500, 500, 301)
    k = Kernel((301,))
    k.input("a", 301)
    k.pointwise("small", call("cast", Load("a", i0, "float32"), dtype=dtype))
    k.pointwise("out", call("cast", k.load("small", i0), dtype="float32"))
    spec = k.spec("out")
    kernel = emit_kernel(spec, k.buffers)
    got = run(load_source(module_text([kernel]), tmp_path), kernel, k.buffers, {"a": value}, kernel.config)["out"]
    assert_equal(got, value.to(torch_dtype(dtype)))


@pytest.mark.parametrize("function", ["eq", "ne", "where", "mul", "bitwise_and", "bitwise_or", "bitwise_xor"])
@pytest.mark.parametrize("dtype", UNSIGNED)
def test_unsigned_function(function, dtype, tmp_path):
    bits = 8 * torch_dtype(dtype).itemsize
    signed = torch_dtype(dtype.removeprefix("u"))
    numbers = torch.tensor([0, 1, 2, 3, 1 << bits - 2, -1, -2, -(1 << bits - 1)], dtype=signed).view(torch_dtype(dtype))
    pairs = torch.cartesian_prod(torch.arange(8), torch.arange(8))
    inputs = [numbers[pairs[:, k]] for k in range(2)]
    if function == "where":
        inputs = [torch.arange(64) % 3 == 0, *inputs]
    result = "bool" if FUNCTIONS[function].rule == "bool" else dtype
    kernel, _, buffers, given = elementwise("unsigned", function, inputs, result)
    got = run(load_source(module_text([kernel]), tmp_path), kernel, buffers, given, kernel.config)["out"]
    wanted = call_function(function, inputs, torch_dtype(result))
    assert torch.equal(got, wanted) if result == "bool" else torch.equal(got.view(signed), wanted.view(signed))


def test_constants_alone_have_their_own_dtype(tmp_path):
    """Scalars that stand beside no tensor: int64 beyond 32 bits, float64, nan, bool."""
    k = Kernel((9,))
    for dtype, value in (("int64", 1 << 40), ("float64", 0.1), ("float32", float("nan")), ("bool", True)):
        k.pointwise(f"c_{dtype}", Const(value, dtype))
    k.input("choose", 9, dtype="bool")
    k.pointwise("chosen", call("where", Load("choose", i0, "bool"), Const(1 << 40, "int64"), Const(-1, "int64")))
    k.pointwise("folded", call("add", Const(0.1, "float64"), Const(0.2, "float64")))
    k.pointwise("scaled", call("mul", call("cast", Iota(i0, "int64"), dtype="float64"), Const(0.1, "float64")))
    narrow = call("maximum", call("div", Const(0.1, "float64"), Const(3.0, "float64")), Const(0.03, "float64"))
    k.pointwise("narrow", call("where", Load("choose", i0, "bool"), narrow, Const(0.7, "float64")))
    spec = k.spec("c_int64", "c_float64", "c_float32", "c_bool", "chosen", "folded", "scaled", "narrow")
    kernel = emit_kernel(spec, k.buffers)
    module = load_source(module_text([kernel]), tmp_path)
    got = run(module, kernel, k.buffers, {"choose": torch.arange(9) % 2 == 0}, kernel.config)
    assert got["c_int64"].eq(1 << 40).all()
    assert got["c_float64"].eq(0.1).all()
    assert got["c_float32"].isnan().all()
    assert got["c_bool"].all()
    assert got["chosen"].tolist() == [(1 << 40) if n % 2 == 0 else -1 for n in range(9)]
    assert got["folded"].eq(0.1 + 0.2).all()
    assert got["narrow"].tolist() == [0.1 / 3 if n % 2 == 0 else 0.7 for n in range(9)]
    assert torch.equal(got["scaled"], torch.arange(9).double() * 0.1)


@pytest.mark.parametrize("function", ["rand", "randn"])
def test_random_numbers_are_functions_of_seed_and_offset(function, tmp_path):
    k = Kernel((3, 400))
    k.input("seed", 1, dtype="int64")
    offset = call("add", Iota(400 * i0, "int64"), Const(1 << 33, "int64"))
    k.pointwise("out", call(function, Load("seed", i0 * 0, "int64"), offset, dtype="float32"))
    spec = k.spec("out")
    check(emit_kernel(spec, k.buffers), spec, k.buffers, {"seed": torch.tensor([1 << 40])}, folder=tmp_path)


KINDS = {
    **dict.fromkeys(["sum", "prod"], ("float32", "float64", "int64", "int32")),
    **dict.fromkeys(["max", "min", "argmax", "argmin"], ("float32", "float64", "int64", "int32", "uint8", "int8")),
    **dict.fromkeys(["any", "all"], ("bool",)),
    "welford": FLOATS,
}


def reduction_input(kind: str, dtype: str, rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(columns)
    if dtype == "bool":
        return torch.rand(rows, columns, generator=generator) < (0.02 if kind == "any" else 0.98)
    if not torch_dtype(dtype).is_floating_point:
        low, high = (0, 256) if dtype == "uint8" else (-120, 120)
        return torch.randint(low, high, (rows, columns), generator=generator).to(torch_dtype(dtype))
    values = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    if kind == "prod":
        values = 1 + values / columns
    elif kind == "welford":
        values = values + 100.0
    elif kind != "sum":
        # ties everywhere, and rows of nan and of infinities
        values = (values * 2).round()
        values[0, columns // 2] = float("nan")
        values[-1] = float("-inf") if kind.endswith("max") else float("inf")
    return values.to(torch_dtype(dtype))


@pytest.mark.spread(7)
@pytest.mark.parametrize(
    ("by", "largest"),
    [("rows", LARGEST_TILE), ("rows", 1), ("columns", LARGEST_TILE)],
    ids=["rows-whole", "rows-looped", "columns"],
)
@pytest.mark.parametrize(("kind", "dtype"), [(kind, dtype) for kind, dtypes in KINDS.items() for dtype in dtypes])
def test_reduction(kind, dtype, by, largest, tmp_path):
    rows, columns = (3, 2500) if by == "rows" else (70, 129)
    k = Kernel((rows,), (columns,))
    k.input("a", rows, columns, dtype=dtype, stride=() if by == "rows" else (1, rows))
    operand = k.load("a", i0, r0)
    if kind == "welford":
        k.reduce(kind, operand, *((n, Result(j, dtype)) for j, n in enumerate(("mean", "m2", "count"))))
        spec = k.spec("mean", "m2", "count")
    else:
        k.reduce(kind, operand)
        spec = k.spec(kind)
    value = reduction_input(kind, dtype, rows, columns)
    kernel = emit_kernel(spec, k.buffers, largest)
    # a single sum across memory's direction goes row by row, however short
    assert kernel.config.loop == ("persistent" if by == "rows" and largest > 1 else "looped")
    module = load_source(module_text([kernel]), tmp_path)
    wide = value.double() if value.is_floating_point() else value
    if kind == "sum" and not value.is_floating_point():
        assert (value.abs().sum() < 1 << 31).item()
    expected = reduce_operand(kind, wide)
    tall = torch.empty_strided(value.shape, k.buffers["a"].stride, dtype=value.dtype).copy_(value)
    for config in (kernel.config, kernel.interpret):
        written = run(module, kernel, k.buffers, {"a": tall}, config)
        for name, exact in zip(spec.stores, expected, strict=True):
            got = written[name]
            if got.is_floating_point():
                tolerance = {"rtol": 2e-5 if dtype == "float32" else 1e-11, "atol": 1e-5 if kind == "sum" else 0}
                torch.testing.assert_close(got.double(), exact, equal_nan=True, **tolerance)
            elif kind == "prod":
                assert torch.equal(got, value.prod(-1, dtype=value.dtype))
            else:
                assert torch.equal(got, exact.to(got.dtype)), (name, config)


def test_argmax_counts_in_the_order_of_the_reduction_not_of_the_walk(tmp_path):
    """r walks (digit 0, digit 1), the reduction counts (digit 1, digit 0)."""
    k = Kernel((2,), (6, 5))
    k.input("a", 2, 6, 5)
    r1 = rvar(1)
    k.reduce("argmax", k.load("a", i0, r1, r0))
    member = k.members[0]
    nest = replace(member.nest, rsizes=(5, 6))
    k.members[0] = replace(member, nest=nest, rvars=(rdigit(1), rdigit(0)))
    spec = k.spec("argmax")
    assert spec.space == Space((2,), (6, 5))
    check(emit_kernel(spec, k.buffers), spec, k.buffers, folder=tmp_path)
