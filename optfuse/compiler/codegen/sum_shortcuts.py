"""Find sums along r that need no pass over r of their own.

A sum of exponentials of differences from a maximum (softmax, log-sum-exp) is accumulated in the pass of the maximum:
the sum so far is rescaled when a larger value comes ("online softmax", Milakov and Gimelshein, 2018). The sum of a
value that is zero at all positions but one (the gradient of a gathered log-probability) is that value, if the position
lies in the row.

Both are recognized across members: the operand of a sum is traced back to where it is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import sympy

from optfuse.compiler.ir.dtypes import FLOAT8, HALF
from optfuse.compiler.ir.kernel_spec import KernelSpec, Member, rdigit, xdigit
from optfuse.compiler.ir.nodes import Call, Const, Expr, Iota, Load, LoopNest, Result, ivar, rvar


@dataclass(frozen=True, slots=True)
class Place:
    """An expression of a member."""

    member: int
    expr: Expr


@dataclass(frozen=True, slots=True)
class Single:
    """A sum of ``value`` at r = ``position`` and 0 elsewhere. Neither varies along r, which has ``points`` points."""

    value: Place
    position: Place
    points: int


@dataclass(frozen=True, slots=True)
class Shortcuts:
    """The sums of a kernel without a pass of their own, by member.

    ``online``: sums of ``exp(x - max(x))``, with the member that computes the maximum; at most one for each maximum.
    ``single``: sums of one value.
    """

    online: Mapping[int, int] = field(default_factory=dict)
    single: Mapping[int, Single] = field(default_factory=dict)


def find_shortcuts(spec: KernelSpec) -> Shortcuts:
    """The shortcuts of a kernel's members."""
    tracer = _Tracer(spec)
    online: dict[int, int] = {}
    single: dict[int, Single] = {}
    for k, member in enumerate(spec.members):
        if member.full or _folds(member.nest) != "sum" or prod(spec.space.r) == 1:
            continue
        folded = tracer.source(Place(k, member.nest.reductions[0].operand))
        match folded.expr:
            case Call("exp", (difference,), "float32" | "float64"):
                largest = tracer.largest(Place(folded.member, difference))
                if largest is not None and largest not in online.values():
                    online[k] = largest
            case Call("where", (condition, value, Const(value=0))):
                position = tracer.position(Place(folded.member, condition))
                chosen = tracer.steady(Place(folded.member, value))
                if position is not None and chosen is not None:
                    single[k] = Single(chosen, position, prod(spec.space.r))
            case _:
                pass
    return Shortcuts(online, single)


def _folds(nest: LoopNest) -> str:
    """The kind of a nest's one reduction; "" if it has none or several."""
    return nest.reductions[0].kind if len(nest.reductions) == 1 else ""


