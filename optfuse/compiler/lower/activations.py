"""Lowering rules of activations and of their gradients: first those that are one expression."""

from __future__ import annotations

import math

from optfuse.compiler.ir.nodes import Expr
from optfuse.compiler.lower.arithmetic import clamp, scale
from optfuse.compiler.lower.expressions import call, cast, like
from optfuse.compiler.lower.pointwise import pointwise

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715


def _add(a: Expr, b: Expr) -> Expr:
    return call("add", a, b)


def _mul(a: Expr, b: Expr) -> Expr:
    return call("mul", a, b)


def _one_minus(x: Expr) -> Expr:
    return call("sub", like(1, x), x)


def _between(x: Expr, low: float, high: float) -> Expr:
    """Whether low < x < high."""
    return call("bitwise_and", call("gt", x, like(low, x)), call("lt", x, like(high, x)))


def _select(condition: Expr, a: Expr, b: Expr) -> Expr:
    return call("where", condition, a, b)


pointwise("aten.relu.default")(lambda x: call("relu", x))
pointwise("aten.relu6.default")(lambda x: hardtanh(x, 0.0, 6.0))
pointwise("aten.silu.default")(lambda x: _mul(x, call("sigmoid", x)))
pointwise("aten.mish.default")(lambda x: _mul(x, call("tanh", softplus(x))))
pointwise("aten._prelu_kernel.default", promoted=(0, 1))(
    lambda x, weight: _select(call("gt", x, like(0, x)), x, _mul(weight, x))
)
# gradients from the forward result y
pointwise("aten.sigmoid_backward.default", promoted=(0, 1))(lambda grad, y: _mul(_mul(grad, _one_minus(y)), y))
pointwise("aten.tanh_backward.default", promoted=(0, 1))(lambda grad, y: _mul(grad, _one_minus(_mul(y, y))))


@pointwise("aten.hardtanh.default")
def hardtanh(x: Expr, low: float = -1.0, high: float = 1.0) -> Expr:
    """x between low and high (relu6 is this, too)."""
    return clamp(x, like(low, x), like(high, x))


@pointwise("aten.hardsigmoid.default")
def hardsigmoid(x: Expr) -> Expr:
    """(x + 3) / 6 between 0 and 1."""
    return call("div", hardtanh(_add(x, like(3, x)), 0.0, 6.0), like(6, x))


@pointwise("aten.hardswish.default")
def hardswish(x: Expr) -> Expr:
    """x * hardsigmoid(x)."""
    return call("div", _mul(x, hardtanh(_add(x, like(3, x)), 0.0, 6.0)), like(6, x))


@pointwise("aten.softplus.default")
def softplus(x: Expr, beta: float = 1.0, threshold: float = 20.0) -> Expr:
    """log(1 + exp(beta * x)) / beta, x itself above the threshold."""
    scaled = scale(x, beta)
    smooth = call("log1p", call("exp", scaled))
    smooth = smooth if beta == 1 else call("div", smooth, like(beta, x))
    return _select(call("gt", scaled, like(threshold, x)), x, smooth)


@pointwise("aten.leaky_relu.default")
def leaky_relu(x: Expr, slope: float = 0.01) -> Expr:
    """x, times ``slope`` where it is negative."""
    return _select(call("gt", x, like(0, x)), x, scale(x, slope))


@pointwise("aten.elu.default")
def elu(x: Expr, alpha: float = 1.0, scale_by: float = 1.0, input_scale: float = 1.0) -> Expr:
    """scale * x above 0, scale * alpha * (exp(input_scale * x) - 1) elsewhere."""
    negative = scale(call("expm1", scale(x, input_scale)), alpha * scale_by)
    return _select(call("gt", x, like(0, x)), scale(x, scale_by), negative)


@pointwise("aten.threshold.default")
def threshold(x: Expr, limit: float, value: float) -> Expr:
    """x above ``limit``, ``value`` elsewhere; nan stays nan."""
    return _select(call("le", x, like(limit, x)), like(value, x), x)


@pointwise("aten.gelu.default")
def gelu(x: Expr, *, approximate: str = "none") -> Expr:
    """x times the normal distribution function of x, exact or by tanh."""
    if approximate == "none":
        return _mul(scale(x, 0.5), _add(like(1, x), call("erf", scale(x, _SQRT_HALF))))
    return _mul(scale(x, 0.5), _add(like(1, x), call("tanh", _gelu_inner(x))))


