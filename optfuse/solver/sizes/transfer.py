"""A plan priced at other sizes: the same kernels of the same ops, in an instance of the same graph."""

from __future__ import annotations

from dataclasses import replace

from optfuse.problem.checker import check
from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Instance
from optfuse.problem.legality import common_schemes, is_legal, listed
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.memory.assemble import arrange
from optfuse.solver.memory.order_problem import order_problem


def transferred(solution: Solution, here: Instance, there: Instance) -> Solution | str:
    """The solution of ``here`` as one of ``there``, with its cost and memory there, or why it does not hold there.

    Ops and buffers correspond by their names. Which ops share a kernel, what each kernel writes and the order of
    kernels stay. Each kernel takes the cheapest iteration order that is legal there, since sizes decide which there
    are. The arena is packed anew, quickly, so its size is no minimum.
    """
    ops = {op.name: k for k, op in enumerate(there.ops)}
    buffers = {buffer.name: k for k, buffer in enumerate(there.buffers)}
    kernels: list[Kernel] = []
    for kernel in solution.kernels:
        names = [here.ops[k].name for k in kernel.ops]
        written = [here.buffers[k].name for k in kernel.writes]
        lost = next((name for name in names if name not in ops), None)
        lost = lost or next((name for name in written if name not in buffers), None)
        if lost is not None:
            return f"its graph has no {lost}"
        same = tuple(sorted(ops[name] for name in names))
        legal = [scheme for scheme in common_schemes(there, same) if is_legal(there, same, scheme)]
        if not legal:
            return f"{listed(there, same)} cannot share a kernel"
        writes = tuple(sorted(buffers[name] for name in written))
        costs = {scheme: kernel_cost(there, same, scheme, writes) for scheme in legal}
        kernels.append(replace(kernel, ops=same, scheme=min(legal, key=lambda scheme: costs[scheme]), writes=writes))
    moved = arrange(there, kernels, order_problem(there, kernels), range(len(kernels)), hurried=True)
    broken = check(there, moved)
    return broken[0].message if broken else moved
