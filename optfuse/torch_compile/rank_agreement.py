"""Check that all ranks of a group start a graph's collectives in the same order, since otherwise they deadlock."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict

import torch

from optfuse.compiler.ir.collectives import communicates
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, views
from optfuse.errors import RankOrderError
from optfuse.problem.solution import Solution

#: How often this process has compiled a graph of these collectives.
_compiled: Counter[str] = Counter()


def starts_by_group(graph: LoopGraph, solution: Solution) -> dict[str, list[str]]:
    """By group, what each collective sends, in the order in which the schedule starts them."""
    dtypes = {buffer.name: buffer.dtype for buffer in graph.buffers}
    found: defaultdict[str, list[str]] = defaultdict(list)
    for kernel in solution.kernels:
        op = graph.ops[kernel.ops[0]]
        if isinstance(op, LibraryCall) and communicates(op) and op.group:
            sent = [[dtypes[view.buffer], list(view.shape)] for view in views(op)]
            found[op.group].append(json.dumps([op.target, sent]))
    return dict(found)


def require_one_order(graph: LoopGraph, solution: Solution, compiled: Counter[str] = _compiled) -> None:
    """Compare the order of starts with that of the first rank which compiled a graph of the same collectives.

    Ranks may cut a model into graphs at different places, so a graph with other collectives is not compared. One
    request to the store for each group; nothing waits for another rank. ``compiled`` counts how often this process has
    compiled a graph of some collectives.

    Raises
    ------
    RankOrderError
        If the order is another one.
    """
    groups = starts_by_group(graph, solution)
    if not groups or not torch.distributed.is_initialized() or torch.distributed.get_backend() == "fake":
        return
    store = torch.distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - the store has no public name
    for group, starts in groups.items():
        same = f"optfuse/starts/{group}/{_digest(sorted(starts))}"
        compiled[same] += 1
        mine = _digest(starts)
        first = store.compare_set(f"{same}/{compiled[same]}", "", mine).decode()
        if first != mine:
            rank = torch.distributed.get_rank()
            raise RankOrderError(
                f"{graph.name}: rank {rank} starts the {len(starts)} collectives of group {group!r} in another order "
                "than the first rank that compiled this graph; run the same code with the same options on all ranks"
            )


def _digest(starts: list[str]) -> str:
    return hashlib.sha256(json.dumps(starts).encode()).hexdigest()