def _gelu_inner(x: Expr) -> Expr:
    cube = _mul(_mul(x, x), x)
    return scale(_add(x, scale(cube, _GELU_CUBIC)), _SQRT_2_OVER_PI)


@pointwise("aten.gelu_backward.default", promoted=(0, 1))
def gelu_backward(grad: Expr, x: Expr, *, approximate: str = "none") -> Expr:
    """grad * d gelu / dx."""
    one = like(1, x)
    if approximate == "none":
        distribution = scale(_add(one, call("erf", scale(x, _SQRT_HALF))), 0.5)
        density = scale(call("exp", scale(_mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
        return _mul(grad, _add(distribution, _mul(x, density)))
    tangent = call("tanh", _gelu_inner(x))
    inner = scale(_add(one, scale(_mul(x, x), 3 * _GELU_CUBIC)), _SQRT_2_OVER_PI)
    right = _mul(_mul(scale(x, 0.5), _one_minus(_mul(tangent, tangent))), inner)
    return _mul(grad, _add(scale(_add(one, tangent), 0.5), right))


@pointwise("aten.silu_backward.default", promoted=(0, 1))
def silu_backward(grad: Expr, x: Expr) -> Expr:
    """grad * s * (1 + x * (1 - s)) with s = sigmoid(x)."""
    s = call("sigmoid", x)
    return _mul(_mul(grad, s), _add(like(1, x), _mul(x, _one_minus(s))))


@pointwise("aten.threshold_backward.default", promoted=(0, 1))
def threshold_backward(grad: Expr, x: Expr, limit: float) -> Expr:
    """grad where x is above the limit (relu's gradient, with 0)."""
    return _select(call("le", x, like(limit, x)), like(0, grad), grad)


@pointwise("aten.hardtanh_backward.default", promoted=(0, 1))
def hardtanh_backward(grad: Expr, x: Expr, low: float, high: float) -> Expr:
    """grad where x is strictly between the bounds."""
    outside = call("bitwise_or", call("le", x, like(low, x)), call("ge", x, like(high, x)))
    return _select(outside, like(0, grad), grad)


@pointwise("aten.hardsigmoid_backward.default", promoted=(0, 1))
def hardsigmoid_backward(grad: Expr, x: Expr) -> Expr:
    """grad / 6 where x is strictly between -3 and 3."""
    return _select(_between(x, -3, 3), scale(grad, 1 / 6), like(0, grad))


@pointwise("aten.hardswish_backward.default", promoted=(0, 1))
def hardswish_backward(grad: Expr, x: Expr) -> Expr:
    """0 up to -3, grad from 3 on, grad * (x / 3 + 1/2) between."""
    middle = _mul(grad, _add(call("div", x, like(3, x)), like(0.5, x)))
    upper = _select(call("lt", x, like(3, x)), middle, grad)
    return _select(call("le", x, like(-3, x)), like(0, grad), upper)


@pointwise("aten.leaky_relu_backward.default", promoted=(0, 1))
def leaky_relu_backward(grad: Expr, x: Expr, slope: float, _is_result: bool) -> Expr:
    """grad, times ``slope`` where x is not positive (the sign of the result is that of x)."""
    return _select(call("gt", x, like(0, x)), grad, scale(grad, slope))


@pointwise("aten.elu_backward.default", promoted=(0, 5))
def elu_backward(grad: Expr, alpha: float, scale_by: float, input_scale: float, is_result: bool, x_or_y: Expr) -> Expr:
    """grad * d elu / dx, from the input or from the result."""
    slope = alpha * scale_by * input_scale
    if is_result:
        negative = _mul(scale(grad, input_scale), _add(x_or_y, like(alpha * scale_by, x_or_y)))
    else:
        negative = _mul(scale(grad, slope), call("exp", scale(x_or_y, input_scale)))
    return _select(call("le", x_or_y, like(0, x_or_y)), negative, scale(grad, scale_by))


@pointwise("aten.softplus_backward.default", promoted=(0, 1))
def softplus_backward(grad: Expr, x: Expr, beta: float, limit: float) -> Expr:
    """grad * sigmoid(beta * x), grad itself above the threshold."""
    scaled = scale(x, beta)
    return _select(call("gt", scaled, like(limit, x)), grad, _mul(grad, call("sigmoid", scaled)))


@pointwise("aten.native_dropout_backward.default")
def native_dropout_backward(grad: Expr, mask: Expr, factor: float) -> Expr:
    """grad * mask * factor: 0 where the mask dropped the element, but nan where grad is nan or infinite."""
    return scale(_mul(grad, cast(mask, grad.dtype)), factor)
