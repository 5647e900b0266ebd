"""Every pointwise rule against eager: dtypes, promotion, broadcasting, layouts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from optfuse.compiler.ir.nodes import Call, Const, Load, LoopNest
from optfuse.compiler.lower.promotion import promote
from tests.compiler.lower.eager import check, lowered, nests

aten = torch.ops.aten
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
SOME = (torch.float32, torch.bfloat16, torch.int64, torch.bool)

UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sigmoid tanh erf erfc erfinv sin cos tan asin acos atan "
    "sinh cosh asinh acosh atanh lgamma floor ceil trunc round sign sgn abs neg relu isnan isinf logical_not frac "
    "bitwise_not"
).split()
BINARY = (
    "add sub mul true_divide floor_divide maximum minimum fmax fmin pow eq ne lt le gt ge logical_and logical_or "
    "logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift atan2 copysign hypot rsub"
).split()


def values(*shape: int, dtype: torch.dtype = torch.float32, low: float = -3.0, high: float = 3.0) -> torch.Tensor:
    """Numbers between the bounds, the same ones at each call."""
    uniform = torch.rand(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)
    low = max(low, 0.0) if dtype in (torch.uint8, torch.bool) else low
    return (uniform * (high - low) + low).to(dtype)


def in_eager(function: Callable[..., torch.Tensor], *args: Any) -> bool:
    """Whether eager does this at all."""
    try:
        function(*args)
    except (RuntimeError, TypeError):
        return False
    return True


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    function = getattr(torch, name)
    for dtype in DTYPES:
        x = values(5, 7, dtype=dtype, low=1.1 if name == "acosh" else 0.1, high=3.0 if name == "acosh" else 0.9)
        if in_eager(function, x):
            check(function, x)


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", BINARY)
def test_binary_promotes_as_aten_does(name: str) -> None:
    function = getattr(torch, name)
    for one, other in itertools.product(SOME, SOME):
        x, y = values(5, 7, dtype=one), values(1, 7, dtype=other, low=1.0, high=4.0)
        scalars = ((x, y[0, 0]), (x[0, 0], y)) if one != other else ()
        for args in ((x, y), *scalars):
            if in_eager(function, *args):
                check(function, *args)


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("scalar", [2, 0.7])
def test_python_scalars_do_not_widen(name: str, scalar: float) -> None:
    function = getattr(torch, name)
    for dtype in (torch.float32, torch.float64, *INTEGERS):
        x = values(5, 7, dtype=dtype)
        if in_eager(function, x, scalar):
            check(lambda x: function(x, scalar), x)


@pytest.mark.parametrize("name", ["fmod", "remainder"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_remainders_have_their_signs(name: str, dtype: torch.dtype) -> None:
    x, y = torch.tensor([7, -7, 7, -7, 6], dtype=dtype), torch.tensor([3, 3, -3, -3, 3], dtype=dtype)
    check(getattr(torch, name), x, y)
    check(lambda x: getattr(torch, name)(x, 4), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_signs_of_zero_and_nan_count(dtype: torch.dtype) -> None:
    odd = [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf] if dtype.is_floating_point else [0, 1]
    check(torch.signbit, torch.cat([torch.tensor(odd, dtype=dtype), values(9, dtype=dtype)]))


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_division_modes(mode: str | None, dtype: torch.dtype) -> None:
    x, y = values(6, 8, dtype=dtype, low=-9, high=9), values(6, 8, dtype=dtype, low=1, high=4)
    check(lambda x, y: torch.div(x, -y, rounding_mode=mode), x, y)


def test_floor_division_of_floats_at_the_edges() -> None:
    x = torch.tensor([1.0, -1.0, 0.0, -0.0, 5.0, -5.0, math.inf, math.nan, 3.0, 0.6])
    y = torch.tensor([0.0, 0.0, 2.0, 2.0, -math.inf, 0.1, 2.0, 1.0, math.inf, 0.2])
    check(lambda x, y: torch.div(x, y, rounding_mode="floor"), x, y)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, 4])
def test_powers_by_a_scalar(exponent: float) -> None:
    check(lambda x: x**exponent, values(9, low=0.1))
    if exponent in (0, 1, 2, 3, 4):
        check(lambda x: x**exponent, values(9, dtype=torch.int64))
    check(lambda x: exponent**x, values(9, low=0.1)) if exponent > 0 else None


def test_squares_need_no_special_function() -> None:
    (nest,) = nests(check(lambda x: x**2, values(4)))
    assert isinstance(nest.stores[0].value, Call)
    assert nest.stores[0].value.function == "mul"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "function",
    [
        torch.nn.functional.relu6,
        torch.nn.functional.hardsigmoid,
        torch.nn.functional.hardswish,
        torch.nn.functional.silu,
        torch.nn.functional.mish,
        torch.nn.functional.gelu,
        lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        lambda x: torch.nn.functional.softplus(x, beta=2.0, threshold=3.0),
        lambda x: torch.nn.functional.leaky_relu(x, 0.2),
        lambda x: torch.nn.functional.hardtanh(x, -0.5, 2.0),
        lambda x: torch.nn.functional.elu(x, 0.7),
        torch.nn.functional.selu,
        lambda x: torch.nn.functional.threshold(x, 0.3, -2.0),
        lambda x: torch.nn.functional.prelu(x, torch.full((1,), 0.2, dtype=x.dtype)),
    ],
)
def test_activations(function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> None:
    check(function, torch.cat([values(40, dtype=dtype, low=-8, high=8), torch.tensor([0.0, -0.0, 3.0]).to(dtype)]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "function",
    [
        aten.sigmoid_backward.default,
        aten.tanh_backward.default,
        aten.silu_backward.default,
        aten.gelu_backward.default,
        aten.hardsigmoid_backward.default,
        aten.hardswish_backward.default,
        lambda g, x: aten.gelu_backward.default(g, x, approximate="tanh"),
        lambda g, x: aten.threshold_backward.default(g, x, 0),
        lambda g, x: aten.hardtanh_backward.default(g, x, -0.5, 2.0),
        lambda g, x: aten.leaky_relu_backward.default(g, x, 0.2, False),
        lambda g, x: aten.softplus_backward.default(g, x, 2.0, 3.0),
        lambda g, x: aten.elu_backward.default(g, 0.7, 1.1, 0.9, False, x),
        lambda g, y: aten.elu_backward.default(g, 0.7, 1.1, 0.9, True, y),
        lambda g, x: aten.native_dropout_backward.default(g, x > 0, 1.25),
    ],
)
def test_gradients_of_activations(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    x = torch.cat([values(40, dtype=dtype, low=-4, high=4), torch.tensor([0.0, 3.0, -3.0]).to(dtype)])
    check(function, values(43, dtype=dtype), x)


def test_selection() -> None:
    x, y, mask = values(5, 7), values(7, 1, dtype=torch.float64).T, values(5, 1) > 0
    check(lambda x, y, m: torch.where(m, x, y), x, y, mask)
    check(lambda x, m: torch.where(m, x, 0.0), x, mask)
    check(lambda x, m: x.masked_fill(m, -math.inf), x.bfloat16(), mask)
    check(lambda x, m: x.masked_fill(m, torch.tensor(3)), x, mask)


def test_clamps() -> None:
    x = torch.cat([values(9), torch.tensor([math.nan, math.inf])])
    check(lambda x: x.clamp(-1, 1), x)
    check(lambda x: x.clamp(min=0.5), x)
    check(lambda x: x.clamp(max=0.5), x.half())
    check(lambda x: x.clamp(2, 1), x)
    check(lambda x, low: x.clamp(min=low), x, values(1))
    check(lambda x, low, high: torch.clamp(x, low, high), values(9, dtype=torch.int64), values(1), values(1) + 1)
    check(lambda x: aten.clamp_min.default(x, 0), x)
    check(lambda x: aten.clamp_max.default(x, 0), x)


def test_combinations() -> None:
    x, y, z = values(5, 7), values(7, low=1), values(5, 1, low=1)
    check(lambda x, y, z: torch.addcmul(x, y, z, value=0.5), x, y, z)
    check(lambda x, y, z: torch.addcdiv(x, y, z, value=2), x, y, z)
    check(lambda x, y: torch.lerp(x, y, 0.25), x, y)
    check(lambda x, y, w: torch.lerp(x, y, w), x, y, x.sigmoid())
    check(lambda x, y: torch.add(x, y, alpha=3), x, y)
    check(lambda x, y: torch.sub(x, y, alpha=3), x.long(), y.long())
    check(lambda x: torch.rsub(x, 1, alpha=2), x)


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("wanted", DTYPES)
def test_casts(source: torch.dtype, wanted: torch.dtype) -> None:
    check(lambda x: x.to(wanted, copy=True), values(3, 5, dtype=source, low=0 if wanted == torch.uint8 else -3))


def test_integers_are_rounded_to_a_half_type_before_they_are_computed_with() -> None:
    check(lambda x, n: x * n, torch.ones(3, dtype=torch.bfloat16), torch.tensor([257, 1001, 3]))
    check(lambda x, n: n - x, torch.full((3,), 1000.0, dtype=torch.float16), torch.tensor([2049, 4097, 3]))


def test_half_types_are_computed_in_float32() -> None:
    (nest,) = nests(check(lambda x: x * 1.001, values(8, dtype=torch.bfloat16)))
    value = nest.stores[0].value
    assert value.dtype == "float32"
    assert isinstance(value, Call)
    assert isinstance(value.args[0], Call)
    assert value.args[0].function == "cast"
    assert value.args[1] == Const(1.001, "float32")


def test_a_copy_of_a_half_tensor_is_not_cast() -> None:
    (nest,) = nests(check(lambda x: x.clone(), values(8, dtype=torch.bfloat16)))
    assert isinstance(nest.stores[0].value, Load)


def test_loops_follow_the_output_in_memory_and_are_merged() -> None:
    x = torch.randn(2, 3, 4, 5)
    (nest,) = nests(check(lambda x: x + 1, x.to(memory_format=torch.channels_last)))
    assert (nest.sizes, str(nest.stores[0].index)) == ((120,), "i0")
    (nest,) = nests(check(lambda x, b: x + b, x, torch.randn(3, 1, 1)))
    assert nest.sizes == (2, 3, 20)
    (nest,) = nests(check(lambda x: x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format), x))
    assert nest.sizes == (2, 20, 3)
    (nest,) = nests(check(lambda x: x.exp(), torch.randn(1, 1, 1)))
    assert nest.sizes == ()


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(4, 6).t(),
        torch.randn(8, 6)[::2, 1::2],
        torch.randn(3, 1).expand(3, 5),
        torch.randn(()),
        torch.randn(0, 3),
        torch.randn(2, 3, 0),
        torch.randn(1, 1, 5),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)[:, 1:],
    ],
    ids=lambda x: "x".join(map(str, x.shape)) + "_" + "x".join(map(str, x.stride())),
)
def test_layouts(x: torch.Tensor) -> None:
    check(lambda x: (x.exp() + x, x * torch.ones(x.shape[-1:]), x.sum(-1, keepdim=True) if x.ndim else x * 2), x)


def test_uniform_tensors_are_inlined() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        scale = torch.full((7,), 3, dtype=torch.int64).to(torch.float32)[:2].sum() * 0 + torch.ones(5, 7)
        return torch.where(x > torch.zeros(()), x * torch.full((5, 1), 0.1), -torch.ones_like(x).exp()) + scale

    graph, _ = lowered(
        lambda x: torch.where(x > 0, x * torch.full((5, 1), 0.1), -torch.ones_like(x).exp()), values(5, 7)
    )
    assert [op.origin.target for op in graph.ops] == ["aten.gt.Scalar", "aten.mul.Tensor", "aten.where.self"]
    check(function, values(5, 7))


def test_uniform_tensors_that_leave_are_filled() -> None:
    graph = check(lambda x: (torch.full((2, 3), 0.1, dtype=torch.bfloat16), torch.ones_like(x), x + 1), values(4))
    assert len(nests(graph)) == 3
    check(lambda x: torch.full((3, 3), 2.0) @ x, values(3, 2), library=["aten.mm.default"])


def test_creation() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.zeros(2, 3) + x[0],
            x.new_full((4,), 7) * 2,
            torch.scalar_tensor(2.5) * x,
            torch.full_like(x, 3, dtype=torch.int64) // 2,
            x.new_ones(2, 2),
            torch.fill(x, 0.3),
            aten.fill.Tensor(x, x[1]),
            aten.copy.default(torch.empty(2, 5, dtype=torch.float16), x),
        )

    check(function, values(5))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.float64, torch.bfloat16])
def test_arange(dtype: torch.dtype) -> None:
    x = values(5).to(dtype)
    check(lambda x: (torch.arange(5, dtype=dtype) + x, torch.arange(2, 12, 3, dtype=dtype)), x)
    if dtype.is_floating_point:
        check(lambda x: x * torch.arange(0.5, 3.0, 0.5, dtype=dtype), x)


def test_nan_and_infinity_pass_through() -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e38])
    for function in (torch.relu, torch.sign, torch.abs, torch.isnan, torch.isinf, torch.logical_not, torch.exp):
        check(function, x)
    for function in (torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.eq, torch.mul):
        check(function, x, x.flip(0).clone())


def test_promotion_depends_on_rank_and_scalars() -> None:
    assert promote("same", (("bfloat16", True), ("float32", False))).result == "bfloat16"
    assert promote("same", (("int64", True), float)).result == "float32"
    assert promote("float", (("bool", True),)).compute == "float32"
    assert promote("bool", (("int32", True), ("float64", True))).common == "float64"
    assert promote("long", (("bool", True), bool)).result == "int64"


def test_names_and_origins_tie_a_nest_to_its_node() -> None:
    graph, _ = lowered(lambda x: x.exp().log(), values(3))
    assert [type(op) for op in graph.ops] == [LoopNest, LoopNest]
    assert [op.name for op in graph.ops] == [op.origin.node for op in graph.ops] == ["exp", "log"]
    assert [op.origin.target for op in graph.ops] == ["aten.exp.default", "aten.log.default"]
