import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

from optfuse.compiler.ir.index_expressions import affine, bounds, evaluate, format_index, parse_index
from optfuse.compiler.ir.nodes import ivar, rvar, tvar
from optfuse.errors import InvalidGraphError

SYMBOLS = (ivar(0), ivar(1), rvar(0))
LEAVES = st.sampled_from(SYMBOLS) | st.integers(-9, 9).map(sympy.Integer)


def _combine(children):
    pair, divided = st.tuples(children, children), st.tuples(children, st.integers(1, 7))
    return st.one_of(
        pair.map(lambda p: p[0] + p[1]),
        pair.map(lambda p: p[0] * p[1]),
        divided.map(lambda p: sympy.floor(p[0] / p[1])),
        divided.map(lambda p: sympy.Mod(p[0], p[1])),
    ).filter(_in_grammar)


def _in_grammar(expr):
    """Sympy makes powers of equal factors; no layout does."""
    return not expr.has(sympy.Pow)


INDICES = st.recursive(LEAVES, _combine, max_leaves=8)
POINTS = st.tuples(*(st.integers(0, 6) for _ in SYMBOLS))


@given(INDICES, POINTS)
def test_evaluate_is_substitution_for_ints_and_tensors(expr, point):
    values = dict(zip(SYMBOLS, point, strict=True))
    expected = int(expr.subs(values))
    assert evaluate(expr, values) == expected
    tensors = {symbol: torch.tensor([value, value]) for symbol, value in values.items()}
    assert torch.as_tensor(evaluate(expr, tensors)).expand(2).tolist() == [expected, expected]


def test_a_leading_minus_binds_to_a_whole_quotient_or_remainder():
    """``-i0 // 2`` is ``(-i0) // 2`` in Python, another number than ``-(i0 // 2)`` wherever i0 is odd."""
    i0, i1 = ivar(0), ivar(1)
    for expr in (i1 - sympy.floor(i0 / 2), i1 - sympy.Mod(i0, 3), -i0 - sympy.floor(i0 / 2), -sympy.floor(i0 / 2)):
        assert parse_index(format_index(expr)) == expr
    assert format_index(i1 - sympy.floor(i0 / 2)) == "-(i0 // 2) + i1"


@given(INDICES, POINTS)
def test_text_reads_back_as_the_same_index(expr, point):
    text = format_index(expr)
    back = parse_index(text)
    assert format_index(back) == text
    assert evaluate(back, dict(zip(SYMBOLS, point, strict=True))) == evaluate(
        expr, dict(zip(SYMBOLS, point, strict=True))
    )
    # the text means in Python what the index means
    assert eval(text, {}, {s.name: v for s, v in zip(SYMBOLS, point, strict=True)}) == evaluate(
        expr, dict(zip(SYMBOLS, point, strict=True))
    )


@given(INDICES, POINTS)
def test_bounds_hold_every_value(expr, point):
    interval = bounds(expr, dict.fromkeys(SYMBOLS, (0, 6)))
    assert interval is not None
    assert interval[0] <= evaluate(expr, dict(zip(SYMBOLS, point, strict=True))) <= interval[1]


def test_bounds_of_an_affine_index_are_tight():
    assert bounds(3 * ivar(0) - 2 * ivar(1) + 1, {ivar(0): (0, 4), ivar(1): (1, 3)}) == (-5, 11)
    assert bounds(ivar(0) + tvar(0), {ivar(0): (0, 4)}) is None


def test_affine():
    assert affine(3 * (ivar(0) + 2) - ivar(1)) == ({ivar(0): 3, ivar(1): -1}, 6)
    assert affine(sympy.floor(ivar(0) / 3)) is None
    assert affine(ivar(0) * ivar(1)) is None


def test_terms_outside_the_grammar_are_refused():
    with pytest.raises(InvalidGraphError, match="outside the grammar"):
        evaluate(ivar(0) / 2, {ivar(0): 4})
    with pytest.raises(InvalidGraphError, match="i1 has no value"):
        evaluate(ivar(1), {ivar(0): 4})


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "i0.args", "i0[0]", "x", "i0 / 2", "i0 ** 9", "1.5", "i0 //", "i0 % 0", "(" * 5000, "True"],
)
def test_no_other_text_is_an_index(text):
    with pytest.raises(ValueError, match="no index expression"):
        parse_index(text)
