"""A lower bound on the time of every schedule in which kernels share launches.

The relaxation: a kernel pays for a launch of its own only where it surely has one, else for a shared one. That is an
instance like any other, in which some ops make a launch dearer (``Op.launch_ps``), and it is solved like one. A kernel
surely has its own launch

- if one of its ops may share none: a library call, a product of matrices, a barrier;
- if it holds an op of a *chain*, a path of ops of which each follows from the one before: kernels along a path wait for
  each other, so that no two of them share a launch. Any path will do; the one through most kernels of a good
  partition bounds best.

On real graphs the relaxation's best partition shares launches hardly better than the instance's own, or worse, so that
its kernels are not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from optfuse.problem.cost import total_cost
from optfuse.problem.instance import Instance
from optfuse.problem.launches import never_shares
from optfuse.problem.legality import legal_index
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.bounds.cost_bound import shared_bound
from optfuse.solver.control.clock import Clock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve_blocks import solve_cpsat


def sharing_bound(instance: Instance, start: Solution, options: SolveOptions, deadline: float, clock: Clock) -> int:
    """A bound on the objective less what shared launches save, over all schedules without recomputation.

    ``start`` is a solution of the instance: the search begins with its kernels, and the chain is one of theirs.
    """
    relaxed = with_shared_launches(instance, longest_chain(instance, start.kernels))
    warm = replace(start, objective=total_cost(relaxed, start.kernels))
    found = solve_cpsat(relaxed, options, warm, deadline, clock)
    return max(shared_bound(instance), found.bound)


def with_shared_launches(instance: Instance, chain: Iterable[int]) -> Instance:
    """The instance whose kernels pay for a shared launch, but for those that may share none or hold an op of ``chain``.

    It has no cap on memory.
    """
    saved = [max(0, d.launch_ps - d.shared_ps) if d.shared_ps else 0 for d in instance.devices]
    in_chain = set(chain)
    ops = tuple(
        replace(op, launch_ps=op.launch_ps + saved[op.device]) if n in in_chain or never_shares(instance, n) else op
        for n, op in enumerate(instance.ops)
    )
    devices = tuple(
        replace(device, launch_ps=device.launch_ps - less) for device, less in zip(instance.devices, saved, strict=True)
    )
    return replace(instance, devices=devices, ops=ops, rules=replace(instance.rules, peak_memory=None))


def longest_chain(instance: Instance, kernels: Sequence[Kernel]) -> list[int]:
    """Ops of which each follows from the one before in every schedule, through most of the kernels that could share.

    Kernels that never share a launch do not count: they pay for their own in any case.
    """
    owner = {op: number for number, kernel in enumerate(kernels) for op in kernel.ops}
    counts = [not any(never_shares(instance, op) for op in kernel.ops) for kernel in kernels]
    passed = {op: int(counts[number]) for op, number in owner.items()}
    before: dict[int, int] = {}
    for source, op in sorted(_always_before(instance), key=lambda pair: (pair[1], pair[0])):
        through = passed[source] + (counts[owner[op]] if owner[source] != owner[op] else 0)
        if through > passed[op] or (op not in before and through == passed[op]):
            passed[op], before[op] = through, source
    chain: list[int] = []
    op = max(passed, key=lambda op: (passed[op], -op), default=None)
    while op is not None:
        chain.append(op)
        op = before.get(op)
    return chain[::-1]


def _always_before(instance: Instance) -> set[tuple[int, int]]:
    """Pairs of ops that run in any case, the second after the first whichever alternatives run."""
    mandatory = legal_index(instance).mandatory
    pairs = {(e.src, e.dst) for e in instance.edges if mandatory >> e.src & mandatory >> e.dst & 1}
    for variant in instance.variants:
        ways = [_through(instance, set(alternative), mandatory) for alternative in variant.alternatives]
        pairs |= set[tuple[int, int]].intersection(*ways)
    return pairs


def _through(instance: Instance, alternative: set[int], mandatory: int) -> set[tuple[int, int]]:
    """Pairs of mandatory ops with a path from one to the other inside of an alternative."""
    sources: dict[int, set[int]] = {op: set() for op in alternative}
    pairs: set[tuple[int, int]] = set()
    for edge in sorted(instance.edges, key=lambda edge: edge.src):  # ops are in topological order
        if edge.dst in alternative:
            if edge.src in alternative:
                sources[edge.dst] |= sources[edge.src]
            elif mandatory >> edge.src & 1:
                sources[edge.dst].add(edge.src)
        elif edge.src in alternative and mandatory >> edge.dst & 1:
            pairs.update((source, edge.dst) for source in sources[edge.src])
    return pairs
