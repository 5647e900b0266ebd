"""What a program's CUDA graphs depend on: the option ``cudagraphs``, and who needs the program's results.

Results lie in the graph's memory. A replay writes there again, so it must not happen while a caller still uses them.
``"auto"`` makes sure of that for every result: two recordings take turns for inference, and while a caller holds on
to a result, the call runs without a graph. Of a training step's results that were held so at several calls (what the
loop sees of the forward graph, gradients that add up) callers get copies from then on. ``True`` leaves the results
that the caller sees in place, valid until the next call; values saved for a backward graph and gradients are guarded
all the same, so several forward calls before a backward call, and accumulated gradients, are right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.errors import InvalidOptionError

Choice = bool | Literal["auto"]

#: Parts of a name that say which half of a training step a graph is, or is of: ``compiled0.forward[s7=8].inference`` is
#: one of dense tensors, of which AOTAutograd saves results.
_HALVES = frozenset({"forward", "backward"})


@dataclass(frozen=True, slots=True)
class Interest:
    """Who needs a program's results: positions that the caller sees (None: all), and which inputs are parameters."""

    visible: frozenset[int] | None = None
    fixed: frozenset[int] = frozenset()
    training: bool = False

    def sees(self, k: int) -> bool:
        """Whether the caller sees a result: of a backward graph all, which are gradients."""
        return self.visible is None or k in self.visible

    def guards(self, k: int, choice: Choice) -> bool:
        """Whether a result must be out of use before a replay: see the module's text."""
        return choice is not True or (self.training and (self.visible is None or k not in self.visible))


def interest_of(captured: Captured) -> Interest:
    """Whose the results of one of AOTAutograd's graphs are, which come in the order of the graph's outputs."""
    kept = {name for name, memory in captured.memory.items() if memory.stays}  # parameters that a backward graph reads
    pairs = enumerate(zip(captured.inputs, captured.placeholders, strict=True))
    fixed = frozenset(k for k, (one, node) in pairs if one.kind in ("parameter", "buffer") or node.name in kept)
    training = captured.visible is not None or not _HALVES.isdisjoint(re.split(r"[.\[]", captured.name))
    return Interest(captured.visible, fixed, training)


def checked_choice(value: object) -> Choice:
    """The option ``cudagraphs``.

    Raises:
        InvalidOptionError: Anything but True, False and "auto".
    """
    if value is True or value is False or value == "auto":
        return value  # type: ignore[return-value]
    raise InvalidOptionError(f'cudagraphs must be True, False or "auto", not {value!r}')


def choice_under(cap: int | None, choice: Choice) -> Choice:
    """Whether there are CUDA graphs under a cap on memory: only with True, for they hold what it does not count."""
    return False if cap is not None and choice is not True else choice
