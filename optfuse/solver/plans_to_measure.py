"""Other plans worth measuring: the best ones if the cost model were wrong in one rate, or without one fusion.

Prediction and measurement part where a rate of the device file is off for the kernels at hand: launches that cost more
than it says, arithmetic that does not hide behind memory, a cache that does not hold what it should. For each such
doubt the instance is solved with that rate changed, and the plan is then priced by the model as it is. Repeated layers
change together, as they would if the doubt were right, and every plan is the best answer to some question.

Where the best plan outlasts all doubts, the nearest others are those without one of its fusions: for each of its kinds
of kernels, the most expensive first, the best plan that cuts all kernels of that kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from optfuse.errors import IllegalKernelError, InfeasibleError, InvalidInstanceError
from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Device, Instance
from optfuse.problem.serialize import digest
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.result import SolveResult
from optfuse.solver.solve import solve


@dataclass(frozen=True, slots=True)
class NearPlan:
    """A plan, and why it is there: "best" under the model, "greedy", or the doubt under which it is the best."""

    origin: str
    solution: Solution


def _arithmetic(device: Device, percent: int) -> Device:
    return replace(
        device,
        fp32_ps_per_gop=device.fp32_ps_per_gop * percent // 100,
        special_ps_per_gop=device.special_ps_per_gop * percent // 100,
        atomic_ps_per_gop=device.atomic_ps_per_gop * percent // 100,
    )


def _irregular(device: Device, factor: int) -> Device:
    """The device with the surcharge of non-contiguous access multiplied by ``factor``."""
    return replace(
        device,
        strided_percent=100 + factor * max(0, device.strided_percent - 100),
        gather_percent=100 + factor * max(0, device.gather_percent - 100),
    )


#: What the model may be wrong about, likelier things first.
DOUBTS: tuple[tuple[str, Callable[[Device], Device]], ...] = (
    ("arithmetic costs twice as much", lambda d: _arithmetic(d, 200)),
    ("launches cost a third", lambda d: replace(d, launch_ps=d.launch_ps // 3)),
    ("launches cost three times as much", lambda d: replace(d, launch_ps=3 * d.launch_ps)),
    ("nothing stays in L2", lambda d: replace(d, l2_bytes=0)),
    ("reductions need four times the programs", lambda d: replace(d, saturating_programs=4 * d.saturating_programs)),
    ("few programs suffice", lambda d: replace(d, saturating_programs=1)),
    ("irregular access costs three times as much more", lambda d: _irregular(d, 3)),
    ("irregular access costs nothing more", lambda d: _irregular(d, 0)),
    ("arithmetic costs half", lambda d: _arithmetic(d, 50)),
)


#: Kinds of kernels that are cut, at most.
CUTS = 6


def near_plans(instance: Instance, result: SolveResult, options: SolveOptions, limit: int) -> tuple[NearPlan, ...]:
    """At most ``limit`` plans with different sets of kernels: the given one, then the cheapest others by the model.

    Args:
        instance: The problem, with the rules that hold.
        result: Its answer.
        options: Limits of each further solve. Rules in them are the instance's own, and not applied again.
        limit: How many plans, at least 1.
    """
    options = replace(options, rules=())
    found = {_partition(result.solution): NearPlan("best", result.solution)}
    greedy = NearPlan("greedy", result.greedy_solution)
    found.setdefault(_partition(greedy.solution), greedy)
    for origin, question in _questions(instance, result.solution) if limit > 1 else ():
        try:
            solution = solve(question, options).solution
        except (InfeasibleError, IllegalKernelError, InvalidInstanceError):  # over the cap, or against the user's rules
            continue
        found.setdefault(_partition(solution), NearPlan(origin, _priced(instance, solution)))
    best, *others = found.values()
    return (best, *sorted(others, key=lambda plan: plan.solution.objective)[: limit - 1])


def _questions(instance: Instance, solution: Solution) -> Iterator[tuple[str, Instance]]:
    for origin, change in DOUBTS:
        doubted = replace(instance, devices=tuple(change(device) for device in instance.devices))
        if doubted.devices != instance.devices:
            yield origin, doubted
    kinds: dict[tuple[int, ...], list[Kernel]] = {}
    for kernel in solution.kernels:
        if len(kernel.ops) > 1:
            scheme = instance.schemes[kernel.scheme]
            cost = kernel_cost(instance, kernel.ops, kernel.scheme, kernel.writes)
            kinds.setdefault((cost, len(kernel.ops), scheme.x, scheme.r), []).append(kernel)
    dearest = sorted(kinds.items(), key=lambda kind: -kind[0][0] * len(kind[1]))[:CUTS]
    for _, kernels in dearest:
        ends = tuple((min(kernel.ops), max(kernel.ops)) for kernel in kernels)
        first, last = (instance.ops[op].name for op in ends[0])
        rules = replace(instance.rules, no_fuse=(*instance.rules.no_fuse, *ends))
        yield f"{first} and {last} apart ({len(kernels)} kernels)", replace(instance, rules=rules)


def _priced(instance: Instance, solution: Solution) -> Solution:
    """A solution of the instance with other rates, as one of this instance."""
    cost = sum(kernel_cost(instance, kernel.ops, kernel.scheme, kernel.writes) for kernel in solution.kernels)
    return replace(solution, instance_name=instance.name, instance_digest=digest(instance), objective=cost)


def _partition(solution: Solution) -> frozenset[tuple[tuple[int, ...], int, tuple[int, ...]]]:
    return frozenset((kernel.ops, kernel.scheme, kernel.writes) for kernel in solution.kernels)