class _Tracer:
    """Traces values back through the members that compute them."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = spec
        self.producers = {
            store.buffer: (k, store.value)
            for k, member in enumerate(spec.members)
            for store in member.nest.stores
            if store.buffer in spec.registers
        }
        self.digits: list[dict[sympy.Symbol, sympy.Expr]] = [_variables(spec, member) for member in spec.members]

    def source(self, place: Place) -> Place:
        """The expression that computes a value, behind casts without effect in kernels and through full members."""
        while True:
            match place.expr:
                case Call("cast", (inner,), "float32") if inner.dtype in HALF or inner.dtype == "float32":
                    place = Place(place.member, inner)
                case Call("cast", (inner,), dtype) if dtype in HALF and inner.dtype == "float32":
                    place = Place(place.member, inner)
                case Load(buffer=buffer, dtype=dtype) if (
                    self._made(place.member, buffer)
                    and self.spec.members[self.producers[buffer][0]].full
                    and dtype not in FLOAT8
                ):
                    place = Place(*self.producers[buffer])
                case _:
                    return place

    def largest(self, place: Place) -> int | None:
        """The member that computes the maximum of ``x - max(x)``; None for other expressions."""
        match self.source(place):
            case Place(member, Call("sub", (x, limit))):
                made = self._outer(self.source(Place(member, limit)))
            case _:
                return None
        if made is None or _folds(self.spec.members[made.member].nest) != "max" or not isinstance(made.expr, Result):
            return None
        operand = self.spec.members[made.member].nest.reductions[0].operand
        return made.member if self.same(Place(made.member, operand), Place(member, x)) else None

    def _outer(self, place: Place) -> Place | None:
        """The expression that a member stored to a register that is loaded here; None for other expressions."""
        match place.expr:
            case Load(buffer=buffer) if self._made(place.member, buffer):
                producer, stored = self.producers[buffer]
                return self.source(Place(producer, stored))
            case _:
                return None

    def position(self, place: Place) -> Place | None:
        """The position of ``r == position``; None for other expressions."""
        match self.source(place):
            case Place(member, Call("eq", (a, b))):
                for one, other in ((a, b), (b, a)):
                    if self._counts(self.source(Place(member, one))):
                        return self.steady(Place(member, other))
            case _:
                pass
        return None

    def _counts(self, place: Place) -> bool:
        """Whether a value is the flat position along r."""
        if not isinstance(place.expr, Iota):
            return False
        flat, stride = sympy.Integer(0), 1
        for k, size in reversed(list(enumerate(self.spec.space.r))):
            flat += stride * rdigit(k) if size > 1 else 0
            stride *= size
        return _moved(place.expr.index, self.digits[place.member]) == flat

    def steady(self, place: Place) -> Place | None:
        """The source of a value that does not vary along r; None if it may vary."""
        place = self.source(place)
        return place if self._is_steady(place) else None

    def _is_steady(self, place: Place) -> bool:
        along = {rdigit(k) for k in range(len(self.spec.space.r))}
        env = self.digits[place.member]
        match place.expr:
            case Call(args=args):
                return all(self._is_steady(Place(place.member, arg)) for arg in args)
            case Load(buffer=buffer) if self._made(place.member, buffer):
                return not self.spec.members[self.producers[buffer][0]].full
            case Load(index=index, guards=guards, indirect=indirect):
                moved = [_moved(part, env) for part in (index, *(g.expr for g in guards))]
                steady = not any(part.free_symbols & along for part in moved)
                return steady and all(self._is_steady(Place(place.member, part)) for part in indirect)
            case Iota(index=index):
                return not _moved(index, env).free_symbols & along
            case _:
                return isinstance(place.expr, Const)

    def _made(self, member: int, buffer: str) -> bool:
        """Whether a member reads a buffer from a register."""
        return buffer in self.producers and self.producers[buffer][0] < member

    def same(self, one: Place, other: Place) -> bool:
        """Whether two members compute the same value at each point."""
        one, other = self.source(one), self.source(other)
        a, b = one.expr, other.expr
        match a, b:
            case (Call(), Call()):
                if (a.function, a.dtype, len(a.args)) != (b.function, b.dtype, len(b.args)):
                    return False
                return self._all_same(one.member, a.args, other.member, b.args)
            case (Load(), Load()):
                made = self._made(one.member, a.buffer), self._made(other.member, b.buffer)
                if a.buffer != b.buffer or made[0] != made[1] or a.other != b.other:
                    return False
                if made[0]:  # from a register, at the same point
                    return True
                at = [self._addresses(one.member, a), self._addresses(other.member, b)]
                same = self._all_same(one.member, a.indirect, other.member, b.indirect)
                return at[0] == at[1] and same
            case (Iota(), Iota()):
                indices = [_moved(i.index, self.digits[p.member]) for i, p in ((a, one), (b, other))]
                return a.dtype == b.dtype and indices[0] == indices[1]
            case _:
                return isinstance(a, Const) and a == b

    def _all_same(self, one: int, some: Sequence[Expr], other: int, others: Sequence[Expr]) -> bool:
        pairs = zip(some, others, strict=False)
        return len(some) == len(others) and all(self.same(Place(one, a), Place(other, b)) for a, b in pairs)

    def _addresses(self, member: int, load: Load) -> tuple[object, ...]:
        env = self.digits[member]
        guards = [(_moved(g.expr, env), g.lower, g.upper) for g in load.guards]
        return (_moved(load.index, env), *guards)


def _variables(spec: KernelSpec, member: Member) -> dict[sympy.Symbol, sympy.Expr]:
    """A member's variables in terms of the digits of the space; a digit of size 1 is 0."""
    single = {xdigit(k): sympy.Integer(0) for k, size in enumerate(spec.space.x) if size == 1}
    single |= {rdigit(k): sympy.Integer(0) for k, size in enumerate(spec.space.r) if size == 1}
    env = {ivar(k): expr.xreplace(single) for k, expr in enumerate(member.ivars)}
    return env | {rvar(k): expr.xreplace(single) for k, expr in enumerate(member.rvars)}


def _moved(index: sympy.Expr, env: Mapping[sympy.Symbol, sympy.Expr]) -> sympy.Expr:
    return _expanded(index.xreplace(dict(env)))


@lru_cache(maxsize=65536)
def _expanded(index: sympy.Expr) -> sympy.Expr:
    return sympy.expand(index)
