"""Index text means what the linear form means, at every point."""

from __future__ import annotations

import itertools

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from optfuse.compiler.codegen.addresses import Addresses
from optfuse.compiler.codegen.index_arithmetic import Axis, Linear, linearize, runs
from optfuse.compiler.codegen.kernel_writer import Writer
from optfuse.compiler.ir.index_expressions import evaluate
from optfuse.compiler.ir.kernel_spec import rdigit, xdigit
from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.compiler.ir.sizes import Size
from optfuse.errors import InvalidGraphError


def space(draw, digit, name):
    sizes = draw(st.lists(st.integers(2, 5), min_size=1, max_size=3))
    return Axis(name, tuple((digit(k), size) for k, size in enumerate(sizes)))


@st.composite
def indices(draw):
    """Two axes and an index over their digits: affine terms, quotients and remainders, some of them negative."""
    axes = (space(draw, xdigit, "x"), space(draw, rdigit, "r"))
    digits = [digit for axis in axes for digit, _ in axis.digits]

    def affine():
        factors = draw(st.lists(st.integers(-12, 12), min_size=len(digits), max_size=len(digits)))
        return sympy.Add(*(f * d for f, d in zip(factors, digits, strict=True)), draw(st.integers(-9, 9)))

    expr = affine()
    if draw(st.booleans()):
        expr += draw(st.integers(-3, 3)) * sympy.floor(affine() / draw(st.integers(2, 7)))
    if draw(st.booleans()):
        expr += draw(st.integers(-3, 3)) * sympy.Mod(affine(), draw(st.integers(2, 7)))
    return axes, expr


def contiguous(axis: Axis) -> Linear:
    """Digits whose strides make the flat position."""
    form, stride = Linear(), 1
    for digit, size in reversed(axis.digits):
        form, stride = form.plus(Linear({digit: stride})), stride * size
    return form


def truncated(a: int, b: int) -> int:
    """Division as the hardware does it."""
    return -(-a // b) if a < 0 else a // b


class Device(int):
    """An integer whose // and % round toward zero."""

    def __floordiv__(self, other):
        return Device(truncated(int(self), int(other)))

    def __mod__(self, other):
        return Device(int(self) - truncated(int(self), int(other)) * int(other))

    def __add__(self, other):
        return Device(int(self) + int(other))

    def __sub__(self, other):
        return Device(int(self) - int(other))

    def __mul__(self, other):
        return Device(int(self) * int(other))

    __rmul__ = __mul__
    __radd__ = __add__

    def __neg__(self):
        return Device(-int(self))


@given(indices())
def test_text_agrees_with_the_expression_everywhere(case):
    axes, expr = case
    writer = Writer({"xindex", "rindex"})
    addresses = Addresses(writer, axes)
    env = {digit: Linear({digit: 1}) for digit in addresses.sizes}
    value = addresses.index(linearize(expr, env, addresses.division))
    program = "\n".join([*(line.text for line in writer.outer.lines), f"result = {value.text}"])
    code = compile(program, "index", "exec")
    for xs in itertools.product(*(range(size) for _, size in axes[0].digits)):
        for rs in itertools.product(*(range(size) for _, size in axes[1].digits)):
            at = dict(zip(addresses.sizes, (*xs, *rs), strict=True))
            flat = [evaluate_form(contiguous(axis), at) for axis in axes]
            variables = {"xindex": Device(flat[0]), "rindex": Device(flat[1])}
            exec(code, variables)
            assert int(variables["result"]) == evaluate(expr, at)


def evaluate_form(form: Linear, at) -> int:
    return form.constant + sum(c * at[digit] for digit, c in form.terms.items())


@given(indices())
def test_bounds_hold_everywhere(case):
    axes, expr = case
    addresses = Addresses(Writer(()), axes)
    form = linearize(expr, {d: Linear({d: 1}) for d in addresses.sizes}, addresses.division)
    low, high = form.bounds(addresses.sizes)
    for values in itertools.product(*(range(size) for size in addresses.sizes.values())):
        assert low <= evaluate(expr, dict(zip(addresses.sizes, values, strict=True))) <= high


def test_contiguous_digits_are_one_run():
    axis = Axis("x", tuple((xdigit(k), size) for k, size in enumerate((3, 4, 5))))
    (run,) = runs(contiguous(axis), [axis])
    assert run.of("xindex") == "xindex"
    (run,) = runs(Linear({xdigit(0): 8, xdigit(1): 2}), [axis])
    assert (run.of("xindex"), run.coefficient) == ("xindex // 5", 2)
    assert [r.of("xindex") for r in runs(Linear({xdigit(1): 1, xdigit(2): 7}), [axis])] == [
        "xindex % 5",
        "xindex // 5 % 4",
    ]


def test_terms_outside_the_grammar_are_refused():
    with pytest.raises(InvalidGraphError, match="grammar"):
        linearize(xdigit(0) ** 2, {xdigit(0): Linear({xdigit(0): 1})}, lambda *_: Linear())
    with pytest.raises(InvalidGraphError, match="no variable"):
        linearize(xdigit(1), {}, lambda *_: Linear())


def test_the_width_of_an_index_does_not_depend_on_which_of_its_ends_is_farther_out():
    """From -8 to 4 * rows: at two rows both are as far from 0, and a schedule would serve two rows only."""
    decisions = Decisions({"rows": 2}, {"rows": (2, 2**31 - 1)})
    rows = Size.symbol("rows", decisions)
    addresses = Addresses(Writer(()), (Axis("x", ((xdigit(0), 4 * rows + 9),)),))
    assert addresses.exceeds_int32(Linear({xdigit(0): 1}, -8)) is False
    assert decisions.holds({"rows": 100})
    assert not decisions.holds({"rows": 2**29})
