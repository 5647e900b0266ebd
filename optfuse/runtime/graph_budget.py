"""Which of the programs of a range of sizes hold CUDA graphs: those used last, a bounded number of them.

A graph costs a recording and memory, so that a size that seldom comes has none. The first sizes are recorded when they
come again; each further group of as many waits for twice as many calls of its size as the one before. So the number of
recordings grows with the logarithm of the number of calls, however many sizes there are.

Whether a graph gains is asked once for all sizes whose predicted times are within a power of two: small sizes wait for
the host, where large ones hide it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import log2

from optfuse.runtime.graph_statistics import GraphStatistics
from optfuse.runtime.pace import Pace

#: The most sizes of a range that hold graphs at a time.
SIZES = 16


@dataclass(slots=True)
class GraphBudget:
    """What the programs of a range share: the right to hold graphs, and the statistics.

    Attributes:
        first_us: The GPU's predicted time of the first size.
        numbers: By power of two of the predicted time over the first one's: the number in ``runtime.pace``.
        holders: By program, how it lets go of its graphs; the one used last is the last.
        recordings: Programs that have begun to hold graphs, those included that have let go of them.
    """

    statistics: GraphStatistics
    most: int = SIZES
    first_us: float = 0.0
    numbers: dict[int, int] = field(default_factory=dict)
    recordings: int = 0
    holders: OrderedDict[int, Callable[[], None]] = field(default_factory=OrderedDict)

    def number(self, gpu_us: float, add: Callable[[], int]) -> int:
        """The number in ``runtime.pace`` of a program with a predicted time; ``add`` makes one where there is none."""
        self.first_us = self.first_us or gpu_us
        power = round(log2(gpu_us / self.first_us)) if gpu_us > 0 else 0
        if power not in self.numbers:
            self.numbers[power] = add()
        return self.numbers[power]

    def may_record(self, program: int, calls: int) -> bool:
        """Whether a program that has been called so often may hold graphs."""
        return program in self.holders or calls >= 2 ** (1 + self.recordings // self.most)

    def why_not_now(self, program: int, calls: int, pace: Pace | None, number: int) -> str:
        """Why a program does not prepare for graphs: other sizes have found them of no use, or it comes seldom.

        Args:
            calls: Of the program, up to the next one.
            number: The programs' in ``pace``.
        """
        verdict = "graphs" if pace is None else pace.verdict(number)
        if pace is not None and verdict == "plain":
            return pace.reason(number)
        if verdict == "open" or self.may_record(program, calls):
            return ""
        if pace is not None:
            pace.disturb()  # a step without its graph is no trial of it
        return "sizes that seldom come have no graph"

    def use(self, program: int, let_go: Callable[[], None]) -> None:
        """Note that a program uses its graphs; over the budget the least recently used program releases its own."""
        if program not in self.holders:
            self.recordings += 1
        self.holders[program] = let_go
        self.holders.move_to_end(program)
        if len(self.holders) > self.most:
            self.holders.popitem(last=False)[1]()
