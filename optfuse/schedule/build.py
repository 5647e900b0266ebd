"""From a graph that is ready to be solved to its schedule: the user's rules, the solver, and code generation."""

from __future__ import annotations

from dataclasses import replace

from optfuse.cache import Cache
from optfuse.compiler.simplify.decisions import uncertified
from optfuse.schedule.emit import emit
from optfuse.schedule.graph_partition import with_few_cuts
from optfuse.schedule.prepared import Prepared
from optfuse.schedule.scheduled import ScheduledGraph
from optfuse.schedule.solve_once import Solved, solve_once
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.rules.conflict import under_rules
from optfuse.solver.solve import solve


def solve_prepared(
    prepared: Prepared, options: SolveOptions, cache: Cache | None = None, solved: Solved | None = None
) -> ScheduledGraph:
    """The solver and the stages after it, for a graph that may come from a folder.

    ``cache``: where solutions are kept, see ``schedule.solve_once``. ``solved``: results that are known already. None:
    it is solved in any case.
    """
    problem = prepared.extraction
    extraction = replace(problem, instance=under_rules(problem.instance, options.rules))  # the user's rules
    capped = options.peak_memory is not None or extraction.instance.rules.peak_memory is not None
    extraction = replace(extraction, decided=uncertified(extraction.decided, capped=capped))
    options = replace(options, rules=())
    # fusion problem to proven solution, checked
    result = None if solved is None else solved.result(extraction.instance, options)
    if result is None:
        result = solve_once(extraction.instance, options, cache) if cache else solve(extraction.instance, options)
    result = with_few_cuts(extraction, result, options)  # the order in which steps outside of CUDA graphs cut least
    source = emit(extraction, result)  # solution to Triton and host source
    return ScheduledGraph(extraction, result, source, prepared.interface)
