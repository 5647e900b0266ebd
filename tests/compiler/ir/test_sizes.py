"""Sizes with formulas: the same numbers as plain ints at every size that the guards let through."""

from __future__ import annotations

import copy
import math
import operator
import pickle
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import sympy

from optfuse.compiler.ir.index_expressions import bounds
from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.compiler.ir.size_formula import Formula, add, divide, evaluate, multiply, number, symbol
from optfuse.compiler.ir.size_formula import bounds as formula_bounds
from optfuse.compiler.ir.sizes import Size, divisors, hint

ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod)
COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def decisions(low: float = 2, high: float = math.inf, **hints: int) -> Decisions:
    hints = hints or {"s0": 12, "s1": 7}
    return Decisions(dict(hints), dict.fromkeys(hints, (low, high)))


def copy_by_pickle(value: int) -> int:
    return pickle.loads(pickle.dumps(value))


def build(draw: random.Random, symbols: list[int]) -> list[int]:
    """A random straight-line program over sizes; what it computes may depend on comparisons."""
    values: list[int] = [*symbols, 0, 1, 3, 8, 768]
    for _ in range(10):
        a, b = draw.choice(values), draw.choice(values)
        step = draw.choice((*ARITHMETIC, *COMPARISONS, max, divmod))
        if step in COMPARISONS:
            values.append(a + 1 if step(a, b) else b - 1)
        elif step in (operator.floordiv, operator.mod, divmod) and b == 0:
            values.append(a)
        else:
            result = step(a, b)
            values += result if isinstance(result, tuple) else (result,)
    return values


@pytest.mark.parametrize("seed", range(60))
def test_a_program_has_its_own_values_wherever_its_guards_hold(seed: int) -> None:
    """Also the count of values, thus the paths taken, agrees with plain ints; at the hint the guards always hold."""
    made = decisions()
    symbolic = build(random.Random(seed), [Size.symbol("s0", made), Size.symbol("s1", made)])
    assert made.holds(made.hints)
    draw = random.Random(seed)
    sizes = [made.hints, *({"s0": draw.randint(2, 20), "s1": draw.randint(2, 20)} for _ in range(40))]
    for values in sizes:
        if made.holds(values):
            plain = build(random.Random(seed), [values["s0"], values["s1"]])
            assert [evaluate(x.formula, values) if isinstance(x, Size) else x for x in symbolic] == plain


def test_most_drawn_programs_hold_at_other_sizes_than_the_hint() -> None:
    """The property above is not empty: enough drawn sizes pass the guards."""
    passed = 0
    for seed in range(60):
        made = decisions()
        build(random.Random(seed), [Size.symbol("s0", made), Size.symbol("s1", made)])
        passed += made.holds({"s0": 13, "s1": 7}) + made.holds({"s0": 40, "s1": 9})
    assert passed > 30


