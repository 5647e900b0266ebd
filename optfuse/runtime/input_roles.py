"""How the inputs of a recorded program are fed: from their own addresses, which must not change, or through copies.

- Parameters, buffers and whatever the program writes in place stay where they are. Layers that are alike share a
  program, and each has recordings of its own (``runtime.bindings``). When one has moved, the call runs without the
  graph; when it does not come back, the graph is recorded again, and takes it as one of the others. Parameters whose
  memory is lent to other layers in between, as FSDP2 does, are copied.
- Other inputs are copied into memory of the graph's own, all in one launch; a large one that keeps its address between
  calls, or lies in another recording's memory, is left where it is. When it has moved, the call runs without the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from optfuse.runtime.arena import Results
from optfuse.runtime.bindings import Binding
from optfuse.runtime.graph_choice import Interest
from optfuse.runtime.program import Program

#: How an input is fed: from its own address, or through a copy.
Role = Literal["static", "copied"]

#: An input of so many bytes or fewer is copied rather than watched. That takes ten microseconds; a call without a
#: graph, since an input has moved, makes those that read its results wait as well.
SMALL = 16 << 20


@dataclass(frozen=True, slots=True)
class InputRoles:
    """The inputs of a program. ``handed`` knows which of them are results of recordings, and stay where they are.

    ``small``: of so many bytes an input is copied.
    """

    program: Program
    interest: Interest
    handed: Results
    small: int

    def of(self, k: int, x: torch.Tensor, before: int, caller: Binding) -> Role:
        """How input ``k`` is fed, which was at ``before`` in the caller's last call."""
        moved = caller.moved
        if self.program.inputs[k].mutated:
            return "static"
        if k in caller.borrowed:
            return "copied"
        if k in self.interest.fixed and k not in moved:
            return "static"
        if self.handed.stays(x.data_ptr()) and k not in moved:
            # a step between graphs would hold it, so that the graph that it is of would wait for ever
            return "copied" if self.program.has_cuts else "static"
        return "static" if x.nbytes > self.small and x.data_ptr() == before else "copied"

    def copied(self, given: Sequence[torch.Tensor], before: Sequence[int], caller: Binding) -> list[int]:
        """The inputs that a new recording of the caller's copies: those that its others copy, if it has any.

        Recordings that take turns watch the same inputs, so that what has moved for one has moved for all.
        """
        if caller.recordings:
            watched = caller.recordings[0].static
            return [k for k in range(len(given)) if k not in watched]
        return [k for k, x in enumerate(given) if self.of(k, x, before[k], caller) == "copied"]

    def moving(self, given: Sequence[torch.Tensor], before: Sequence[int]) -> list[int]:
        """Large inputs whose address is another one than at the call before: a graph may come too early."""
        moving = [k for k, x in enumerate(given) if x.nbytes > self.small and x.data_ptr() != before[k]]
        return [k for k in moving if not self.handed.stays(given[k].data_ptr())]

    def copied_bytes(self, given: Sequence[torch.Tensor], before: Sequence[int], caller: Binding) -> int:
        """Bytes that a graph would copy of inputs, but for what other graphs would hold still."""
        copied = [x for k, x in enumerate(given) if self.of(k, x, before[k], caller) == "copied"]
        return sum(x.nbytes for x in copied if not self.handed.passes([x.data_ptr()], caller))
