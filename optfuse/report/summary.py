"""The figures of a solve as plain data: what ``--json`` prints and what a zoo run collects, one record a graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from optfuse.problem.instance import Instance
from optfuse.solver.result import SolveResult


def summary(
    instance: Instance,
    result: SolveResult,
    library_ops: Iterable[str] | None = None,
    decided: Iterable[str] | None = None,
) -> dict[str, Any]:
    """One flat record. Times are picoseconds under the model unless the key ends in ``_s``, sizes are bytes.

    Args:
        instance: The problem.
        result: What the solver returned for it.
        library_ops: ATen operators that are called as they are: no loops are generated for them. Left out: the
            instance's library ops by name, since an instance does not know operators.
        decided: What was decided before the solver, a phrase each. Left out: the record says nothing of it, since an
            instance does not know.
    """
    statistics = result.statistics
    if library_ops is None:
        library_ops = (op.name for op in instance.ops if op.kind != "loop")
    return {
        "name": instance.name,
        "status": result.status,
        "objective": result.objective,
        "bound": result.bound,
        "gap": result.gap,
        "greedy_objective": result.greedy_objective,
        "ops": len(instance.ops),
        "kernels": len(result.solution.kernels),
        "greedy_kernels": len(result.greedy_solution.kernels),
        "blocks": statistics.blocks,
        "unique_blocks": statistics.unique_blocks,
        "candidates": statistics.candidates,
        "cuts": statistics.cuts,
        "rounds": statistics.rounds,
        "wall_s": round(statistics.wall_s, 3),
        "peak_memory_bytes": result.solution.peak_bytes,
        "peak_memory_bound": statistics.order_bound,
        "peak_memory_proven": statistics.order_proven,
        "peak_memory_by_heuristic": dict(statistics.heuristic_peaks),
        "greedy_peak_memory_bytes": result.greedy_solution.peak_bytes,
        **({} if statistics.overlap is None else {"overlap": asdict(statistics.overlap)}),
        **({} if statistics.sharing is None else {"sharing": asdict(statistics.sharing)}),
        "library_ops": sorted(set(library_ops)),
        **({} if decided is None else {"decisions": list(decided)}),
        "given_up": list(statistics.given_up),
        "stopped": statistics.stopped,
        "progress": [[round(r.seconds, 3), r.stage, r.objective, r.bound] for r in statistics.progress],
        "seed": result.seed,
        "versions": dict(result.versions),
    }


def certificate(result: SolveResult) -> str:
    """One line that says what was proved, and for which model."""
    each = "" if result.statistics.sharing is None else ", with a launch for each kernel"
    if result.status == "OPTIMAL":
        return f"proven optimal for the stated model of cost and legality{each}"
    return f"not proven optimal: under the stated model no legal schedule is more than {result.gap:.2%} cheaper{each}"


def shared_launches(result: SolveResult) -> str:
    """One line on kernels that share launches; "" where none do."""
    found = result.statistics.sharing
    if found is None:
        return ""
    total = result.objective - found.saved_ps
    proven = found.launches == found.launches_bound
    least = "no order of them has fewer" if proven else f"no order of them has fewer than {found.launches_bound}"
    gap = 1 - found.bound / max(1, total)
    proof = "proven optimal for the stated model, whichever kernels share launches"
    if gap:
        least_us = f"{found.bound / 1e6:.1f} us (gap {gap:.2%})"
        proof = f"not proven optimal: under the stated model no schedule, sharing or not, takes less than {least_us}"
    return (
        f"{found.kernels} kernels run in {found.launches} launch{'es' if found.launches > 1 else ''} ({least}), which "
        f"saves {found.saved_ps / 1e6:.1f} us: {total / 1e6:.1f} us in all, {proof}"
    )


def communication(result: SolveResult) -> str:
    """One line on communication beside computation; "" for a graph without collectives."""
    found = result.statistics.overlap
    if found is None:
        return ""
    return (
        f"{found.transfers / 1e6:.1f} us of communication, {found.exposed / 1e6:.1f} us of it exposed: the call takes "
        f"{found.makespan / 1e6:.1f} us, {found.before / 1e6:.1f} us in the order of least memory; no order of these "
        f"kernels takes less than {found.bound / 1e6:.1f} us (gap {found.gap:.2%})"
    )


def before_solver(decided: Iterable[str]) -> str:
    """A clause that lists the decisions made before the solver, given a phrase for each."""
    return f"decided before the solver: {', '.join(decided) or 'nothing'}"


def change(before: float, after: float) -> str:
    """A signed percentage of ``before``, or a dash when there is nothing to compare with."""
    if before == 0:
        return "-" if after == 0 else "new"
    return f"{(after - before) / before:+.2%}"
