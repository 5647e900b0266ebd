"""Check which kernels of a solution share a launch, and what that is said to save.

Kernels of one launch follow each other in the order, and none takes what another makes or waits for it. They hold loops
alone, without products of matrices and barriers, on one device that has a price for it. Those whose memory and compute
time is above a launch's hold ops of the same forms, and each of these ops has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optfuse.problem.checker_case import Case, Violation
from optfuse.problem.cost import kernel_price, shared_saving
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Kernel, Solution


def malformed(solution: Solution) -> Iterator[Violation]:
    """Launches of kernels that do not exist, do not follow each other, or are in two launches."""
    following = -1
    for launch in solution.launches:
        run = tuple(range(launch[0], launch[0] + len(launch))) if launch else ()
        if len(launch) < 2 or launch != run or launch[0] <= following or launch[-1] >= len(solution.kernels):
            yield Violation("launch", f"the launch of kernels {launch} is no run of kernels after those before")
            return
        following = launch[-1]


def launch_numbers(solution: Solution) -> tuple[int, ...]:
    """By kernel, the number of its launch in order."""
    joined = {position for launch in solution.launches for position in launch[1:]}
    numbers: list[int] = []
    for position in range(len(solution.kernels)):
        numbers.append((numbers[-1] if numbers else -1) + (position not in joined))
    return tuple(numbers)


def check_launches(case: Case) -> Iterator[Violation]:
    """The violations of shared launches."""
    for launch in case.solution.launches:
        yield from _alone(case, launch)
        yield from _unlike(case, launch)
        yield from _dependent(case, launch)
    saved = shared_saving(case.instance, case.solution.kernels, case.solution.launches)
    if saved != case.solution.saved_ps:
        yield Violation("saving", f"launches save {saved} ps, but the solution says {case.solution.saved_ps}")


def _alone(case: Case, launch: Sequence[int]) -> Iterator[Violation]:
    """Kernels that have a launch of their own, whatever the others are."""
    instance = case.instance
    devices = {instance.ops[case.solution.kernels[position].ops[0]].device for position in launch}
    if len(devices) > 1:
        yield Violation("launch", f"{case.label(launch[0])} shares a launch with kernels of other devices")
    for position in launch:
        for number in case.solution.kernels[position].ops:
            op = instance.ops[number]
            price = instance.devices[op.device].shared_ps
            if op.kind != "loop" or op.work.tensor or number in instance.rules.barrier:
                yield Violation("launch", f"{case.label(position)} shares a launch, but {op.name} runs alone")
            elif op.launch_ps:
                yield Violation("launch", f"{case.label(position)} shares a launch, but {op.name} makes its own dearer")
            elif not 0 < price < instance.devices[op.device].launch_ps:
                yield Violation("launch", f"{case.label(position)} shares a launch, for which its device has no price")


def _unlike(case: Case, launch: Sequence[int]) -> Iterator[Violation]:
    """Kernels that take longer than a launch, and whose ops are not of the same forms."""
    first: tuple[int, list[int]] | None = None
    for position in launch:
        kernel = case.solution.kernels[position]
        if _is_small(case.instance, kernel):
            continue
        forms = sorted(case.instance.ops[op].form for op in kernel.ops)
        if 0 in forms:
            yield Violation("launch", f"{case.label(position)} shares a launch; it is large, and an op has no form")
        first = first or (position, forms)
        if forms != first[1]:
            yield Violation("launch", f"{case.label(first[0])} and {case.label(position)} are large and not alike")


def _is_small(instance: Instance, kernel: Kernel) -> bool:
    price = kernel_price(instance, kernel.ops, kernel.scheme, kernel.writes)
    return max(price.memory, price.compute) <= instance.devices[instance.ops[kernel.ops[0]].device].launch_ps


def _dependent(case: Case, launch: Sequence[int]) -> Iterator[Violation]:
    """Pairs of kernels of which one takes what the other makes, or must run after it."""
    for position in launch:
        inside = case.solution.kernels[position].ops
        for edge in (edge for op in inside for edge in case.out[op]):
            for other in {*case.runs[edge.dst]} & {*launch} - {position}:
                if edge.buffer is None or edge.src not in case.solution.kernels[other].ops:
                    yield Violation("launch", f"{case.label(other)} needs {case.label(position)} of its launch")
