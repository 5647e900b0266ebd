"""Specialize a graph with symbolic sizes: one function that compiles the graph for each size it is called with."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import sympy
import torch
from torch.fx import GraphModule

from optfuse.compiler.frontend.calls.flat import replace_by_value
from optfuse.compiler.frontend.calls.shared_arguments import Shared, offsets_of, reads_offsets, shared_memory
from optfuse.compiler.frontend.graph.rewrite import copied
from optfuse.compiler.frontend.sizes.float_tensors import AtFirstCall, floats_as_tensors
from optfuse.compiler.frontend.sizes.size_range import LEAST, OneSizeError, Ranged
from optfuse.compiler.frontend.sizes.size_reader import Number, SizeReader, Sizes, size_reader
from optfuse.compiler.frontend.torch_internals.torch_bridge import compile_lock, tree_leaves, tree_map
from optfuse.compiler.frontend.torch_internals.torch_sizes import is_symbolic, static_value, without_ragged_size

logger = logging.getLogger("optfuse")

#: Sizes of a graph that are compiled when they first come. Each further group of as many waits for twice as many calls
#: as the one before it, so that the number of compiles grows with the logarithm of the number of calls.
GROUP = 8
#: Compiled sizes that a graph keeps, and sizes that it remembers to have run; the least recently used one goes.
MOST, REMEMBERED = 64, 10_000
#: The most ranges of sizes for which a graph is compiled (rows that a tile holds: one up to each power of two), how
#: often that may fail, and at how many sizes it may find that no other is like them: the first ones may be small.
RANGES, FAILURES, ALONE = 16, 2, 6

#: What a compiled function is for: sizes, which of the arguments share memory, and where they begin in theirs.
Key = tuple[Sizes, Shared, tuple[int, ...]]
#: Given the graph with numbers for its sizes, what to call it, and its arguments: the compiled function.
CompileSize = Callable[[GraphModule, str, Sequence[Any]], Callable[..., Any]]


def _solved(values: Mapping[sympy.Basic, Number]) -> dict[sympy.Basic, sympy.Basic]:
    """What stands for symbols, given values of expressions: u0 is ``7 - u1`` if u0 + u1 is 7.

    An expression that is linear in no symbol has its value wherever it occurs.
    """
    known: dict[sympy.Basic, sympy.Basic] = {}
    for expression, value in values.items():
        left = expression.xreplace(known)
        for symbol in sorted(left.free_symbols, key=str):
            slope = left.coeff(symbol)
            rest = left - slope * symbol
            if slope.is_Number and not slope.is_zero and symbol not in rest.free_symbols:
                solution = {symbol: (sympy.sympify(value) - rest) / slope}
                known = {**{each: other.xreplace(solution) for each, other in known.items()}, **solution}
                break
        else:
            if left.free_symbols:
                known[expression] = sympy.sympify(value)
    return known


def at_sizes(graph: GraphModule, values: Mapping[sympy.Basic, Number]) -> GraphModule:
    """A copy of ``graph`` (from torch.compile) with numbers for its symbolic sizes; its arguments stay the same."""
    fixed = copied(graph)
    values = _solved(values)
    for node in list(fixed.graph.nodes):
        traced = node.meta.get("example_value")
        value = tree_map(partial(static_value, sizes=values), traced)
        node.meta = {**node.meta, "example_value": value}
        if is_symbolic(traced) and not is_symbolic(value):
            replace_by_value(node, value)
            if node.op != "placeholder":
                fixed.graph.erase_node(node)
    fixed.recompile()
    return fixed


#: Given the graph, what to call it, the sizes by name and its arguments: the graph compiled for a range of sizes that
#: these are in; None where it cannot be.
CompileRange = Callable[[GraphModule, str, Mapping[str, int], Sequence[Any]], Ranged | None]


@dataclass(slots=True)
class BySize:
    """A graph with symbolic sizes as a function that compiles the graph for each size when it is first called with it.

    The first sizes (``GROUP`` of them) are compiled at once, the next when they come the second time, the next the
    fourth, and so on. Until then a size runs as it was traced, so that sizes that seldom come cost no compile.

    Threads compile one after another, under Dynamo's lock: a trace patches torch's modules.

    Args:
        graph: As torch.compile hands it over; valid for every size that its guards let through.
        reader: Where the sizes are read.
        compile_size: Compiles the graph at one size.
        at_once: Whether the first sizes are compiled when they first come; if not, when they come the second time.
        compile_range: Compiles the graph for a range of sizes, as long as it can: ``ranges``, each with the values that
            it is made for of symbols that are no sizes: under ``dynamic=True`` Dynamo makes some of constants. So
            floats have one value in a range, and integers until they change. Each is for arguments that share memory
            as the first ones do.
        said: Called once, with a reason, when a size first runs as it was traced.
        by_offset: Whether the graph is compiled for each place of its arguments in their memory.
        plan_size: Given the one size that changes, the size at which the plan for it is solved. Without it a range's
            plan is solved at the size that comes first.
    """

    graph: GraphModule
    name: str
    reader: SizeReader
    compile_size: CompileSize
    said: Callable[[str], None]
    at_once: bool = True
    compile_range: CompileRange | None = None
    by_offset: bool = False
    plan_size: Callable[[int], int] | None = None
    ranges: list[tuple[tuple[Any, ...], Ranged]] = field(default_factory=list)
    #: the first values of all symbols, those that have had others, and whether integers that are no sizes may have
    first: dict[sympy.Basic, Number] = field(default_factory=dict)
    varying: set[sympy.Basic] = field(default_factory=set)
    numbers_vary: bool = True
    compiled: OrderedDict[Key, Callable[..., Any]] = field(default_factory=OrderedDict)
    #: how often sizes that are not compiled have come
    seen: OrderedDict[Key, int] = field(default_factory=OrderedDict)
    #: whether arguments that share memory have come
    shares: bool = False
    compiles: int = 0
    failures: int = 0
    alone: int = 0
    silent: bool = False

    def __call__(self, *arguments: Any) -> Any:
        """Run at the sizes of ``arguments``."""
        key = self._key(arguments, self.shares)
        function = self.compiled.get(key)
        if function is None:
            function = self._first_time(arguments)
        elif len(self.compiled) > 1:
            with suppress(KeyError):  # another thread may have let it go
                self.compiled.move_to_end(key)
        return function(*arguments)

    def _key(self, arguments: Sequence[Any], shares: bool) -> Key:
        offsets = offsets_of(tree_leaves(list(arguments))) if self.by_offset else ()
        return self.reader.read(arguments), shared_memory(arguments) if shares else (), offsets

    def _first_time(self, arguments: Sequence[Any]) -> Callable[..., Any]:
        with compile_lock:
            key = self._key(arguments, True)
            sizes = key[0]
            self.shares = self.shares or bool(key[1])
            if key in self.compiled:
                return self.compiled[key]
            ranged = self._in_range(key, arguments)
            if ranged is not None:
                _keep(self.compiled, key, ranged, MOST)
                return ranged
            calls = self.seen.pop(key, 0) + 1
            if calls < 2 ** (self.compiles // GROUP + (not self.at_once)):
                _keep(self.seen, key, calls, REMEMBERED)
                self._say()
                return self.graph
            self.compiles += 1
            fixed = at_sizes(self.graph, dict(zip(self.reader.symbols, sizes, strict=True)))
            kept = _without_numbers(fixed)
            given = [without_ragged_size(arguments[k]) for k in kept]
            function = self.compile_size(fixed, self.name_at(sizes), given)
            function = _of_all(function, kept, len(arguments))
            _keep(self.compiled, key, function, MOST)
            return function

    def _in_range(self, key: Key, arguments: Sequence[Any]) -> Callable[..., Any] | None:
        """The function compiled for a range that holds the sizes; it is compiled now if there is none yet."""
        sizes, *memory = key
        values = dict(zip(self.reader.symbols, sizes, strict=True))
        for symbol, value in values.items():
            if self.first.setdefault(symbol, value) != value and self.numbers_vary:
                self.varying.add(symbol)
        fixed = {symbol: value for symbol, value in values.items() if not self._varies(symbol, value)}
        named = {str(symbol): int(value) for symbol, value in values.items() if symbol not in fixed}
        given = (fixed, *memory)
        hints = self._plan_hints(named)
        found = self._known(given, named, hints)
        if found is None and hints not in (None, named):
            if not any(known == given and each.hints == hints for known, each in self.ranges):
                self._compile(given, hints, arguments)
            found = self._known(given, named, hints) or self._known(given, named)
        if found is None and self.compile_range is not None and named:
            for known, each in self.ranges:
                if known == given:
                    logger.info(
                        "%s: an earlier schedule does not serve %s, where these guards fail: %s",
                        self.name,
                        named,
                        each.broken(named),
                    )
            found = self._compile(given, named, arguments)
            if found is None and self.varying - self.reader.in_tensors:
                self.numbers_vary = False
                self.varying.clear()
                return self._in_range(key, arguments)
        found = found or self._known(given, named)  # another region's, where this one's could not be compiled
        return None if found is None else found.function

    def _plan_hints(self, named: Mapping[str, int]) -> dict[str, int] | None:
        """The sizes at which the plan for a call's sizes is to be solved; None where that is not said."""
        if self.plan_size is None or not named:
            return None
        if len(set(named.values())) > 1:
            said = ", ".join(f"{name}={size}" for name, size in named.items())
            logger.warning(
                "%s: regions are of one size, and several may change here, %s: torch._dynamo.mark_dynamic says which",
                self.name,
                said,
            )
            self.plan_size = None
            return None
        size = next(iter(named.values()))
        hint = self.plan_size(size)
        return dict.fromkeys(named, size if hint < LEAST else hint)

    def _known(
        self, given: tuple[Any, ...], named: Mapping[str, int], hints: Mapping[str, int] | None = None
    ) -> Ranged | None:
        """The first range in which sizes are. ``hints``: only ranges whose plan was solved at these sizes."""
        return next(
            (
                each
                for known, each in self.ranges
                if known == given and hints in (None, each.hints) and each.holds(named)
            ),
            None,
        )

    def _compile(self, given: tuple[Any, ...], sizes: Mapping[str, int], arguments: Sequence[Any]) -> Ranged | None:
        """A range around sizes, compiled now; None if there is none, or no more ranges are compiled."""
        if self.compile_range is None:
            return None
        graph = at_sizes(self.graph, given[0])
        kept = _without_numbers(graph)
        found, alone = None, False
        try:
            found = self.compile_range(graph, self.name, sizes, [arguments[k] for k in kept])
        except OneSizeError:
            alone = True
        if found is None and self.varying - self.reader.in_tensors:
            return None  # integers that are no sizes may be the reason: the caller tries without
        if found is not None:
            found = replace(found, function=_of_all(found.function, kept, len(arguments)))
            self.ranges.append((given, found))
        self.alone += alone
        self.failures += found is None and not alone
        if self.failures == FAILURES or self.alone == ALONE or len(self.ranges) == RANGES:
            self.compile_range = None
        return found

    def _varies(self, symbol: sympy.Basic, value: Number) -> bool:
        """Whether a range may let a symbol with this value vary: sizes 0 and 1 are always compiled by themselves."""
        known = symbol in self.reader.in_tensors or symbol in self.varying
        return known and isinstance(value, int) and value >= LEAST

    def name_at(self, sizes: Sizes) -> str:
        """What the graph is called at given sizes: ``compiled0[s77=5]``."""
        pairs = zip(self.reader.symbols, sizes, strict=True)
        return self.name if not sizes else f"{self.name}[{','.join(f'{symbol}={size}' for symbol, size in pairs)}]"

    def _say(self) -> None:
        if not self.silent:
            self.silent = True
            which = f"sizes beyond the first {GROUP}" if self.at_once else "sizes that depend on data"
            self.said(f"{which} run as they were traced until they come again, and the later the more often")


