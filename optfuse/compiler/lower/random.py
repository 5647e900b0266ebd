"""Random tensors: each number is a pure function of a seed and a position, so it can be fused and recomputed.

A library call draws the seed from torch's generator once per run of the graph, so that ``torch.manual_seed`` determines
it. The k-th random op of the graph adds k to it. The numbers differ from eager's, but have the same distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import sympy

from optfuse.compiler.ir.buffer_layout import row_major
from optfuse.compiler.ir.dtypes import FLOATING, HALF
from optfuse.compiler.ir.nodes import (
    Call,
    Const,
    Expr,
    Iota,
    LibraryCall,
    LoopNest,
    Origin,
    Reduction,
    TorchValue,
    View,
)
from optfuse.compiler.lower.builder import Builder, Spec
from optfuse.compiler.lower.expressions import call, cast, compute_dtype, like, rounded
from optfuse.compiler.lower.registry import Declined, Uniform, Value, lowers
from optfuse.compiler.lower.strided_layout import Index
from optfuse.compiler.ops.seeded import LARGEST_SEED

Tensor = View | Uniform

_SEED, _STEP_SEED = "random_seed", "step_seed"
_RANDOM = (
    "rand", "randn", "bernoulli", "native_dropout", "uniform", "normal_functional", "exponential", "geometric",
    "cauchy", "log_normal", "randint", "normal", "multinomial",
)  # fmt: skip
#: the smallest exponential number, as in eager: a sampler that divides by one never divides by zero
_LEAST_EXPONENTIAL = 2.0**-24


def seed(builder: Builder) -> Expr:
    """The seed of the current random op."""
    device = builder.specs[0].device
    builder.require_loops(device)
    drawn = [op for op in builder.ops if isinstance(op, LibraryCall) and op.name == _SEED]
    here = [op.outputs[0] for op in drawn if builder.buffers[str(op.outputs[0])].device == device]
    name = here[0] if here else _draw(builder, device, _SEED).buffer
    before = sum(isinstance(op, LoopNest) and _is_random(op.origin) for op in builder.ops)
    loaded = builder.load(builder.whole(str(name)), ())
    return call("add", loaded, Const(before, "int64")) if before else loaded


def _draw(builder: Builder, device: str, name: str) -> View:
    view = builder.allocate(Spec((), (), "int64", device), name=name)
    options = (("dtype", TorchValue("dtype", "int64")), ("device", TorchValue("device", device)))
    origin = replace(builder.origin, target="aten.randint.default")
    args = (LARGEST_SEED, ())
    builder.emit(LibraryCall(name, "aten.randint.default", args, options, (view.buffer,), origin, random=True))
    return view


@lowers("optfuse.step_seed.default")
def lower_step_seed(builder: Builder, _like: Tensor) -> Value:
    """The seed of a training step's draws: not that of ``seed``, which other random ops of the graph count from."""
    return _draw(builder, builder.specs[0].device, _STEP_SEED)


@lowers("optfuse.seeded_random.default")
def lower_seeded_random(builder: Builder, given: Tensor, draw: int, normal: bool, *_: Any) -> Value:
    """The random tensor of a number, from a seed."""
    start = builder.load(given, ())
    start = call("add", start, Const(draw, "int64")) if draw else start
    return random_tensor(builder, "randn" if normal else "rand", 0.0, 1.0, start)


def _is_random(origin: Origin) -> bool:
    return origin.target.split(".")[1] in (*_RANDOM, *(f"{name}_like" for name in _RANDOM))


def uniform_at(start: Expr, index: Index, shape: tuple[Any, ...]) -> Call:
    """A float32 in [0, 1): the number of this index of a tensor of ``shape``."""
    return number_at("rand", start, index, shape)


def number_at(function: str, start: Expr, index: Index, shape: tuple[Any, ...]) -> Call:
    """A float32 of "rand" or "randn": the number of this index of a tensor of ``shape``."""
    flat = sympy.Add(*(i * s for i, s in zip(index, row_major(shape), strict=True)))
    return call(function, start, Iota(flat, "int64"))


@lowers("aten.rand.default", "aten.rand_like.default")
def lower_rand(builder: Builder, *_: Any, **__: Any) -> Value:
    """Uniform in [0, 1)."""
    return random_tensor(builder, "rand", 0.0, 1.0)


