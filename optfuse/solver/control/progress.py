"""Progress of a solve: its objective and bound over time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Stage = Literal["greedy", "blocks", "search", "join", "improve", "order", "done"]


def relative_gap(objective: int, bound: int) -> float:
    """(objective - bound) / objective; 0.0 when the bound is reached."""
    return (objective - bound) / objective if bound < objective else 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The best known so far. ``seconds`` since the solve began; ``objective`` and ``bound`` are picoseconds."""

    seconds: float
    stage: Stage
    objective: int
    bound: int

    @property
    def gap(self) -> float:
        """(objective - bound) / objective."""
        return relative_gap(self.objective, self.bound)


OnProgress = Callable[[Progress], None]


class Journal:
    """Keeps a record whenever the objective falls or the bound rises, and hands it to ``listener``."""

    def __init__(self, listener: OnProgress | None = None) -> None:
        self._listener = listener
        self._start = time.monotonic()
        self._records: list[Progress] = []

    @property
    def records(self) -> tuple[Progress, ...]:
        """All records, in order of time."""
        return tuple(self._records)

    def note(self, stage: Stage, objective: int, bound: int) -> None:
        """Record an objective and a bound; a better one that is already recorded is kept."""
        if self._records:
            last = self._records[-1]
            objective, bound = min(objective, last.objective), max(bound, last.bound)
            if (objective, bound) == (last.objective, last.bound) and stage != "done":
                return
        record = Progress(time.monotonic() - self._start, stage, objective, min(bound, objective))
        self._records.append(record)
        if self._listener is not None:
            self._listener(record)

    def bound(self, stage: Stage, bound: int) -> None:
        """Say that the bound is known to be as high as this. Something else must have been noted before."""
        if self._records:
            self.note(stage, self._records[-1].objective, bound)
