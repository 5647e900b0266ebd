"""A fused kernel in terms of the loop IR, the input of code generation.

A kernel iterates over flat x in [0, prod(space.x)) and, when ``space.r`` is not empty, flat r in [0, prod(space.r)) for
each x. x and r are mixed-radix numbers: their digits, major to minor, are the symbols X0, X1, ... and R0, R1, ... .
Each member gives its own iteration variables as affine functions of the digits.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from optfuse.compiler.ir.nodes import LoopNest


@dataclass(frozen=True, slots=True)
class Space:
    """Digit sizes, major to minor. ``r`` empty: no inner axis. ``x`` empty: one point."""

    x: tuple[int, ...]
    r: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """An op of a kernel: ``ivars[k]`` and ``rvars[k]`` are its i_k and r_k in terms of digits.

    ``full`` members run at every (x, r); the others at every x. A nest with reductions consumes (x, r) in its
    reductions, and its results and stores are per x (``full`` is then False for what it yields).

    A member of fewer points than the kernel (a broadcast value) is recomputed at each of them; its stores take effect
    only where all digits of ``once`` are 0.

    ``approximate``: its results are used in half precision only, so its special functions may have an error of a few
    units in float32's last place.
    """

    nest: LoopNest
    ivars: tuple[sympy.Expr, ...]
    rvars: tuple[sympy.Expr, ...]
    full: bool
    once: tuple[sympy.Symbol, ...] = ()
    approximate: bool = False


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """Members in topological order. A load of a buffer in ``registers`` takes the value that a member computed at the
    same point; every other load is from memory. Only stores to buffers in ``stores`` reach memory. Those in ``inplace``
    are written in the place of a buffer that the kernel reads, each element to the address read at the same point.
    ``symbols``: the names of the sizes that its formulas may have.
    """

    name: str
    space: Space
    members: tuple[Member, ...]
    registers: frozenset[str]
    stores: tuple[str, ...]
    inplace: frozenset[str] = frozenset()
    symbols: frozenset[str] = frozenset()


def xdigit(k: int) -> sympy.Symbol:
    """The k-th digit of x, major to minor."""
    return sympy.Symbol(f"X{k}", integer=True, nonnegative=True)


def rdigit(k: int) -> sympy.Symbol:
    """The k-th digit of r, major to minor."""
    return sympy.Symbol(f"R{k}", integer=True, nonnegative=True)
