"""Solutions that are kept between processes: an instance that was solved before is checked, not solved again.

A record is found by the instance without its names (so graphs that torch.compile numbers anew, and layers that are
alike, share one), the options, and the versions of what solves. A solution that is read passes the checker or counts as
none; its bound is what an earlier solve of this very code has proved.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from optfuse.cache import Cache, cache_dir
from optfuse.errors import InvalidSolutionError
from optfuse.problem.checker import check
from optfuse.problem.instance import Instance
from optfuse.problem.serialize import digest, solution_from_json, solution_to_json
from optfuse.problem.solution import Solution
from optfuse.schedule.result_file import result_from_plain, result_to_plain
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.result import SolveResult, installed
from optfuse.solver.solve import solve
from optfuse.version import code_digest

logger = logging.getLogger("optfuse")


def solution_cache() -> Cache:
    """The user's cache of solutions."""
    return Cache(cache_dir() / "solved")


def solve_once(instance: Instance, options: SolveOptions, cache: Cache) -> SolveResult:
    """The result of ``solve``, from the cache where an instance like this was solved before under these options.

    ``options`` hold no rules: they are part of the instance. A solve that was stopped is not kept.
    """
    content = {
        "instance": digest(without_names(instance)),
        "options": {name: value for name, value in asdict(options).items() if name not in ("rules", "interruptible")},
        "versions": [["optfuse", code_digest()], *map(list, installed("ortools"))],
    }
    record = cache.read(content)
    found = None if record is None else _kept(instance, record)
    if found is None:
        found = solve(instance, options)
        if not found.statistics.stopped:
            texts = {"solution": found.solution, "greedy": found.greedy_solution}
            plain = {name: json.loads(solution_to_json(solution)) for name, solution in texts.items()}
            cache.write(content, {"result": result_to_plain(found), **plain})
    return found


@dataclass(frozen=True, slots=True)
class Solved:
    """Results that this process has already found, by instance with names removed."""

    results: Mapping[str, SolveResult] = field(default_factory=dict)

    @classmethod
    def of(cls, pairs: Iterable[tuple[Instance, SolveResult]]) -> Solved:
        """The results of some instances."""
        return cls({digest(without_names(one)): found for one, found in pairs})

    def result(self, instance: Instance, options: SolveOptions) -> SolveResult | None:
        """The result of an instance like this, if it is proven, or if it keeps the options' cap on peak memory.

        None as well where ``options``, which hold no rules, ask for recomputation, which may be cheaper.
        """
        found = None if options.recompute or not self.results else self.results.get(digest(without_names(instance)))
        if found is None or (found.status != "OPTIMAL" and options.peak_bytes is None):
            return None
        if options.peak_bytes is not None and found.solution.peak_bytes > options.peak_bytes:
            return None
        named = digest(instance)

        def renamed(solution: Solution) -> Solution:
            return replace(solution, instance_name=instance.name, instance_digest=named)

        solution, greedy = renamed(found.solution), renamed(found.greedy_solution)
        if any(True for _ in check(instance, solution)):
            return None
        return replace(found, solution=solution, greedy_solution=greedy)


def without_names(instance: Instance) -> Instance:
    """The instance with numbers for names: what the solver decides does not depend on them."""
    return replace(
        instance,
        name="",
        buffers=tuple(replace(buffer, name=str(number)) for number, buffer in enumerate(instance.buffers)),
        ops=tuple(replace(op, name=str(number)) for number, op in enumerate(instance.ops)),
        variants=tuple(replace(variant, name=str(number)) for number, variant in enumerate(instance.variants)),
    )


def _kept(instance: Instance, record: dict[str, Any]) -> SolveResult | None:
    """The result of a record, for an instance of these names; None if the checker refuses it, or it is damaged."""
    try:
        solution, greedy = (_answering(instance, record[name]) for name in ("solution", "greedy"))
        result = result_from_plain(record["result"], solution, greedy)
        refused = "; ".join(violation.message for violation in check(instance, solution)[:1])
    except (InvalidSolutionError, KeyError, TypeError, ValueError) as error:
        refused, result = f"{type(error).__name__}: {error}", None
    if refused:
        logger.warning("%s: a kept solution is damaged and is solved anew: %s", instance.name, refused)
        return None
    return result


def _answering(instance: Instance, plain: dict[str, Any]) -> Solution:
    solution = solution_from_json(json.dumps(plain), "a kept solution")
    return replace(solution, instance_name=instance.name, instance_digest=digest(instance))
