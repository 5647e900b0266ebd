"""A graph with symbolic sizes compiled once for a range of them: traced with symbols of its own, valid under guards."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product
from random import Random
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import DimDynamic

from optfuse.compiler.frontend.torch_internals.torch_bridge import RestartAnalysis
from optfuse.compiler.frontend.torch_internals.torch_sizes import expression_of, is_symbolic
from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.compiler.symbols.formula_shapes import FormulaShapes
from optfuse.errors import CaptureError

#: The sizes that a symbol stands for: torch traces those of 0 and 1 by themselves, and kernels take 32 bits.
LEAST, MOST = 2, 2**31 - 1

#: The text of a graph compiled for a range of sizes is made again at up to so many others, until it is the same at one.
CHECKS = 3

#: How far sizes are changed apart from each other to find others at which a graph is valid; of more than three sizes so
#: many combinations are drawn at random.
NEAR, DRAWN = 8, 200

#: Of so many sizes some may be held at one number where guards leave no others at which all of them change.
MOST_HELD = 4
#: How many others are tried where some sizes are held.
TRIED = 64

#: Given the graph, its fake arguments and the decisions that these record: the compiled function.
Build = Callable[[GraphModule, Sequence[Any], Decisions], Callable[..., Any]]
#: Given decisions at other sizes: raises if what was built is another program there.
Check = Callable[[Decisions], None]


class OneSizeError(CaptureError):
    """What a build decided at its sizes holds at no others: small ones, of which a part has a size of 1."""


@dataclass(frozen=True, slots=True)
class Ranged:
    """A function of a graph's arguments, and whether it may be called at given sizes: if all guards hold.

    ``traced`` are the guards of the trace, over ``names``; the rest are in ``decisions``.
    """

    function: Callable[..., Any]
    names: Mapping[sympy.Symbol, str]
    traced: tuple[sympy.Basic, ...]
    decisions: Decisions

    @property
    def hints(self) -> Mapping[str, int]:
        """The sizes at which its schedule was solved, by name."""
        return self.decisions.hints

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether the function is valid at these sizes."""
        if not all(isinstance(size, int) and LEAST <= size <= MOST for size in sizes.values()):
            return False
        numbers = {symbol: sizes[name] for symbol, name in self.names.items()}
        return self.decisions.holds(sizes) and all(guard.xreplace(numbers) == True for guard in self.traced)  # noqa: E712 - sympy's

    def broken(self, sizes: Mapping[str, int]) -> str:
        """The guards that do not hold at these sizes, in words; "" if there are none."""
        numbers = {symbol: sizes[name] for symbol, name in self.names.items()}
        traced = [guard for guard in self.traced if guard.xreplace(numbers) != True]  # noqa: E712 - sympy's
        return ", ".join(map(str, [*traced, *(guard for guard in self.decisions.guards if not guard.holds(sizes))]))

    def other_sizes(self) -> Iterator[dict[str, int]]:
        """Sizes near the hints at which the function is valid, nearest first.

        Each of them is another number, but for those that a guard holds at one. Where guards on several sizes leave
        none of that kind (``h * h == 25``), as many sizes as possible are others, and ``hold`` must fix the rest.

        Raises
        ------
        OneSizeError
            If none is found: a decision has made the range one size.
        """
        found = False
        hints, fixed = self.decisions.hints, self._fixed()
        names = [name for name in hints if name not in fixed]
        for count in range(len(names), 0, -1):
            for free in combinations(names, count) if count == len(names) or len(names) <= MOST_HELD else ():
                for steps in islice(_steps([hints[name] for name in free]), None if len(free) == len(names) else TRIED):
                    tried = {**hints, **{name: hints[name] + step for name, step in zip(free, steps, strict=True)}}
                    if self.holds(tried):
                        found = True
                        yield tried
            if found:
                return
        guards = ", ".join(map(str, (*self.traced, *self.decisions.guards)))
        raise OneSizeError(f"valid at one size only: {guards}")

    def hold(self, sizes: Mapping[str, int]) -> None:
        """Hold those sizes at one number that are the hints among ``sizes``, at which the function was checked."""
        for name, size in self.decisions.hints.items():
            if sizes[name] == size:
                self.decisions.require(name, size)

    def _fixed(self) -> set[str]:
        """The sizes that may be one number only."""
        fixed = {name for name, (low, high) in self.decisions.ranges.items() if low == high}
        for guard in self.traced:
            if isinstance(guard, sympy.Eq) and guard.lhs in self.names and guard.rhs.is_Integer:
                fixed.add(self.names[guard.lhs])
        return fixed


