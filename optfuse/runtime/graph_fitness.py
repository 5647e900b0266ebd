"""Which programs no CUDA graph can hold, whatever their inputs."""

from __future__ import annotations

from optfuse.runtime.graph_choice import Choice
from optfuse.runtime.program import Program
from optfuse.runtime.recorder import is_capturing

#: Why a call is plain if there is no vote.
NO_VOTE = "ranks have no way to agree on a CUDA graph with these collectives"


def why_unfit(program: Program, choice: Choice, *, can_agree: bool) -> str:
    """Why a call of a program can neither be recorded nor replayed now; "" if it can.

    Args:
        can_agree: The ranks of a program with collectives vote on its graphs.
    """
    if getattr(program.module, "DRAWS_ON_HOST", False) and not program.has_cuts:
        return "random numbers are drawn on the host"
    if program.is_part_of_collective:
        return "a collective begins or ends in another graph"
    if choice is not True and program.has_collectives and not can_agree:
        return NO_VOTE
    return "inside of another capture" if is_capturing() else ""
