"""Mends for Triton's interpreter, so that what it computes is what the compiled kernel would compute.

Out of the box (3.6 to 3.9) the interpreter reads bfloat16 bits as integers in arithmetic, comparisons and dot products
and truncates on casts; it rounds to float8 wrongly, and reads the nan of one as a number; it has no libdevice; it runs
a custom ``tl.reduce`` or ``tl.associative_scan`` element by element in Python; its max and min treat nan unlike the
hardware in some versions; and with numpy 2.4 or newer ``range(0, n)`` over a run-time argument fails. ``apply``
replaces those pieces. It must run before the first kernel is launched, and is idempotent.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter as interp

Array = np.ndarray[Any, Any]

_BITWISE = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)
_MARK = "_optfuse_mended"

#: libdevice functions that torch computes under the same name.
_SAME_NAME = (
    "abs acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf erfc erfinv exp exp2 expm1 "
    "floor fmod hypot lgamma log log10 log1p log2 nextafter pow rsqrt sin sinh sqrt tan tanh trunc"
)

#: libdevice functions by the torch function that computes them; all operands and the result share one dtype.
_LIBDEVICE: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in _SAME_NAME.split()},
    "exp10": lambda x: torch.pow(torch.full_like(x, 10.0), x),
    "fabs": torch.abs,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "nearbyint": torch.round,
    "rint": torch.round,
    "round": lambda x: torch.trunc(x + torch.copysign(torch.full_like(x, 0.5), x)),
    "div_rn": torch.div,
    "mul_rn": torch.mul,
    "sqrt_rn": torch.sqrt,
    "rsqrt_rn": torch.rsqrt,
    "fast_expf": torch.exp,
    "fast_logf": torch.log,
    "fast_dividef": torch.div,
    "fast_tanhf": torch.tanh,
    "ldexp": torch.ldexp,
    "j0": torch.special.bessel_j0,
    "cyl_bessel_i0": torch.special.i0,
    "tgamma": lambda x: torch.exp(torch.lgamma(x)),
}

#: libdevice predicates: the result is an int32, as in the CUDA math library.
_LIBDEVICE_TESTS: dict[str, Callable[..., torch.Tensor]] = {
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinited": torch.isfinite,
    "finitef": torch.isfinite,
    "signbit": torch.signbit,
}

_lock = threading.RLock()


def apply() -> None:
    """Mend the interpreter of this process. Triton must have been put into interpreter mode already."""
    if getattr(interp, _MARK, False):
        return
    _mend_arithmetic(interp.InterpreterBuilder)
    _mend_casts(interp.InterpreterBuilder)
    _mend_dot(interp.InterpreterBuilder)
    _mend_reductions()
    _mend_libdevice()
    _mend_scalars()
    _mend_patching()
    _mend_launch()
    setattr(interp, _MARK, True)


def widen(bits: Array) -> Array:
    """The float32 values of bfloat16 bit patterns (uint16), exactly."""
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow(values: Array) -> Array:
    """Bit patterns (uint16) of float values rounded to the nearest bfloat16, ties to even, nan kept."""
    flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    return torch.from_numpy(flat).to(torch.bfloat16).view(torch.uint16).numpy().reshape(np.shape(values))


#: Dtypes that the interpreter holds as bits, by torch's own.
_FLOAT8 = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}


def _from_float8(bits: Array, dtype: torch.dtype) -> Array:
    """The float32 values of float8 bit patterns (uint8), exactly."""
    flat = np.ascontiguousarray(bits, dtype=np.uint8).reshape(-1)
    return torch.from_numpy(flat).view(dtype).to(torch.float32).numpy().reshape(np.shape(bits))


def _to_float8(values: Array, dtype: torch.dtype) -> Array:
    """Bit patterns (uint8) of values rounded to the nearest float8, the largest one beyond it, as NVIDIA's GPUs do."""
    flat = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32).reshape(-1))
    largest = torch.finfo(dtype).max
    return flat.clamp(-largest, largest).to(dtype).view(torch.uint8).numpy().reshape(np.shape(values))


def _is_bf16(handle: Any) -> bool:
    return handle.dtype.scalar == tl.bfloat16


def _values(handle: Any) -> Array:
    """The numbers that a handle stands for: bfloat16 and float8 bits are widened, everything else is as stored."""
    if handle.dtype.scalar in _FLOAT8:
        return _from_float8(handle.data, _FLOAT8[handle.dtype.scalar])
    return widen(handle.data) if _is_bf16(handle) else np.asarray(handle.data)


