"""Pages for tests: of made-up graphs with two schedules each, and of one whose names are hostile."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from optfuse.problem.instance import Instance
from optfuse.report.html.entries import entries, solved_row
from optfuse.report.html.graph import graph_data
from optfuse.report.html.page import pack, page
from optfuse.report.table import kernel_rows
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.control.progress import Progress
from optfuse.solver.result import SolveResult
from optfuse.solver.solve import solve
from tests.layered import build
from tests.report.cases import example, result_of, solution_of

HOSTILE = '<img src=x onerror="window.harmed=1"></script><script>window.harmed=1</script>{{script}}'
LARGE = 1000


@cache
def contrast(seed: int, ops: int, name: str) -> tuple[Instance, SolveResult]:
    """A made-up graph; every op alone against greedy's schedule, as if the latter had been the solver's."""
    instance = replace(build(seed, ops), name=name)
    chosen = solve(instance, SolveOptions(solver="greedy", order="program")).solution
    alone = solution_of(instance, *(((op,), instance.ops[op].offers[0].scheme) for op in range(ops)))
    rows = kernel_rows(instance, alone)
    result = result_of(replace(alone, peak_bytes=max(row.live_bytes for row in rows)), chosen)
    progress = (
        Progress(0.05, "greedy", alone.objective, 0),
        Progress(0.6, "search", chosen.objective, chosen.objective // 2),
        Progress(2.5, "done", chosen.objective, chosen.objective),
    )
    return instance, replace(result, statistics=replace(result.statistics, progress=progress))


@cache
def hostile() -> tuple[Instance, SolveResult]:
    """The example, with names that are HTML."""
    plain = example()
    ops = tuple(replace(op, name=HOSTILE + str(k), module=HOSTILE, source=HOSTILE) for k, op in enumerate(plain.ops))
    buffers = tuple(replace(buffer, name=HOSTILE + str(k)) for k, buffer in enumerate(plain.buffers))
    instance = replace(plain, name=HOSTILE, ops=ops, buffers=buffers)
    apart = solution_of(instance, ((0, 1), 1), ((2,), 2))
    return instance, result_of(apart, solution_of(instance, ((0, 1, 2), 2)))


@cache
def example_page() -> str:
    """Six graphs, one of them large, one hostile and one not solved."""
    solved = [contrast(k, 30 + k, f"model{k}.{kind}") for k, kind in enumerate(("inference", "forward", "backward"))]
    solved += [contrast(9, LARGE, "large.backward"), hostile()]
    rows: list[dict[str, Any]] = [solved_row(*found) for found in solved]
    failed = {
        "graph": "broken.inference",
        "solver": "cpsat",
        "outcome": "crash",
        "stage": "solve",
        "reason": HOSTILE,
        "objective": None,
        "gap": None,
        "peak_memory_bytes": None,
        "ops": None,
    }
    rows += [failed, {**rows[0], "solver": "other"}]
    code = f"@triton.jit\ndef k0(x):\n    # {HOSTILE}\n    return x"
    module = (
        f"import torch\n\n\n{code}\n\n\ndef call(inputs, constants):\n\n    # k0\n    launch(k0, x)\n\n    return ()"
    )
    graphs = {
        instance.name: pack(
            graph_data(instance, result, module if instance.name == HOSTILE else "", others={"other": result.solution})
        )
        for instance, result in solved
    }
    extras = {"bench": made_up_bench(), "pareto": made_up_sweep()}
    return page(f"Run {HOSTILE}", entries(rows), graphs, failures=[failed], facts=[("device", HOSTILE)], extras=extras)


def made_up_bench() -> dict[str, Any]:
    """Three kernels of a measured model, and one model that failed."""
    prediction = {"kernels": 3, "spearman": 0.9, "median_relative_error": 0.2}
    kernels = [
        {"row": "net", "name": HOSTILE, "kind": "triton", "predicted_us": 2.0 * k, "measured_us": 3.0 * k}
        | {"read_bytes": 1 << 20, "write_bytes": 1 << 20, "peak_share": 0.5}
        for k in (1, 2, 3)
    ]
    ratios = {"memory_ratio": None, "compile_ratio": None, "wrong": []}
    rows = [
        {"row": "net", "times_ms": {"eager": 2.0, "optfuse": 1.0}, "speedup": 2.0, "failed": {}, **ratios},
        {"row": "bad", "times_ms": {"eager": 2.0}, "speedup": None, "failed": {"optfuse": HOSTILE}, **ratios},
    ]
    predictions = {"all": prediction, "triton": prediction, "library": {**prediction, "kernels": 0, "spearman": None}}
    head = {"device": HOSTILE, "torch": "2", "geomean": 2.0}
    return {**head, "kernels": kernels, "rows": rows, "prediction": predictions}


def made_up_sweep() -> list[dict[str, Any]]:
    """A cap that is met, and one that is not."""
    cap = {"name": HOSTILE, "status": "OPTIMAL", "bound": 900_000, "floor_bytes": 1 << 20}
    met = {**cap, "cap_bytes": 4 << 20, "peak_memory_bytes": 4 << 20, "objective": 1_000_000}
    unmet = {**cap, "cap_bytes": 2 << 20, "peak_memory_bytes": None, "objective": None, "status": "UNKNOWN"}
    return [{"name": HOSTILE, "caps": [met, unmet]}]
