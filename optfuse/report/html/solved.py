"""A page of schedules that are in memory or in plans, rather than in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optfuse.problem.instance import Instance
from optfuse.report.html.entries import entries, solved_row
from optfuse.report.html.graph import graph_data
from optfuse.report.html.page import pack, page
from optfuse.solver.result import SolveResult


def solved_page(
    title: str, solved: Sequence[tuple[Instance, SolveResult, str, str]], extras: Mapping[str, Any] | None = None
) -> str:
    """The page of some solved problems, each with its module and that of greedy's schedule ("" if not emitted)."""
    graphs = {
        instance.name: pack(graph_data(instance, result, source, greedy_source))
        for instance, result, source, greedy_source in solved
    }
    rows = [solved_row(instance, result) for instance, result, _, _ in solved]
    versions = dict(pair for _, result, _, _ in solved for pair in result.versions)
    devices = dict.fromkeys(device.name for instance, *_ in solved for device in instance.devices)
    facts = [("device", ", ".join(devices)), *versions.items()]
    return page(title, entries(rows), graphs, facts=facts, extras=extras, single=len(solved) == 1 and not extras)
