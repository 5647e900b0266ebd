"""The rows of a run as one entry a graph: the chosen solver's figures, with the other solvers' costs beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from optfuse.problem.instance import Instance
from optfuse.report.rows import kind_of
from optfuse.solver.result import SolveResult

#: Preference among the solvers of a run for the schedule shown; solvers that are not listed come between.
FIRST, LAST = ("cpsat", "exhaustive"), ("greedy",)
#: Records of how a solve went that an entry keeps.
KEPT_RECORDS = 40

KINDS = ("inference", "forward", "backward")


def main_solver(solvers: Iterable[str]) -> str:
    """The solver whose schedule is shown beside greedy's."""
    names = sorted(set(solvers))
    order = [*FIRST, *(name for name in names if name not in (*FIRST, *LAST)), *LAST]
    return next(name for name in order if name in names)


def entries(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One entry a graph, in the order of the rows; ``data`` (where its picture lies) is filled in by ``page``.

    Args:
        rows: As ``read_run`` gives them, with ``progress`` (seconds, objective, bound) where it is known.
    """
    by_graph: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        by_graph.setdefault(row["graph"], {})[row["solver"]] = row
    return [_entry(graph, found) for graph, found in by_graph.items()]


def failures(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The failures: a line for each graph, stage and reason, with the solvers that it applies to.

    A graph that could not be captured fails for all of its solvers alike.
    """
    kept = ("graph", "stage", "outcome", "reason")
    solvers: dict[tuple[Any, ...], list[str]] = {}
    for row in rows:
        if row["outcome"] != "ok":
            solvers.setdefault(tuple(row.get(name) for name in kept), []).append(row["solver"])
    return [{**dict(zip(kept, key, strict=True)), "solver": ", ".join(names)} for key, names in solvers.items()]


def _entry(graph: str, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    main = found[main_solver(found)]
    greedy = found.get("greedy", main)
    kind = kind_of(graph)
    kind = kind if kind in KINDS else str(main.get("mode") or "instance")

    def figure(name: str) -> Any:
        return main.get(name)

    return {
        "graph": graph,
        "model": graph.removesuffix(f".{kind}"),
        "kind": kind,
        "solver": main["solver"],
        "outcome": main["outcome"],
        "reason": main.get("reason"),
        "proven": bool(main.get("proven")),
        "ops": figure("ops"),
        "library_calls": figure("library_calls"),
        "greedy_kernels": _first(main, greedy, "greedy_kernels"),
        "kernels": figure("kernels"),
        "greedy": _first(main, greedy, "greedy_objective"),
        "objective": figure("objective"),
        "bound": figure("bound"),
        "gap": figure("gap"),
        "greedy_peak": _first(main, greedy, "greedy_peak_memory_bytes"),
        "peak": figure("peak_memory_bytes"),
        "solve_s": figure("solve_s"),
        "cpu_s": figure("cpu_s"),
        "others": {
            solver: row["objective"]
            for solver, row in found.items()
            if row is not main and solver != "greedy" and row.get("objective")
        },
        "agreement": found["inductor"].get("agreement") if "inductor" in found else None,
        "progress": thinned(main.get("progress") or ()),
        "data": None,
    }


def _first(main: Mapping[str, Any], greedy: Mapping[str, Any], name: str) -> Any:
    value = main.get(name)
    return greedy.get(name) if value is None else value


def thinned(records: Sequence[Sequence[float]]) -> list[list[float]]:
    """At most ``KEPT_RECORDS`` of some records, the first and the last among them."""
    if len(records) <= KEPT_RECORDS:
        return [list(record) for record in records]
    last = len(records) - 1
    return [list(records[round(k * last / (KEPT_RECORDS - 1))]) for k in range(KEPT_RECORDS)]


def solved_row(instance: Instance, result: SolveResult) -> dict[str, Any]:
    """The row of a solve that belongs to no run."""
    return {
        "graph": instance.name,
        "solver": "cpsat",
        "outcome": "ok",
        "proven": result.status == "OPTIMAL",
        "ops": len(instance.ops),
        "library_calls": sum(op.kind != "loop" for op in instance.ops),
        "greedy_kernels": len(result.greedy_solution.kernels),
        "kernels": len(result.solution.kernels),
        "greedy_objective": result.greedy_objective,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "greedy_peak_memory_bytes": result.greedy_solution.peak_bytes,
        "peak_memory_bytes": result.solution.peak_bytes,
        "solve_s": result.statistics.wall_s,
        "progress": progress_records(result),
    }


def progress_records(result: SolveResult) -> list[list[float]]:
    """How a solve went: seconds, objective, bound."""
    return [[round(p.seconds, 3), p.objective, p.bound] for p in result.statistics.progress]
