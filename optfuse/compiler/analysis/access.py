"""The loads and stores of a nest, as integer layouts where their indices are affine."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from optfuse.compiler.ir.index_expressions import affine
from optfuse.compiler.ir.nodes import Load, LoopNest, ivar, rvar
from optfuse.compiler.ir.traversal import dot_in, loads_under, operands, stored


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store of a nest.

    ``coefficients`` (elements, one for each i dimension and then each r dimension) and ``offset`` give the address
    when the index is affine; ``coefficients`` is None otherwise. An indirect access adds terms that depend on data.
    ``exact`` means that this is the address touched at every iteration: affine, not guarded, not indirect. A factor of
    a product of matrices is read at each of ``terms`` places; its coefficients are those of its row or column.
    """

    buffer: str
    coefficients: tuple[int, ...] | None
    offset: int
    guarded: bool
    indirect: bool
    load: Load | None = None
    terms: int = 1

    @property
    def exact(self) -> bool:
        """Whether the address is a known affine function of the iteration, without condition."""
        return self.coefficients is not None and not self.guarded and not self.indirect and self.terms == 1


@dataclass(frozen=True, slots=True)
class NestAccesses:
    """All accesses of a nest, loads without repeats.

    A buffer that is updated by an indirect store is among the loads, too, without a Load: the elements that keep their
    values come from the ops that wrote it before.
    """

    loads: tuple[Access, ...]
    stores: tuple[Access, ...]


def accesses(nest: LoopNest) -> NestAccesses:
    """The loads and stores of a nest, with their layouts over (i dimensions, r dimensions)."""
    symbols = [ivar(k) for k in range(len(nest.sizes))] + [rvar(k) for k in range(len(nest.rsizes))]
    loads: dict[Load, Access] = {}
    dot = dot_in(nest)
    if dot is not None:
        for load in (dot.left, dot.right):
            coefficients, offset = _layout(load.index, symbols)
            loads[load] = Access(load.buffer, coefficients, offset, False, False, load, dot.terms)
    for root in operands(nest) + stored(nest):
        for load in loads_under([root]):
            if load not in loads:
                coefficients, offset = _layout(load.index, symbols)
                loads[load] = Access(load.buffer, coefficients, offset, bool(load.guards), bool(load.indirect), load)
    stores = []
    for store in nest.stores:
        coefficients, offset = _layout(store.index, symbols)
        stores.append(Access(store.buffer, coefficients, offset, guarded=False, indirect=bool(store.indirect)))
    kept = [access for access in stores if access.indirect]
    return NestAccesses((*loads.values(), *kept), tuple(stores))


def _layout(index: sympy.Expr, symbols: list[sympy.Symbol]) -> tuple[tuple[int, ...] | None, int]:
    form = affine(index)
    if form is None:
        return None, 0
    return tuple(form[0].get(symbol, 0) for symbol in symbols), form[1]
