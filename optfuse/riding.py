"""Which sums over rows ride in kernels that walk the rows, and which run as the rule says.

The decision comes before the solver, since an instance with its variants decided has presolve and repeated blocks. It
is taken class by class under the prices of greedy's schedules; what the solver proves holds for the graph decided.
"""

from __future__ import annotations

from collections.abc import Callable

from optfuse.extract.build import extract_variants
from optfuse.ir.nodes import LibraryCall, LoopGraph
from optfuse.problem.instance import Device
from optfuse.solve.variant_choice import choose_greedily

#: Greedy's schedules that are compared. Rows taken in turn arrive slower than others, so what pays for one class of
#: sums does not for another: three schedules decide for all alike, the others class by class.
MOST_SOLVES = 24


def choose_riders(
    graph: LoopGraph, device: Device, donated: frozenset[str], allocates: Callable[[LibraryCall], bool]
) -> frozenset[str]:
    """The names of the reductions that ride.

    ``graph`` is one whose reductions were not split before; the other parameters are those of ``extract``.
    """
    found, alternatives = extract_variants(graph, device, "riding", donated=donated, allocates=allocates)
    if not alternatives.variants:
        return frozenset()
    chosen = choose_greedily(found.instance, most=MOST_SOLVES).alternatives
    return frozenset(name for (name, _), k in zip(alternatives.variants, chosen, strict=True) if k)
