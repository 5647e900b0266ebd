"""Random programs of views, writes in place, dtypes and odd inputs, as Python text that a failure prints.

A program is drawn statement by statement and run as it grows, in its own dtypes and in float64 side by side: what
raises is not part of it, and an operator that jumps (a comparison, a rounding, a sort) takes only values that both
agree on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.oracle.judging import in_double
from tests.torch_compile.fuzz_inputs import Argument, Memory, draw_inputs, make_inputs
from tests.torch_compile.fuzz_layers import LAYERS
from tests.torch_compile.fuzz_statements import JUMPS, TEMPLATES, State, Template

#: The largest value that a program may compute with, and the most elements.
LARGEST, MOST = 5000.0, 300
#: Every kind of statement, and how often each is drawn.
STATEMENTS = [*TEMPLATES, *LAYERS]
Statement = tuple[int, Template, bool]


@dataclass(frozen=True, slots=True)
class Program:
    """Inputs and the lines of a function of them: a0, a1, ..."""

    memories: tuple[Memory, ...]
    arguments: tuple[Argument, ...]
    lines: tuple[str, ...]
    returned: tuple[str, ...]

    def __str__(self) -> str:
        """The inputs, a line each, and the function."""
        described = [f"# {self.memories[a.memory]} {a}" for a in self.arguments]
        return "\n".join([*described, self.source()])

    def source(self) -> str:
        """The function's text."""
        names = ", ".join(f"a{k}" for k in range(len(self.arguments)))
        body = [*self.lines, f"return ({', '.join(self.returned)},)"]
        return f"def f({names}):\n" + "\n".join(f"    {line}" for line in body)

    def function(self) -> Callable[..., Any]:
        """The function."""
        scope: dict[str, Any] = {"torch": torch, "F": F}
        exec(compile(self.source(), "<fuzzed>", "exec"), scope)
        return scope["f"]

    def inputs(self, seed: int, wide: bool = False) -> tuple[list[Tensor], list[Tensor]]:
        """(Leaves that want gradients, arguments): whole or half numbers, the same for each ``seed``, or as float64."""
        return make_inputs(self.memories, self.arguments, seed, wide)


def draw(seed: int, most: int = 8) -> Program:
    """The program of a seed: a function that eager runs, forward and backward, with values of moderate size."""
    rng = random.Random(seed)
    train = rng.random() < 0.5
    memories, arguments = draw_inputs(rng, train)
    wanted = rng.randrange(1, most + 1)
    lines: list[str] = []
    state = grown_values(memories, arguments, lines, rng)
    for _ in range(8 * wanted):
        if len(lines) >= wanted:
            break
        line = statement([state], len(lines), STATEMENTS)
        grown = line and grown_values(memories, arguments, [*lines, line], rng)
        if grown:
            lines.append(line)
            state = grown
    names = list(state.values)
    made = [name for name in names if name.startswith("v")]
    returned = rng.sample(names, min(len(names), rng.choice([1, 2, 3]))) + made[-1:]
    return Program(memories, arguments, tuple(lines), tuple(dict.fromkeys(returned)))


def statement(states: Sequence[State], number: int, kinds: Sequence[Statement]) -> str:
    """A drawn line of text that all of the states allow, the first of which says what there is; "" for none."""
    _, template, defines = states[0].rng.choices(kinds, [often for often, *_ in kinds])[0]
    try:
        text = template(states[0])
    except (LookupError, IndexError, ValueError):
        return ""
    line = f"v{number} = {text}" if defines else text
    for state in states:
        used = [name for name in state.values if name in _words(line)]
        if not all(state.exact(name) for name in used) and any(jump in line for jump in JUMPS):
            return ""
        if "_scatter(" in line and any(overlaps(state.values[name]) for name in used):
            return ""  # what is written twice is a matter of order, in eager execution, too
    return line


def overlaps(x: Tensor) -> bool:
    """Whether elements lie in one place, otherwise than by being repeated."""
    reach = 0
    for step, size in sorted((step, size) for step, size in zip(x.stride(), x.shape, strict=True) if size > 1 and step):
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() or c == "_" else " " for c in text).split()


def grown_values(memories: Any, arguments: Any, lines: list[str], rng: random.Random) -> State | None:
    """The values after some lines; None where eager raises."""
    state = State(rng)
    names = [f"a{k}" for k in range(len(arguments))]
    for wide, found in ((False, state.values), (True, state.wide)):
        scope: dict[str, Any] = dict(zip(names, make_inputs(memories, arguments, 1, wide)[1], strict=True))
        scope |= {"torch": torch, "F": F}
        run = lambda: exec("\n".join(lines), scope)  # noqa: B023, E731 - it is called at once
        try:
            (in_double(run) if wide else run)()
            for x in scope.values():  # a view of several whose memory was written says so now
                _ = x + x if isinstance(x, Tensor) else None
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError, ZeroDivisionError):
            return None
        found.update({name: x for name, x in scope.items() if isinstance(x, Tensor)})
    return state if _moderate(state) else None


def _moderate(state: State) -> bool:
    for x, y in zip(state.values.values(), state.wide.values(), strict=True):
        if x.numel() > MOST or x.dim() > 5 or x.shape != y.shape or x.is_complex():
            return False
        if x.is_floating_point() and x.numel() and (not x.isfinite().all() or x.abs().max() > LARGEST):
            return False
    return True
