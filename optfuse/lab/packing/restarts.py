"""Tree search with restarts: each run is short, and the next tries first what the last ones had no room for.

A run that fails blames the sections in which the open buffers no longer fitted. Buffers of blamed sections rise in the
order of choices. What decides beyond that (length, area, size, and how much blame weighs) is drawn anew for each run.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

import numpy as np

from optfuse.lab.packing.layout import Ints, Layout, Outcome
from optfuse.lab.packing.machine_code import ready
from optfuse.lab.packing.tree import TreeSearch

#: Choices tried in one run, drawn for each.
RUN_NODES = (500, 1500, 1500, 5000)
PLAIN_NODES = 2500
#: What is kept of earlier blame after each run.
MEMORY = 0.8


def search(
    problem: Layout,
    capacity: int,
    seed: int,
    deadline: float,
    stop: Callable[[], bool] = lambda: False,
    pinned: Ints | None = None,
    max_nodes: float = math.inf,
) -> tuple[Outcome, tuple[int, ...], int]:
    """Offsets in units within a capacity in units: ("packed", offsets, nodes); offsets are empty otherwise.

    Args:
        problem: The buffers.
        capacity: Units.
        seed: Of the random choices; the outcome is a function of it unless time runs out.
        deadline: By ``time.monotonic``.
        stop: Asked between runs; True ends the search.
        pinned: Offsets that are given, -1 for free buffers.
        max_nodes: No run is begun after so many choices.
    """
    if not ready(deadline, stop):
        return "stopped", (), 0
    rng = random.Random(seed)
    tree = TreeSearch(problem, capacity, pinned)
    blame = np.zeros(problem.sections)
    keys = _plain_keys(problem)
    nodes = 0
    run = 0
    while time.monotonic() < deadline and nodes < max_nodes and not stop():
        key = keys[run] if run < len(keys) else _learned_key(problem, blame, rng)
        by_offset = run < len(keys) or rng.random() < 2 / 3
        limit = PLAIN_NODES if run < len(keys) else rng.choice(RUN_NODES)
        outcome = tree.run(_ranks(key), by_offset, limit, deadline)
        nodes += tree.nodes
        if outcome == "packed":
            return outcome, tree.offsets, nodes
        if outcome == "infeasible":
            return outcome, (), nodes
        if tree.blame.any():
            blame = MEMORY * blame + (1 - MEMORY) * tree.blame / tree.blame.max()
        run += 1
    return "stopped", (), nodes


def _plain_keys(problem: Layout) -> list[np.ndarray]:
    """Orders that need no learning: by the fullest section of a buffer, then its length or its area; by size."""
    fullest = np.where(problem.cover, problem.loads, 0).max(axis=1) / max(1, problem.loads.max())
    length = problem.durations / problem.durations.max()
    size = problem.sizes / problem.sizes.max()
    area = length * size
    return [1e6 * fullest + length + 1e-6 * area, 1e6 * fullest + area, 1e3 * length + area, size]


def _learned_key(problem: Layout, blame: np.ndarray, rng: random.Random) -> np.ndarray:
    weights = blame + rng.choice((0.0, 1.0)) * problem.loads / max(1, problem.loads.max())
    width = problem.cover.sum(axis=1)
    of_buffer = (
        np.where(problem.cover, weights, 0).max(axis=1)
        if rng.random() < 0.5
        else (problem.cover @ weights) / np.maximum(1, width)
    )
    even = np.ones(problem.count)
    extent = rng.choice((problem.durations, problem.durations * problem.sizes, problem.sizes, width, even, even))
    noise = np.array([rng.gauss(0.0, 1.0) for _ in range(problem.count)])
    return np.log1p(extent) + rng.choice((0, 1, 5, 20)) * of_buffer + rng.choice((0.0, 0.1, 0.5)) * noise


def _ranks(key: np.ndarray) -> Ints:
    """The place of each buffer when the largest key comes first."""
    ranks = np.empty(len(key), np.int64)
    ranks[np.argsort(-key, kind="stable")] = np.arange(len(key))
    return ranks
