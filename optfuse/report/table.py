"""A solution as rows, one a kernel, and the places where two solutions of one instance differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import networkx

from optfuse.problem.cost import kernel_price
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.memory.launch_order import all_launches, in_launches
from optfuse.solver.memory.order_problem import live_bytes, order_problem


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel of a solution: ``ops`` by name, sizes in bytes, times in picoseconds under the model.

    ``bound_by`` says which of the two the price comes from. ``live_bytes`` is what memory holds while it runs.
    ``launch`` is the number of its launch, which several kernels may share.
    """

    index: int
    ops: tuple[str, ...]
    kind: str
    scheme: str
    x: int
    r: int
    read_bytes: int
    write_bytes: int
    predicted_ps: int
    bound_by: str
    live_bytes: int
    launch: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A minimal set of ops that two solutions partition differently; ``saved_ps`` > 0 if the second is cheaper."""

    before: tuple[Kernel, ...]
    after: tuple[Kernel, ...]
    saved_ps: int


def kernel_rows(instance: Instance, solution: Solution) -> tuple[KernelRow, ...]:
    """One row a kernel, in the order they run."""
    count = len(solution.kernels)
    timed, steps = in_launches(order_problem(instance, solution.kernels), range(count), solution.launches)
    launches = all_launches(count, solution.launches)
    sizes = live_bytes(timed, steps)  # one number even without kernels
    live = [sizes[number] for number, launch in enumerate(launches) for _ in launch]
    numbers = [number for number, launch in enumerate(launches) for _ in launch]
    rows: list[KernelRow] = []
    for index, kernel in enumerate(solution.kernels):
        price = kernel_price(instance, kernel.ops, kernel.scheme, kernel.writes)
        scheme = instance.schemes[kernel.scheme]
        rows.append(
            KernelRow(
                index=index,
                ops=tuple(instance.ops[op].name for op in kernel.ops),
                kind=instance.ops[kernel.ops[0]].kind,
                scheme=scheme.name,
                x=scheme.x,
                r=scheme.r,
                read_bytes=price.read_bytes,
                write_bytes=price.write_bytes,
                predicted_ps=price.total,
                bound_by="memory" if price.memory >= price.compute else "compute",
                live_bytes=live[index],
                launch=numbers[index],
            )
        )
    return tuple(rows)


def differences(instance: Instance, before: Solution, after: Solution) -> tuple[Difference, ...]:
    """Return where two solutions differ, largest saving first. Kernels of both solutions are left out."""
    same = set(map(_identity, before.kernels)) & set(map(_identity, after.kernels))
    parts = _linked(
        [kernel for kernel in before.kernels if _identity(kernel) not in same],
        [kernel for kernel in after.kernels if _identity(kernel) not in same],
        [sum(variant.alternatives, ()) for variant in instance.variants],
    )
    found = [Difference(old, new, _cost(instance, old) - _cost(instance, new)) for old, new in parts]
    return tuple(sorted(found, key=lambda item: -item.saved_ps))


def _identity(kernel: Kernel) -> tuple[frozenset[int], int, frozenset[int]]:
    return frozenset(kernel.ops), kernel.scheme, frozenset(kernel.writes)


def _cost(instance: Instance, kernels: tuple[Kernel, ...]) -> int:
    return sum(kernel_price(instance, kernel.ops, kernel.scheme, kernel.writes).total for kernel in kernels)


def _linked(
    before: list[Kernel], after: list[Kernel], tied: list[tuple[int, ...]]
) -> Iterator[tuple[tuple[Kernel, ...], tuple[Kernel, ...]]]:
    """Yield the kernels of both solutions in groups connected by shared ops or by sets of ``tied`` ops."""
    graph = networkx.Graph()
    for ops in (*(kernel.ops for kernel in (*before, *after)), *tied):
        networkx.add_path(graph, ops)
    group = {op: number for number, ops in enumerate(networkx.connected_components(graph)) for op in ops}
    sides: dict[int, tuple[list[Kernel], list[Kernel]]] = {}
    for side, kernels in enumerate((before, after)):
        for kernel in kernels:
            sides.setdefault(group[kernel.ops[0]], ([], []))[side].append(kernel)
    for old, new in sides.values():
        yield tuple(old), tuple(new)
