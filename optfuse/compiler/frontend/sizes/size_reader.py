"""Where the sizes that a graph's symbols stand for are read from the arguments of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import GraphModule

from optfuse.compiler.frontend.torch_internals.torch_bridge import tree_leaves
from optfuse.compiler.frontend.torch_internals.torch_sizes import expression_of, is_symbolic, symbols_of

Number = int | float
#: The values of a graph's sizes, in the order of ``SizeReader.symbols``.
Sizes = tuple[Number, ...]
#: How to read a number from an argument: None is the argument itself, ("size", d), ("stride", d), ("offset", 0) and
#: ("item", 0), its only element, are a tensor's.
Place = tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class SizeReader:
    """Reads the values of a graph's symbols from its arguments.

    ``places`` has, per symbol, the number of an argument (lists of arguments are counted leaf by leaf) and the place.
    Of symbols that no place holds alone, the expressions that have them stand among ``symbols``: ``u0 + u1``.
    """

    symbols: tuple[sympy.Basic, ...]
    places: tuple[tuple[int, Place], ...]
    nested: bool
    #: those of which the sizes, strides or the offset of a tensor are made
    in_tensors: frozenset[sympy.Basic] = frozenset()

    @property
    def symbols_alone(self) -> bool:
        """Whether each symbol has a place, so that none is only part of an expression."""
        return all(isinstance(symbol, sympy.Symbol) for symbol in self.symbols)

    @property
    def floats_alone(self) -> bool:
        """Whether all symbols are floats."""
        return bool(self.places) and all(place == ("item", 0) for _, place in self.places)

    def read(self, arguments: Sequence[Any]) -> Sizes:
        """The symbols' values."""
        leaves = tree_leaves(list(arguments)) if self.nested else arguments
        return tuple([_read(leaves[k], place) for k, place in self.places])


def _read(argument: Any, place: Place) -> Number:
    match place:
        case None:
            return argument
        case ("size", axis):
            return argument.size(axis)
        case ("stride", axis):
            return argument.stride(axis)
        case ("item", _):
            return argument.item()
        case _:
            return argument.storage_offset()


def size_reader(graph: GraphModule, example_inputs: Sequence[Any]) -> SizeReader | None:
    """Where each symbol of a graph's arguments can be read; None if no argument has one.

    A symbol is a size, an integer, or a float, which torch.compile hands over as a tensor whose item is taken.
    """
    found: dict[sympy.Basic, tuple[int, Place]] = {}
    mixed: dict[sympy.Basic, tuple[int, Place]] = {}
    in_tensors: set[sympy.Basic] = set()
    for k, value in enumerate(tree_leaves(list(example_inputs))):
        for place, size in _symbolic_sizes(value):
            expression = expression_of(size)
            (found if isinstance(expression, sympy.Symbol) else mixed).setdefault(expression, (k, place))
    for k, placeholder in enumerate(graph.graph.find_nodes(op="placeholder")):
        for tensor in tree_leaves(placeholder.meta.get("example_value")):
            if isinstance(tensor, torch.Tensor):
                in_tensors.update(*(symbols_of(n) for _, n in _symbolic_sizes(tensor)))
        for user in placeholder.users:
            number = user.meta.get("example_value")
            if user.target == "item" and is_symbolic(number) and isinstance(expression_of(number), sympy.Symbol):
                found.setdefault(expression_of(number), (k, ("item", 0)))
    found |= {each: place for each, place in mixed.items() if not each.free_symbols <= found.keys()}
    nested = any(isinstance(value, (list, tuple, dict)) for value in example_inputs)
    return SizeReader(tuple(found), tuple(found.values()), nested, frozenset(in_tensors)) if found else None


def _symbolic_sizes(value: Any) -> list[tuple[Place, Any]]:
    if is_symbolic(value):
        return [(None, value)]
    if not isinstance(value, torch.Tensor):
        return []
    places: list[tuple[Place, Any]] = [(("size", d), n) for d, n in enumerate(value.shape)]
    if value.layout is torch.strided:
        places += [(("stride", d), n) for d, n in enumerate(value.stride())]
        places.append((("offset", 0), value.storage_offset()))
    return [(place, n) for place, n in places if isinstance(n, torch.SymInt)]
