"""Local search over tiles: from the chosen tile to its fastest neighbour, as long as one is measured to be faster.

All kernels take each step together, so that the step's candidates are compiled in parallel. The measuring function is
an argument; this module does not depend on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from optfuse.compiler.codegen.tiles import TileConfig

#: Steps from the first configuration, at most; the first ones gain most.
STEPS = 4
#: New configurations a kernel and step, at most.
WIDTH = 12
#: Runs of a candidate in a step, and of the winner against the first one at the end.
STEP_RUNS, FINAL_RUNS = 7, 25
#: A winner must be faster than the first configuration by this share, or the difference may be noise.
MARGIN = 0.02


@dataclass(frozen=True, slots=True)
class Trial:
    """A configuration to measure; ``kernel`` is the kernel's index in the search."""

    kernel: int
    config: TileConfig


#: Microseconds of each trial, the median of so many runs; None for what does not compile, spills or does not start.
Measure = Callable[[Sequence[Trial], int], Sequence[float | None]]
#: The configurations one step away from one of a kernel's.
Near = Callable[[int, TileConfig], Sequence[TileConfig]]


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: the best configuration, its microseconds and the first one's, and the number tried.

    ``start_us`` is 0 if the first configuration could not be measured; it is then kept.
    """

    config: TileConfig
    us: float
    start_us: float
    tried: int


def search(starts: Sequence[TileConfig], near: Near, measure: Measure) -> tuple[Found, ...]:
    """Return the best configuration for each kernel; the first one unless another is faster by ``MARGIN``."""
    known: list[dict[TileConfig, float | None]] = [{} for _ in starts]
    _measure_new(known, [Trial(k, start) for k, start in enumerate(starts)], measure)
    best = list(starts)
    moving = [k for k, start in enumerate(starts) if known[k][start] is not None]
    for _ in range(STEPS):
        trials = [Trial(k, config) for k in moving for config in _unseen(known[k], near(k, best[k]))]
        if not trials:
            break
        _measure_new(known, trials, measure)
        still: list[int] = []
        for k in moving:
            fastest = min((us, n) for n, us in enumerate(known[k].values()) if us is not None)
            winner = list(known[k])[fastest[1]]
            if winner != best[k]:
                best[k] = winner
                still.append(k)
        moving = still
    return _confirmed(starts, best, known, measure)


def _unseen(known: dict[TileConfig, float | None], configs: Sequence[TileConfig]) -> list[TileConfig]:
    return [config for config in configs if config not in known][:WIDTH]


def _measure_new(known: list[dict[TileConfig, float | None]], trials: Sequence[Trial], measure: Measure) -> None:
    for trial, us in zip(trials, measure(trials, STEP_RUNS), strict=True):
        known[trial.kernel][trial.config] = us


def _confirmed(
    starts: Sequence[TileConfig],
    best: Sequence[TileConfig],
    known: Sequence[dict[TileConfig, float | None]],
    measure: Measure,
) -> tuple[Found, ...]:
    """Measure winners against first configurations again: the minimum of many noisy times is biased low."""
    changed = [k for k, start in enumerate(starts) if best[k] != start]
    trials = [Trial(k, config) for k in changed for config in (starts[k], best[k])]
    times = iter(measure(trials, FINAL_RUNS) if trials else ())
    found: list[Found] = []
    for k, start in enumerate(starts):
        before = after = known[k][start] or 0.0
        winner = start
        if best[k] != start:
            first, last = next(times), next(times)
            if first is not None and last is not None:
                before = after = first
                if last < first * (1 - MARGIN):
                    winner, after = best[k], last
        found.append(Found(winner, after, before, len(known[k])))
    return tuple(found)