def _handle(values: Array, dtype: tl.dtype) -> Any:
    """A handle of ``dtype`` holding ``values``, rounded when ``dtype`` is bfloat16 or float8."""
    if dtype in _FLOAT8:
        return interp.TensorHandle(_to_float8(values, _FLOAT8[dtype]), dtype)
    if dtype == tl.bfloat16:
        return interp.TensorHandle(narrow(values), dtype)
    return interp.TensorHandle(np.asarray(values).astype(_np_dtype(dtype), copy=False), dtype)


def _np_dtype(dtype: tl.dtype) -> np.dtype[Any]:
    return getattr(interp, "_get_np_dtype")(dtype)  # noqa: B009 - a private name of the patched module


def _tensor(handle: Any) -> tl.tensor:
    """Wrap a handle whose data has the block's shape; a shape of () becomes the interpreter's one-element scalar."""
    if np.ndim(handle.data) == 0:
        return tl.tensor(interp.TensorHandle(np.reshape(handle.data, 1), handle.dtype), handle.dtype)
    return tl.tensor(handle, tl.block_type(handle.dtype, list(handle.data.shape)))


# --- arithmetic ---------------------------------------------------------------------------------------------------


def _mend_arithmetic(builder: Any) -> None:
    def binary_op(_self: Any, lhs: Any, rhs: Any, op: Callable[..., Array]) -> Any:
        dtype = lhs.dtype.scalar
        if dtype == tl.bfloat16 and op in _BITWISE:
            return interp.TensorHandle(op(lhs.data, rhs.data), dtype)
        left, right = _values(lhs), _values(rhs)
        if left.dtype == np.bool_ and right.dtype == np.bool_:
            # int1 is a one-bit integer that wraps around; numpy's bool saturates and refuses subtraction
            return interp.TensorHandle((op(left.astype(np.int8), right.astype(np.int8)) & 1).astype(np.bool_), tl.int1)
        out = op(left, right)
        # a comparison's handle must say int1: casts look at the handle, not at the tensor's type
        return interp.TensorHandle(out, tl.int1) if out.dtype == np.bool_ else _handle(out, dtype)

    def unary_op(_self: Any, arg: Any, op: Callable[..., Array]) -> Any:
        return _handle(op(_values(arg)), arg.dtype.scalar)

    def fma(original: Callable[..., Any]) -> Callable[..., Any]:
        def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
            if not _is_bf16(z):
                return original(self, x, y, z)
            return _handle(_values(x).astype(np.float64) * _values(y) + _values(z), tl.bfloat16)

        return create_fma

    def create_clampf(self: Any, arg: Any, low: Any, high: Any, propagate_nans: Any) -> Any:
        # without propagation the hardware's min and max return the operand that is a number
        every = propagate_nans == tl.PropagateNan.ALL
        upper, lower = (np.maximum, np.minimum) if every else (np.fmax, np.fmin)
        return self.binary_op(self.binary_op(arg, low, upper), high, lower)

    def torch_erf(values: Array) -> Array:
        return torch.erf(torch.from_numpy(np.ascontiguousarray(values))).numpy()

    builder.binary_op = binary_op
    builder.unary_op = unary_op
    builder.create_fma = fma(builder.create_fma)
    builder.create_clampf = create_clampf
    builder.create_rsqrt = lambda self, arg: self.unary_op(arg, lambda x: 1 / np.sqrt(x))
    builder.create_erf = lambda self, arg: self.unary_op(arg, torch_erf)
    builder.create_fneg = lambda self, arg: self.unary_op(arg, np.negative)
    builder.create_minnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin)
    builder.create_maxnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax)


def _mend_casts(builder: Any) -> None:
    def cast_impl(_self: Any, src: Any, dst_type: Any) -> Any:
        return _handle(_values(src), dst_type.scalar)

    def fp_to_fp(original: Callable[..., Any]) -> Callable[..., Any]:
        truncating = getattr(interp, "_ir").ROUNDING_MODE.RTZ  # noqa: B009 - a private name of the patched module

        def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
            known = (kind.primitive_bitwidth >= 16 or kind in _FLOAT8 for kind in (src.dtype.scalar, dst_type.scalar))
            if all(known) and rounding_mode != truncating:
                return self.cast_impl(src, dst_type)
            return original(self, src, dst_type, rounding_mode)

        return create_fp_to_fp

    builder.cast_impl = cast_impl
    builder.create_fp_to_fp = fp_to_fp(builder.create_fp_to_fp)
    builder.get_bf16 = lambda self, value: _handle(np.array([value], dtype=np.float32), tl.bfloat16)