def _without_numbers(graph: GraphModule) -> list[int]:
    """Take numbers that are known, and read by nothing, out of a graph's arguments; the positions of those left.

    A float comes as a tensor whose item is taken.
    """
    left = []
    for k, placeholder in enumerate(graph.graph.find_nodes(op="placeholder")):
        value = placeholder.meta.get("example_value")
        is_number = isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.dim() == 0)
        if is_number and not placeholder.users:
            graph.graph.erase_node(placeholder)
        else:
            left.append(k)
    graph.recompile()
    return left


def _of_all(function: Callable[..., Any], kept: Sequence[int], count: int) -> Callable[..., Any]:
    """A function of some of ``count`` arguments as one of all of them."""
    return function if len(kept) == count else partial(_with_some, function, kept)


def _with_some(function: Callable[..., Any], kept: Sequence[int], *arguments: Any) -> Any:
    return function(*[arguments[k] for k in kept])


def _keep(known: OrderedDict[Key, Any], key: Key, value: Any, most: int) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)


def at_any_size(
    graph: GraphModule,
    name: str,
    example_inputs: Sequence[Any],
    compile_size: CompileSize,
    leave: Callable[[str, str], None] | None,
    at_once: bool = True,
    compile_range: CompileRange | None = None,
    plan_size: Callable[[int], int] | None = None,
) -> Callable[..., Any]:
    """A graph as a function of arguments of any size: compiled now if it has no symbolic size, else by ``BySize``.

    One that says where in an argument's memory a view begins is compiled for each place of its arguments.

    A graph whose only symbols are floats is compiled once, when it is first called, if it can take them as tensors.
    """
    reader = size_reader(graph, example_inputs)
    if reader is None and reads_offsets(graph):
        reader = SizeReader((), (), nested=False)
    if reader is None:
        return compile_size(graph, name, example_inputs)
    of_tensors = floats_as_tensors(graph) if reader.floats_alone else None
    if of_tensors is not None:
        rewritten, device = of_tensors
        return AtFirstCall(partial(compile_size, rewritten, name), [k for k, _ in reader.places], device)

    def say(reason: str) -> None:
        if leave is not None:
            leave(name, reason)

    ranged = compile_range if reader.symbols_alone else None
    return BySize(graph, name, reader, compile_size, say, at_once, ranged, reads_offsets(graph), plan_size)