def _steps(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Changes of sizes, none of them 0: in proportion, the same for equal sizes, of any sign and small."""
    equal = list(dict.fromkeys(sizes))
    alike = [equal.index(size) for size in sizes]
    for groups in (range(len(sizes)), alike):
        for distance in range(1, 33):
            yield tuple(distance * (k + 1) for k in groups)
            yield tuple(-distance * (k + 1) for k in groups)
        if len(equal) == len(sizes):
            break  # there is nothing that is alike
    for groups, count in ((alike, len(equal)), (range(len(sizes)), len(sizes))):
        for steps in _apart(count):
            yield tuple(steps[k] for k in groups)
        if len(equal) == len(sizes):
            break


def _apart(count: int) -> Iterator[tuple[int, ...]]:
    """Changes of several sizes, each by up to ``NEAR``: all of two or three, smallest first, else some at random."""
    near = [step for step in range(-NEAR, NEAR + 1) if step]
    if 1 < count <= 3:
        yield from sorted(product(near, repeat=count), key=lambda steps: sum(map(abs, steps)))
    elif count > 3:
        draw = Random(0)
        yield from (tuple(draw.choices(near, k=count)) for _ in range(DRAWN))


def checked_range(
    graph: GraphModule,
    sizes: Mapping[str, int],
    arguments: Sequence[Any],
    build: Build,
    check: Check,
    leave: Callable[[str], object],
) -> Ranged | None:
    """``for_range``, checked at other sizes to see that nothing else depends on them; None after ``leave(reason)``.

    Torch's trace is not repeated: its sizes are symbols, whose comparisons are guards. In the stages behind it they are
    integers with formulas, which C code may read unseen, so that ``check`` repeats these stages.

    Raises
    ------
    OneSizeError
        After ``leave(reason)``, if no other size is near: another one may have a range.
    """
    reason = ""
    try:
        ranged = for_range(graph, sizes, arguments, build)
        for other in islice(ranged.other_sizes(), CHECKS):
            try:
                with enable_python_dispatcher():  # as in a trace: views of symbolic sizes
                    check(_decisions(other, ranged.decisions.traced, chosen_at=sizes))
            except RestartAnalysis:
                raise
            except Exception as error:  # a choice for speed may be another one there
                reason = reason or f"{type(error).__name__}: {error}"
            else:
                ranged.hold(other)
                return ranged
    except RestartAnalysis:  # Dynamo traces the function again, with what torch has learned of its numbers
        raise
    except OneSizeError as error:
        leave(str(error))
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    leave(reason)
    return None


def for_range(
    graph: GraphModule,
    sizes: Mapping[str, int],
    arguments: Sequence[Any],
    build: Build,
) -> Ranged:
    """The graph compiled at ``sizes``, for every size at which the same decisions hold.

    Raises
    ------
    CaptureError
        If arguments have symbols elsewhere than in sizes.
    """
    if not all(isinstance(size, int) and LEAST <= size <= MOST for size in sizes.values()):
        raise CaptureError("a size of 0 or 1, or a number that is no size")
    environment = FormulaShapes()
    names: dict[sympy.Symbol, str] = {}
    traced: dict[str, torch.SymInt] = {}
    for name, size in sizes.items():
        source = ConstantSource(name)
        symbol = environment.create_symbol(size, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
        names[symbol] = name
        traced[name] = environment.create_symintnode(symbol, hint=size, source=source)
    decisions = _decisions(sizes, traced)
    environment.decide_by(decisions)
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    placeholders = graph.graph.find_nodes(op="placeholder")
    fakes = [
        _fake(node.meta.get("example_value"), given, traced, mode)
        for node, given in zip(placeholders, arguments, strict=True)
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Raw SymInt value")  # our graphs hold sizes as numbers
        with enable_python_dispatcher():  # torch enters it for tensors with symbolic sizes, not for numbers alone
            function = build(graph, fakes, decisions)
    guards = tuple(guard.expr for guard in environment.guards)
    return Ranged(function, names, guards, decisions)


def _decisions(
    sizes: Mapping[str, int], traced: Mapping[str, Any], chosen_at: Mapping[str, int] | None = None
) -> Decisions:
    return Decisions(dict(sizes), dict.fromkeys(sizes, (LEAST, MOST)), traced=traced, chosen_at=chosen_at)


def _fake(example: Any, given: Any, traced: Mapping[str, torch.SymInt], mode: FakeTensorMode) -> Any:
    """An argument as the tracer takes it: with our symbols where torch.compile's example has its own."""
    if is_symbolic(example):
        return _number(example, traced)
    if not isinstance(given, torch.Tensor) or type(given) not in (torch.Tensor, torch.nn.Parameter):
        raise CaptureError(f"an argument is a {type(given).__name__}")
    if not isinstance(example, FakeTensor) or not _is_sized(example):
        return mode.from_tensor(given, static_shapes=True)
    if given.is_neg() or given.is_conj() or given.layout is not torch.strided:
        raise CaptureError("an argument of another size each time has a view's flags, or another layout")
    shape = [_number(n, traced) for n in example.shape]
    stride = [_number(n, traced) for n in example.stride()]
    known = example.storage_offset()
    offset = _number(known, traced) if is_symbolic(known) else given.storage_offset()  # torch.compile guards no number
    with mode:
        made = _empty(shape, stride, offset, given)
    if given.is_leaf or not given.requires_grad:
        return made.requires_grad_(given.requires_grad)
    with mode, torch.enable_grad():  # autograd records a write into it, unlike one into a leaf
        return made.requires_grad_().as_strided(shape, stride, offset)


def _is_sized(example: FakeTensor) -> bool:
    """Whether a tensor has a symbol in its sizes, its strides or its offset."""
    strided = example.layout is torch.strided
    return any(map(is_symbolic, (*example.shape, *((*example.stride(), example.storage_offset()) if strided else ()))))


def _empty(shape: Sequence[Any], stride: Sequence[Any], offset: Any, like: torch.Tensor) -> torch.Tensor:
    """A tensor of the dtype and device of ``like``; with an offset, a window of a memory that ends where it does."""
    if isinstance(offset, int) and offset == 0:
        return torch.empty_strided(shape, stride, dtype=like.dtype, device=like.device)
    empty = any(isinstance(n, int) and n == 0 for n in shape)
    reach = 0 if empty else 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    return torch.empty(offset + reach, dtype=like.dtype, device=like.device).as_strided(shape, stride, offset)


def _number(value: Any, traced: Mapping[str, torch.SymInt]) -> Any:
    if not is_symbolic(value):
        return value
    expression = expression_of(value)
    if expression.is_Integer:
        return int(expression)  # Dynamo has settled what was a symbol
    if not isinstance(value, torch.SymInt):
        raise CaptureError(f"{expression} is a number, and no size")
    missing = sorted(str(symbol) for symbol in expression.free_symbols if str(symbol) not in traced)
    if missing:
        raise CaptureError(f"the size {missing[0]} is no argument's")
    ours = {symbol: traced[str(symbol)].node for symbol in expression.free_symbols}
    renamed = expression.xreplace({symbol: node.expr for symbol, node in ours.items()})
    number = int(expression.xreplace({symbol: sympy.Integer(node.hint) for symbol, node in ours.items()}))
    return next(iter(ours.values())).shape_env.create_symintnode(renamed, hint=number)