def _mend_dot(builder: Any) -> None:
    original_dot, original_rmw = builder.create_dot, builder.create_atomic_rmw

    def create_dot(self: Any, a: Any, b: Any, acc: Any, *rest: Any) -> Any:
        if a.dtype.scalar not in (tl.bfloat16, tl.float16):
            return original_dot(self, a, b, acc, *rest)
        # products of halves are exact in float32; numpy has no fast matmul in float16
        product = np.matmul(_values(a).astype(np.float32), _values(b).astype(np.float32))
        return _handle(product + _values(acc), acc.dtype.scalar)

    def create_atomic_rmw(self: Any, op: Any, ptr: Any, val: Any, *rest: Any) -> Any:
        if _is_bf16(val):
            raise TypeError("an atomic on bfloat16 cannot be interpreted; accumulate in float32")
        return original_rmw(self, op, ptr, val, *rest)

    builder.create_dot = create_dot
    builder.create_atomic_rmw = create_atomic_rmw


# --- reductions ---------------------------------------------------------------------------------------------------


def _mend_reductions() -> None:
    original_apply = interp.ReduceScanOpInterface.apply
    original_impl = interp.ReduceOps.apply_impl

    def apply_in_float32(self: Any, operands: Any) -> Any:
        if not isinstance(operands, tuple):
            return apply_in_float32(self, (operands,))[0]
        halves = [_is_bf16(operand.handle) for operand in operands]
        wide = tuple(
            _tensor(_handle(_values(x.handle), tl.float32)) if half else x
            for x, half in zip(operands, halves, strict=True)
        )
        results = original_apply(self, wide)
        return tuple(
            tl.tensor(_handle(x.handle.data, tl.bfloat16), _retyped(x.type, tl.bfloat16)) if half else x
            for x, half in zip(results, halves, strict=True)
        )

    def apply_impl(self: Any, operands: Any) -> Any:
        extreme = {tl.standard._elementwise_max: np.fmax, tl.standard._elementwise_min: np.fmin}  # noqa: SLF001
        for combine, op in extreme.items():
            if self.combine_fn is combine:
                data = operands[0].handle.data
                if data.dtype == np.bool_:
                    op = {np.fmax: np.logical_or, np.fmin: np.logical_and}[op]
                reduced = op.reduce(data, axis=self.axis, keepdims=self.keep_dims)
                return self.to_tensor(reduced, operands[0].dtype)
        return original_impl(self, operands)

    interp.ReduceScanOpInterface.apply = apply_in_float32
    interp.ReduceOps.apply_impl = apply_impl
    interp.ReduceOps.generic_reduce = _generic_reduce
    interp.ScanOps.generic_scan = _generic_scan


def _retyped(kind: Any, dtype: tl.dtype) -> Any:
    return tl.block_type(dtype, list(kind.shape)) if kind.is_block() else dtype


def _generic_reduce(self: Any, operands: Sequence[tl.tensor]) -> list[tl.tensor]:
    """Fold with a custom combine function: neighbours in pairs, all pairs at once, until one value is left."""
    flat, axis = self.unravel(operands, self.axis)
    dtypes = [x.dtype for x in flat]
    arrays = [np.moveaxis(np.asarray(x.handle.data), axis, -1) for x in flat]
    while (n := arrays[0].shape[-1]) > 1:
        even = n - n % 2
        left = [a[..., 0:even:2] for a in arrays]
        right = [a[..., 1:even:2] for a in arrays]
        folded = _combine(self.combine_fn, left, right, dtypes)
        arrays = [np.concatenate([f, a[..., even:]], axis=-1) for f, a in zip(folded, arrays, strict=True)]
    results = []
    for array, dtype in zip(arrays, dtypes, strict=True):
        value = array[..., 0]
        if self.keep_dims:
            value = np.expand_dims(value, axis) if self.axis is not None else value.reshape([1] * operands[0].type.rank)
        results.append(self.to_tensor(value if value.ndim else value.item(), dtype))
    return results


def _generic_scan(self: Any, operands: Sequence[tl.tensor]) -> list[tl.tensor]:
    """Scan with a custom combine function: all points at once, each with the one 1, 2, 4, ... places before it."""
    dtypes = [x.dtype for x in operands]
    arrays = [np.moveaxis(np.array(x.handle.data), self.axis, -1) for x in operands]
    distance = 1
    while distance < arrays[0].shape[-1]:
        folded = _combine(self.combine_fn, [np.roll(a, distance, -1) for a in arrays], arrays, dtypes)
        for array, joined in zip(arrays, folded, strict=True):
            array[..., distance:] = joined[..., distance:]
        distance *= 2
    found = [np.ascontiguousarray(np.moveaxis(a, -1, self.axis)) for a in arrays]
    return [self.to_tensor(array, dtype) for array, dtype in zip(found, dtypes, strict=True)]


