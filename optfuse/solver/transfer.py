"""A plan at other sizes: the same kernels of the same ops, priced by an instance of the same graph at other sizes.

Which ops share a kernel, and what each kernel writes, stay; iteration orders are the other instance's own, since their
sizes and their number may differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from optfuse.problem.checker import check
from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Instance
from optfuse.problem.legality import common_schemes, is_legal, listed
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.memory.assemble import arrange
from optfuse.solver.memory.order_problem import order_problem


def difference(here: Instance, there: Instance) -> str | None:
    """In what two instances are not the same graph at two sizes; None if their ops correspond one to one."""
    facts = zip(_structure(here), _structure(there), strict=True)
    return next((f"other {what}" for (what, own), (_, other) in facts if own != other), None)


def transferred(solution: Solution, here: Instance, there: Instance) -> Solution | str:
    """The solution of ``here`` as one of ``there``, with its cost and memory there, or why it does not hold there.

    Each kernel takes the cheapest iteration order that is legal there. The order of kernels stays; the arena is packed
    anew, quickly, so its size is no minimum.
    """
    other = difference(here, there)
    if other is not None:
        return other
    kernels: list[Kernel] = []
    for kernel in solution.kernels:
        legal = [scheme for scheme in common_schemes(there, kernel.ops) if is_legal(there, kernel.ops, scheme)]
        if not legal:
            return f"{listed(there, kernel.ops)} cannot share a kernel"
        costs = {scheme: kernel_cost(there, kernel.ops, scheme, kernel.writes) for scheme in legal}
        kernels.append(replace(kernel, scheme=min(legal, key=lambda scheme: costs[scheme])))
    moved = arrange(there, kernels, order_problem(there, kernels), range(len(kernels)), hurried=True)
    broken = check(there, moved)
    return broken[0].message if broken else moved


def _structure(instance: Instance) -> Iterator[tuple[str, object]]:
    """What does not depend on sizes, by name."""
    yield "ops", [(op.name, op.kind, op.device) for op in instance.ops]
    yield "buffers", [(buffer.name, buffer.kind) for buffer in instance.buffers]
    yield "edges", [(edge.src, edge.dst, edge.buffer) for edge in instance.edges]
    yield "alternatives", list(instance.variants)
