"""A lower bound on the time of every schedule in which kernels share launches.

The relaxation: each kernel pays only for a shared launch, so that it does not matter which share one. It is an instance
like any other, with cheaper launches, and solved like one. What its kernels leave unpaid, some of every schedule's
must pay: those that can share no launch, and those that wait for each other in a row
(``bounds.cost_bound.unshared_launches``).

On real graphs its best partition is nearly always that of the instance itself, so that its kernels are not used.
"""

from __future__ import annotations

from dataclasses import replace

from optfuse.problem.cost import total_cost
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Solution
from optfuse.solver.bounds.cost_bound import shared_bound, unshared_launches
from optfuse.solver.control.clock import Clock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve_blocks import solve_cpsat


def with_shared_launches(instance: Instance) -> Instance:
    """The instance in which every launch costs what a shared one does, without a cap on memory."""
    devices = tuple(
        replace(device, launch_ps=device.shared_ps) if 0 < device.shared_ps < device.launch_ps else device
        for device in instance.devices
    )
    return replace(instance, devices=devices, rules=replace(instance.rules, peak_memory=None))


def sharing_bound(instance: Instance, start: Solution, options: SolveOptions, deadline: float, clock: Clock) -> int:
    """A bound on the objective less what shared launches save, over all schedules without recomputation.

    ``start`` is a solution of the instance, from whose kernels the search for the relaxation's optimum starts.
    """
    relaxed = with_shared_launches(instance)
    warm = replace(start, objective=total_cost(relaxed, start.kernels))
    found = solve_cpsat(relaxed, options, warm, deadline, clock)
    return max(shared_bound(instance), found.bound + unshared_launches(instance))