def test_division_drops_what_the_divisor_divides() -> None:
    made = decisions()
    s = Size.symbol("s0", made)
    assert str(s * 768 // 768) == "s0"
    assert type(s * 768 % 768) is int
    assert str((s * 768 + 5) // 768) == "s0"
    assert (s * 768 + 5) % 768 == 5
    assert type(s * 768 // s) is int
    assert str((s + 15) // 16) == "((s0 + 15) // 16)"
    assert not made.guards


def test_divisors_hold_at_every_size() -> None:
    made = decisions()
    s, t = (Size.symbol(name, made) for name in ("s0", "s1"))
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors(s * 197) == [1, 197]
    assert divisors(s * t * 12 + s * 18) == [1, 2, 3, 6]
    assert divisors(s + 1) == [1]
    assert not made.guards


def test_ranges_decide_without_a_guard_and_guards_narrow_them() -> None:
    made = decisions()
    s = Size.symbol("s0", made)
    assert s > 1
    assert s * 4 >= 8
    assert not made.guards
    assert s > 5
    assert s >= 6
    assert s > 3
    assert [str(guard) for guard in made.guards] == ["(-s0 + 5) < 0"]
    assert not made.holds({"s0": 5, "s1": 7})
    assert made.holds({"s0": 6, "s1": 7})


@pytest.mark.spread(7)
@pytest.mark.parametrize("offset", range(-9, 10))
@pytest.mark.parametrize("factor", [-3, -2, -1, 1, 2, 3])
@pytest.mark.parametrize("compare", COMPARISONS)
def test_narrowed_ranges_lose_no_size_that_the_guard_lets_through(
    compare: Callable[[int, int], bool], factor: int, offset: int
) -> None:
    made = decisions(low=-10, high=10, s0=2)
    compare(Size.symbol("s0", made) * factor + offset, 0)
    low, high = made.ranges["s0"]
    assert all(low <= x <= high for x in range(-10, 11) if made.holds({"s0": x}))


def test_a_size_matches_no_plain_number_in_a_dictionary() -> None:
    made = decisions()
    s = Size.symbol("s0", made)
    assert 12 not in {s: "size"}
    assert s not in {12: "number"}
    assert s + 1 in {1 + s: "size"}
    assert not made.guards


def test_reading_the_number_guards_it_and_a_hint_does_not() -> None:
    made = decisions()
    s = Size.symbol("s0", made)
    assert type(hint(s)) is int
    assert f"{s * 768}" == "(s0*768)"
    assert not made.guards
    assert type(int(s)) is int
    assert [str(guard) for guard in made.guards] == ["(s0 - 12) == 0"]


def test_division_by_a_size_guards_that_it_is_not_zero() -> None:
    made = decisions(low=0)
    assert 100 // Size.symbol("s0", made) == 8
    assert not made.holds({"s0": 0, "s1": 7})


def test_in_sympy_a_size_is_its_formula() -> None:
    made = decisions()
    i = sympy.Symbol("i0", integer=True, nonnegative=True)
    for index in (
        i * (Size.symbol("s0", made) * 3),
        (Size.symbol("s0", made) * 3) * i,
        sympy.sympify(Size.symbol("s0", made)),
    ):
        assert {str(x) for x in index.free_symbols} >= {"s0"}
    assert not made.guards


def test_no_method_of_int_is_inherited_that_reads_the_number() -> None:
    """``__index__`` cannot be intercepted: C code does not call it for a subclass of int."""
    of_the_object = {*dir(object), "__index__", "from_bytes"} - {"__eq__", "__hash__", "__lt__", "__repr__"}
    assert {name for name in dir(int) if name not in of_the_object and name not in vars(Size)} == set()


@pytest.mark.parametrize(
    "read",
    [
        Fraction, float, round, math.ceil, copy_by_pickle, lambda x: x / 2, lambda x: 2**x, lambda x: x**2,
        lambda x: x & 7, lambda x: 7 | x, lambda x: ~x, lambda x: 1 << x,
        lambda x: x.bit_length(), lambda x: x.as_integer_ratio(), lambda x: f"{x:04d}",
    ],
)  # fmt: skip
def test_what_reads_the_number_guards_it(read: Callable[[int], Any]) -> None:
    made = decisions()
    read(Size.symbol("s0", made))
    assert [str(guard) for guard in made.guards] == ["(s0 - 12) == 0"]


def test_copies_of_a_size_record_in_the_same_build() -> None:
    made = decisions()
    assert copy.deepcopy((Size.symbol("s0", made),))[0] > 5
    assert [str(guard) for guard in made.guards] == ["(-s0 + 5) < 0"]


def test_the_bounds_of_an_index_keep_the_formula() -> None:
    """A nest over ``s0 * 64`` points reads below the end of its buffer for every size."""
    made = decisions()
    i = sympy.Symbol("i0", integer=True, nonnegative=True)
    low, high = bounds(i * 3 + 5, {i: (0, Size.symbol("s0", made) * 64 - 1)}) or (None, None)
    assert (low, str(high)) == (5, "(s0*192 + 2)")
    assert not made.guards


def test_quotients_in_kernels_have_numerators_that_are_not_negative() -> None:
    """Triton rounds them toward 0."""
    made = decisions(s0=12, s1=7)
    s, t = Size.symbol("s0", made), Size.symbol("s1", made)
    assert str((s * t + s - 1) // s) == "s1"
    assert (-1 % s) - s == -1
    assert str(-(-s // 16)) == "((s0 + 15) // 16)"
    for one, other in ((-s) // 5, (-s) % 5), ((s - 20) // 3, (s - 20) % 3), ((3 - t) // s, (3 - t) % s):
        for size in (one, other):
            assert isinstance(size, Size)
            for monomial, _ in size.formula.terms:
                for atom in monomial:
                    assert isinstance(atom, str) or evaluate(atom.numerator, made.hints) >= 0
    assert (hint((-s) // 5), hint((s - 20) // 3), hint((3 - t) % s)) == (-12 // 5, -8 // 3, -4 % 12)


def test_sizes_rounded_up_are_seen_to_hold_what_they_round() -> None:
    """A length padded to a multiple of four, and the halves of one that a scan splits again and again."""
    made = decisions(s0=12)
    s = Size.symbol("s0", made)
    padded = s + (4 - s % 4) % 4
    assert padded >= s
    assert padded - s < 4
    assert s - s % 4 >= 0
    halves = (s // 2 + 1) // 2 + (s + 1) // 2 + s // 4
    assert str(halves * 48) == "(s0*48)"
    assert str(s // 2 // 2) == "(s0 // 4)"
    assert not made.guards


def test_formulas_are_inside_of_their_bounds() -> None:
    draw, ranges = random.Random(0), {"s": (2.0, 40.0), "t": (2.0, 40.0)}

    def drawn(depth: int) -> Formula:
        kind = draw.randrange(5) if depth else 0
        if kind == 0:
            return draw.choice([symbol("s"), symbol("t"), number(draw.randrange(-3, 6))])
        one = drawn(depth - 1)
        if kind == 1:
            return multiply(one, drawn(depth - 1))
        if kind == 2:
            return add(one, drawn(depth - 1), draw.choice([1, -1, 2]))
        return divide(one, number(draw.choice([2, 3, 4, 6])), ranges)[kind - 3]

    for _ in range(2000):
        formula, sizes = drawn(4), {name: draw.randint(2, 40) for name in ranges}
        low, high = formula_bounds(formula, ranges)
        assert low <= evaluate(formula, sizes) <= high
        assert evaluate(formula, sizes) == eval(str(formula), {}, dict(sizes))