@lowers("aten.uniform.default")
def lower_uniform(builder: Builder, _like: Any, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Value:
    """Uniform in [low, high)."""
    only_default(generator)
    return random_tensor(builder, "rand", low, high - low)


@lowers("aten.randn.default", "aten.randn_like.default")
def lower_randn(builder: Builder, *_: Any, **__: Any) -> Value:
    """Normal, of mean 0 and deviation 1."""
    return random_tensor(builder, "randn", 0.0, 1.0)


@lowers("aten.normal_functional.default")
def lower_normal(builder: Builder, _like: Any, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Value:
    """Normal, of the given mean and deviation."""
    only_default(generator)
    return random_tensor(builder, "randn", mean, std)


def random_tensor(builder: Builder, function: str, shift: float, scale: float, start: Expr | None = None) -> Value:
    """The node's tensor of random numbers of ``function`` from ``start``, times ``scale`` plus ``shift``.

    Uniform numbers of a half type are rounded, and those that then reach the upper end are the lower one, as eager
    execution draws them on a GPU. ``start``: a seed; None: the graph's own, see ``seed``.
    """
    spec, start = builder.spec, seed(builder) if start is None else start

    def at(index: Index) -> Expr:
        number: Expr = number_at(function, start, index, spec.shape)
        number = cast(number, compute_dtype(spec.dtype))
        if (shift, scale) != (0.0, 1.0):
            number = call("add", call("mul", number, like(scale, number)), like(shift, number))
        if function == "rand" and spec.dtype in HALF:
            number = cast(cast(number, spec.dtype), number.dtype)
            end = like(rounded(shift + scale, spec.dtype), number)
            number = call("where", call("ge", number, end), like(rounded(shift, spec.dtype), number), number)
        return number

    return builder.pointwise(at)


@lowers("aten.exponential.default")
def lower_exponential(builder: Builder, _like: Any, rate: float = 1.0, *, generator: Any = None) -> Value:
    """Exponential, of the given rate; never 0."""
    only_default(generator)

    def exponential(uniform: Expr) -> Expr:
        number = exponential_number(uniform)
        return number if rate == 1 else call("div", number, like(rate, number))

    return _transformed(builder, "rand", exponential)


@lowers("aten.geometric.default")
def lower_geometric(builder: Builder, _like: Any, p: float, *, generator: Any = None) -> Value:
    """How many trials of chance ``p`` until the first success: an exponential number, rounded up, at least 1."""
    only_default(generator)
    if builder.spec.dtype not in FLOATING:
        raise Declined("geometric numbers as integers, which may overflow")

    def geometric(uniform: Expr) -> Expr:
        trials = call("ceil", call("div", _exponential(uniform), like(-math.log1p(-p), uniform)))
        return call("maximum", trials, like(1.0, trials))

    return _transformed(builder, "rand", geometric)


@lowers("aten.cauchy.default")
def lower_cauchy(
    builder: Builder, _like: Any, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None
) -> Value:
    """Cauchy, of the given median and half-width."""
    only_default(generator)

    def cauchy(uniform: Expr) -> Expr:
        angle = call("mul", call("sub", uniform, like(0.5, uniform)), like(math.pi, uniform))
        return call("add", call("mul", call("tan", angle), like(sigma, angle)), like(median, angle))

    return _transformed(builder, "rand", cauchy)


@lowers("aten.log_normal.default")
def lower_log_normal(
    builder: Builder, _like: Any, mean: float = 1.0, std: float = 2.0, *, generator: Any = None
) -> Value:
    """The exponential of a normal number of the given mean and deviation."""
    only_default(generator)

    def log_normal(normal: Expr) -> Expr:
        return call("exp", call("add", call("mul", normal, like(std, normal)), like(mean, normal)))

    return _transformed(builder, "randn", log_normal)


def exponential_number(uniform: Expr) -> Expr:
    """An exponential number of rate 1 from a uniform one, never 0."""
    return call("maximum", _exponential(uniform), like(_LEAST_EXPONENTIAL, uniform))


def _exponential(uniform: Expr) -> Expr:
    """An exponential number of rate 1 from a uniform one: -log(1 - u)."""
    return call("neg", call("log1p", call("neg", uniform)))


def _transformed(builder: Builder, function: str, transform: Callable[[Expr], Expr]) -> Value:
    """The node's tensor of ``transform`` of random numbers of ``function``."""
    spec, start = builder.spec, seed(builder)
    dtype = compute_dtype(spec.dtype)
    return builder.pointwise(lambda index: transform(cast(number_at(function, start, index, spec.shape), dtype)))


@lowers("aten.bernoulli.p", "aten.bernoulli.default")
def lower_bernoulli(builder: Builder, x: Tensor, p: float | None = None, *, generator: Any = None) -> Value:
    """1 with probability ``p`` (by default the element of ``x``), else 0."""
    only_default(generator)
    spec, start = builder.spec, seed(builder)

    def at(index: Index) -> Expr:
        number = uniform_at(start, index, spec.shape)
        chance = cast(builder.load(x, index), "float32") if p is None else like(p, number)
        return cast(call("lt", number, chance), compute_dtype(spec.dtype))

    return builder.pointwise(at)


@lowers("aten.native_dropout.default")
def lower_dropout(builder: Builder, x: Tensor, p: float, train: bool | None) -> Value:
    """``x`` with each element kept with probability 1 - p and scaled, and the mask of the kept elements."""
    if train is False:
        raise Declined("dropout that drops nothing")
    start = seed(builder)
    scale = 0.0 if p == 1 else 1 / (1 - p)

    def finish(_results: tuple[Expr, ...], index: Index) -> tuple[Expr, ...]:
        value = cast(builder.load(x, index), compute_dtype(builder.dtype(x)))
        kept = call("ge", number := uniform_at(start, index, tuple(x.shape)), like(p, number))
        scaled = call("mul", value, like(scale, value))
        return call("mul", scaled, cast(kept, value.dtype)), kept

    def nothing(_index: Index) -> tuple[Reduction, ...]:
        return ()

    stride = builder.specs[0].stride
    return builder.reduction(builder.specs[0].shape, stride, (), nothing, finish)


def only_default(generator: Any) -> None:
    if generator is not None:
        raise Declined("a generator of the caller's own")
