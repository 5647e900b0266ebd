"""What ranks agree on about the CUDA graphs of a program with collectives: all of them use graphs, or none does.

Each rank has a clock and memory of its own, and so an opinion of its own: yes, no, or not yet. On every other call,
until all is decided, opinions are counted in the store that the process groups were set up with, and the count is read
two calls later. Then it is the same on every rank, for the program's own collectives have run meanwhile: who is at
their end knows that all ranks have begun that call, and they say their opinion before. So a vote sends nothing from GPU
to GPU, and waits for no rank but as the program itself does. Of ranks that call a program differently the counts remain
incomplete, and they go without graphs.

``open``: plain calls, until all want a graph. ``recording``: each rank records, and none replays before all have.
``trial``: all replay, until all know that this is faster. ``graphs`` and ``plain`` are for good; ``plain`` it is as
soon as one rank says no.

Later a rank may still run a call plainly, or record again, as its inputs and results demand. That does no harm as long
as NCCL registers no memory of graphs at other ranks: ``process_groups.why_ranks_may_not_differ``.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch

from optfuse.runtime.clocks import Mark

#: Calls from one vote to the next.
EVERY = 2
#: Votes after which it is clear that not all will be ready, or that all go on as they do.
MOST_VOTES = 64
#: What a no counts, more than there are ranks.
NO = 1 << 32
#: Collectives that end on no rank before all have begun them.
MEETING = ("all_reduce", "all_gather", "reduce_scatter")

State = Literal["open", "recording", "trial", "graphs", "plain"]
#: Yes, no, or not yet; and why not.
Opinion = tuple[bool | None, str]

#: How many programs with the same collectives in a group this process has made.
_made: Counter[str] = Counter()


@dataclass(slots=True)
class Agreement:
    """The votes on one program.

    Args:
        store: Counts for all ranks: ``add``, ``set`` and ``get`` of a ``torch.distributed.Store``.
        ranks: How many ranks vote, by what the program is called in the store: one entry a process group.
        refusal: Why this rank says no in any case.
    """

    store: Any
    ranks: Mapping[str, int]
    refusal: str = ""
    state: State = "open"
    reason: str = ""
    _calls: int = 0
    _votes: int = 0
    _is_marked: bool = True
    _end: Mark | None = None

    @property
    def is_decided(self) -> bool:
        """Whether there is no vote any more."""
        return self.state in ("graphs", "plain")

    @property
    def may_replay(self) -> bool:
        """Whether all ranks have recorded."""
        return self.state in ("trial", "graphs")

    def begin(self, opinion: Callable[[], Opinion]) -> None:
        """A call begins. If it is one with a vote, count the last one, and say this rank's opinion."""
        if self.is_decided:
            return
        self._calls += 1
        if self._calls % EVERY:
            return
        if self._end is not None:
            self._end.wait()
        try:
            if self._end is not None:
                self._count()
            if not self.is_decided:
                self._say(*((False, self.refusal) if self.refusal else opinion()))
        except RuntimeError as error:  # as when the process that has the store has ended
            self.refuse(f"ranks cannot vote on a graph: {str(error).splitlines()[0][:200]}")

    def end(self, mark: Callable[[], Mark]) -> None:
        """A call has been queued, and ends at ``mark()``."""
        if not self._is_marked:
            self._end, self._is_marked = mark(), True

    def opinion(self, reason: str, is_wanted: bool, is_recorded: bool, is_faster: bool) -> Opinion:
        """What a rank says at the next vote: no, if it has a reason; yes, if it is ready to go on to the next state."""
        ready = {"open": is_wanted, "recording": is_recorded, "trial": is_faster}
        return (False, reason) if reason else (ready.get(self.state) or None, "")

    def refuse(self, reason: str) -> None:
        """This rank runs without graphs, whatever the others do, and votes no more."""
        self.state, self.reason = "plain", reason

    def _say(self, opinion: bool | None, reason: str) -> None:
        self._votes, self._is_marked = self._votes + 1, False
        for name in self.ranks:
            key = self._key(name)
            if opinion is False:
                self.store.set(f"{key}/why", reason)
            if opinion is not None:
                self.store.add(key, 1 if opinion else NO)

    def _count(self) -> None:
        """Go on to the next state, if all have said yes at the last vote, or to the end, if one has said no."""
        self._end = None
        counts = {key: self.store.add(key, 0) for key in (self._key(name, EVERY) for name in self.ranks)}
        refused = next((key for key, count in counts.items() if count >= NO), None)
        if refused is not None:
            self.refuse(self.store.get(f"{refused}/why").decode())
        elif list(counts.values()) == list(self.ranks.values()):
            following: dict[State, State] = {"open": "recording", "recording": "trial", "trial": "graphs"}
            self.state, self._votes = following[self.state], 0
        elif self._votes >= MOST_VOTES and self.state == "trial":
            self.state = "graphs"
        elif self._votes >= MOST_VOTES:
            self.refuse("some ranks had a graph, or wanted one, and others did not")

    def _key(self, name: str, before: int = 0) -> str:
        """What the vote of this call is called, or that of the call so many calls before."""
        return f"{name}/{self.state}/{self._calls - before}"


def agreement_on(module: Any, refusal: str) -> Agreement | None:
    """The votes on an emitted module with collectives. None if there is nothing to vote with, or no call meets all.

    ``refusal``: why this rank wants no graph in any case.
    """
    distributed: Any = torch.distributed
    rows = getattr(module, "COLLECTIVES", ())
    meet = {group for group, target, _, shape in rows if target.split(".")[1].startswith(MEETING) and prod(shape)}
    if not meet or meet != {group for group, *_ in rows}:
        return None
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_backend() == "fake":
        return None
    ranks: dict[str, int] = {}
    for group in sorted(meet):
        try:
            members = distributed.distributed_c10d._resolve_process_group(group)  # noqa: SLF001 - no public name
        except RuntimeError:  # this process is not in it
            return None
        text = json.dumps([row[1:] for row in rows if row[0] == group])
        name = f"optfuse/graphs/{group}/{hashlib.sha256(text.encode()).hexdigest()}"
        _made[name] += 1
        ranks[f"{name}/{_made[name]}"] = members.size()
    store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - no public name
    return Agreement(store, ranks, refusal)
