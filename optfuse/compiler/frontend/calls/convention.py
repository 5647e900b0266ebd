"""Adapt a function of the graph's input tensors to the arguments with which torch calls a compiled graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from optfuse.compiler.frontend.calls.aliased_outputs import Window, as_view_of
from optfuse.compiler.frontend.calls.flat import Binding
from optfuse.compiler.frontend.calls.remainder import Remainder
from optfuse.compiler.frontend.torch_internals.torch_bridge import boxed, without_views
from optfuse.compiler.frontend.torch_internals.torch_sizes import expression_of, is_symbolic, static_value, symbols_of
from optfuse.compiler.ir.size_decisions import Decisions

#: Turns a graph into a function of its inputs (one tensor per placeholder, in order) that returns all of its outputs.
#: It may empty the list that it is given, so that what a forward graph saved is freed while the backward graph runs.
Program = Callable[[list[torch.Tensor]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Convention:
    """How torch's arguments and results map to a Captured's. ``kept``: which of torch's arguments are inputs.

    ``literals`` are outputs of fixed values or, in a graph for a range of sizes, of formulas of its ``symbols``;
    ``objects`` are outputs that are an argument as it was given: by position.
    ``numbers``: which arguments are ``symbols`` of a range of sizes, handed over behind the inputs. ``remainder``: what
    torch runs after the program. ``views``: outputs that are views of an argument, as (positions, argument): one
    view may be returned at several. Autograd must know them: it refuses writes into parts of a tensor with a gradient.
    """

    kept: tuple[int, ...]
    literals: tuple[tuple[int, object], ...]
    objects: tuple[tuple[int, int], ...] = ()
    windows: tuple[Window, ...] = ()
    numbers: tuple[int, ...] = ()
    symbols: tuple[sympy.Symbol, ...] = ()
    remainder: Remainder | None = None
    views: tuple[tuple[tuple[int, ...], int], ...] = ()

    @property
    def symbols_read(self) -> frozenset[sympy.Symbol]:
        """The symbols of its windows and of its outputs that are numbers."""
        return frozenset().union(
            *(window.symbols for window in self.windows), *(symbols_of(value) for _, value in self.literals)
        )

    def bind(self, function: Program) -> Callable[[list[Any]], Any]:
        """``function`` in torch's calling convention: all arguments in one list, which is emptied."""
        at_sizes = {tuple[int, ...](): (self.windows, self.literals)}
        rest = self.remainder
        sized = self.numbers if self.symbols_read else ()
        taken = (*self.kept, *self.numbers)
        if not (self.literals or self.objects or self.windows or self.views or rest is not None):
            return boxed(_of_tensors(function, taken))

        def run(arguments: list[Any]) -> list[Any]:
            sizes = tuple([arguments[k] for k in sized])
            if sizes not in at_sizes:
                at_sizes.clear()  # of the size that was last
                at_sizes[sizes] = self._at(dict(zip(self.symbols, sizes, strict=True)))
            windows, literals = at_sizes[sizes]
            tensors = [arguments[k] for k in taken]
            handed_on = [(position, arguments[k]) for position, k in self.objects]
            read = [] if rest is None else [arguments[k] for k in rest.arguments]
            viewed = [(positions, arguments[k]) for positions, k in self.views]
            arguments.clear()
            outputs = list(function(tensors))
            for position, value in (*literals, *handed_on):
                outputs[position] = value
            for window, view in [(window, window.cut(outputs)) for window in windows]:
                for position in window.positions:
                    outputs[position] = view
            if rest is not None:
                rest.complete(read, outputs)
            outputs = without_views(outputs)
            for positions, argument in viewed:
                view = as_view_of(argument, outputs[positions[0]])
                for position in positions:
                    outputs[position] = view
            return outputs

        return boxed(run)

    def _at(self, values: Mapping[sympy.Symbol, int]) -> tuple[tuple[Window, ...], tuple[tuple[int, object], ...]]:
        """The windows, and the outputs that are numbers, at given sizes."""
        windows = tuple(window.at(values) for window in self.windows)
        return windows, tuple((position, static_value(value, values)) for position, value in self.literals)


def _of_tensors(function: Program, taken: tuple[int, ...]) -> Callable[[list[Any]], list[Any]]:
    """``function`` of those of the arguments, where its results are what torch is given."""

    def run(arguments: list[Any]) -> list[Any]:
        tensors = [arguments[k] for k in taken]
        arguments.clear()
        return without_views(function(tensors))

    return run


def symbol_positions(bindings: Sequence[Binding], decisions: Decisions) -> dict[str, int]:
    """The symbols of a range that are arguments, each with the position of the first that it is, in their order."""
    names = {expression_of(traced): name for name, traced in decisions.traced.items()}
    found: dict[str, int] = {}
    for k, value in enumerate(bindings):
        if is_symbolic(value) and expression_of(value) in names:
            found.setdefault(names[expression_of(value)], k)
    return found