def _combine(function: Any, left: list[Array], right: list[Array], dtypes: list[tl.dtype]) -> list[Array]:
    arguments = [
        _tensor(interp.TensorHandle(np.ascontiguousarray(a), d))
        for a, d in (*zip(left, dtypes, strict=True), *zip(right, dtypes, strict=True))
    ]
    returned = function.rewrite()(*arguments)
    returned = returned if isinstance(returned, (tuple, tl.tuple)) else (returned,)
    values = [x.handle.data if isinstance(x, tl.tensor) else getattr(x, "value", x) for x in returned]
    return [np.broadcast_to(v, a.shape).astype(a.dtype) for v, a in zip(values, left, strict=True)]


# --- libdevice, scalars, launch -----------------------------------------------------------------------------------


def _mend_libdevice() -> None:
    for name, function in _LIBDEVICE.items():
        if hasattr(libdevice, name):
            setattr(libdevice, name, _elementwise(function, None))
    for name, function in _LIBDEVICE_TESTS.items():
        if hasattr(libdevice, name):
            setattr(libdevice, name, _elementwise(function, tl.int32))


def _elementwise(function: Callable[..., torch.Tensor], result: tl.dtype | None) -> Callable[..., tl.tensor]:
    def call(*args: Any, _semantic: Any = None) -> tl.tensor:
        dtype = next(x.dtype for x in args if isinstance(x, tl.tensor))
        arrays = [
            _values(x.handle) if isinstance(x, tl.tensor) else np.asarray(getattr(x, "value", x), _np_dtype(dtype))
            for x in args
        ]
        shape = np.broadcast_shapes(*(x.handle.data.shape for x in args if isinstance(x, tl.tensor)))
        out = function(*(torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)).numpy().reshape(shape)
        handle = _handle(out, result or dtype)
        scalar = all(not x.type.is_block() for x in args if isinstance(x, tl.tensor))
        return tl.tensor(handle, handle.dtype) if scalar else _tensor(handle)

    return call


def _mend_scalars() -> None:
    """Let a one-element tensor be an index; numpy 2.4 no longer converts one-element arrays by itself."""
    original = interp._patch_lang_tensor  # noqa: SLF001

    def patch(tensor: Any, scope: Any, *rest: Any) -> Any:
        out = original(tensor, scope, *rest)
        scope.set_attr(tensor, "__index__", lambda self: int(np.asarray(self.handle.data).item()))
        return out

    interp._patch_lang_tensor = patch  # noqa: SLF001


def _mend_patching() -> None:
    """Redirect ``tl`` to the interpreter once a module of kernels, for good.

    The interpreter does it at every launch and at every call of a function like tl.sum, which takes longer than the
    call, and undoes only some of it. Nothing else can use ``tl`` in a process that interprets.
    """
    original = interp._patch_lang  # noqa: SLF001
    done: dict[int, object] = {}

    def patch_once(fn: Any) -> Any:
        if id(fn.__globals__) not in done:
            original(fn)
            done[id(fn.__globals__)] = fn.__globals__  # held, so that the id stays taken
        return interp._LangPatchScope()  # noqa: SLF001 - an empty one: there is nothing to restore

    interp._patch_lang = patch_once  # noqa: SLF001


def _mend_launch() -> None:
    """One launch at a time (the interpreter patches ``tl`` while it runs), floating-point warnings off, asserts on.

    An index out of bounds is an IndexError, as in eager execution on the host.
    """
    original = interp.GridExecutor.__call__

    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _lock, np.errstate(all="ignore"):
            try:
                return original(self, *args, **kwargs)
            except interp.InterpreterError as error:
                first: BaseException = error
                while isinstance(first, interp.InterpreterError) and first.__cause__:  # one for each function called
                    first = first.__cause__
                if isinstance(first, AssertionError):  # kernels assert nothing else
                    raise IndexError(str(first)) from None
                raise

    interp.GridExecutor.__call__ = launch
    # debug makes tl.device_assert live; the overflow checks that come with it would triple the price of indexing
    options = dataclasses.replace(interp.interpreter_builder.options, debug=True, sanitize_overflow=False)
    interp.interpreter_builder.options = options
