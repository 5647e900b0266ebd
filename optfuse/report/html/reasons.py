"""Why a producer kernel and its consumer kernel are not fused, by a quick test for every arrow.

The reasons are about these two kernels alone, all else unchanged. ``solver.explain.explain`` answers the larger
question, what the best schedule with two ops in one kernel would cost; it takes a solve for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from optfuse.problem.cost import kernel_price
from optfuse.problem.instance import Instance
from optfuse.problem.legality import common_schemes, listed, refusal
from optfuse.problem.refusal_reasons import KIND_WORDS
from optfuse.problem.solution import Kernel, Solution
from optfuse.report.flow import Arrow

US = 1_000_000


class Separations:
    """The reasons of one solution."""

    def __init__(self, instance: Instance, solution: Solution, arrows: Sequence[Arrow]) -> None:
        self._instance = instance
        self._kernels = solution.kernels
        times = Counter(op for kernel in solution.kernels for op in kernel.ops)
        self._copied = {op for op, count in times.items() if count > 1}
        self._after: list[list[int]] = [[] for _ in solution.kernels]
        for arrow in arrows:
            self._after[arrow.src].append(arrow.dst)
        # Kernels that come later by way of arrows, as bitmasks.
        self._later = [0] * len(solution.kernels)
        for number in reversed(range(len(solution.kernels))):
            for other in self._after[number]:
                self._later[number] |= self._later[other] | 1 << other

    def why(self, first: int, second: int) -> str:
        """The reason, in one line, why the two kernels of an arrow are not fused."""
        for number in (first, second):
            kind = self._instance.ops[self._kernels[number].ops[0]].kind
            if kind != "loop":
                return f"{KIND_WORDS.get(kind, kind)} always runs alone"
        ops = sorted({*self._kernels[first].ops, *self._kernels[second].ops})
        schemes = common_schemes(self._instance, ops)
        if not schemes:
            return self._no_scheme(first, second)
        refusals = [refusal(self._instance, ops, scheme) for scheme in schemes]
        legal = [scheme for scheme, found in zip(schemes, refusals, strict=True) if found is None]
        if not legal:
            found = next(found for found in refusals if found is not None)
            return f"illegal as one kernel: {found.reason}: {listed(self._instance, found.ops)}"
        between = [other for other in self._after[first] if other != second and self._later[other] >> second & 1]
        if between:
            return f"one kernel of both would wait for k{between[0]}, and it for them, in a cycle"
        if self._copied & set(ops):
            return "legal as one kernel; not priced here, since some of their ops are computed in several kernels"
        return self._priced(first, second, ops, legal)

    def _no_scheme(self, first: int, second: int) -> str:
        """The two ops whose value prevents fusion, if one does; otherwise the two schemes."""
        instance = self._instance
        names = [instance.schemes[self._kernels[number].scheme].name for number in (first, second)]
        offered = {
            op: {offer.scheme for offer in instance.ops[op].offers}
            for number in (first, second)
            for op in self._kernels[number].ops
        }
        for source in self._kernels[first].ops:
            for target in self._kernels[second].ops:
                if not offered[source] & offered[target]:
                    pair = f"{instance.ops[source].name} and {instance.ops[target].name}"
                    return f"illegal as one kernel: {pair} have no walk of the index space in common"
        return f"illegal as one kernel: no walk of the index space takes all their ops ({names[0]}; {names[1]})"

    def _priced(self, first: int, second: int, ops: Sequence[int], schemes: Sequence[int]) -> str:
        together = min(kernel_price(self._instance, ops, scheme).total for scheme in schemes)
        apart = sum(self._cost(self._kernels[number]) for number in (first, second))
        figures = f"({together / US:,.2f} us as one kernel, {apart / US:,.2f} us as two)"
        if together == apart:
            return f"legal as one kernel, and a tie {figures}"
        if together > apart:
            return f"legal as one kernel, but dearer by {(together - apart) / US:,.2f} us {figures}"
        return f"as one kernel they would be cheaper by {(apart - together) / US:,.2f} us {figures}"

    def _cost(self, kernel: Kernel) -> int:
        return kernel_price(self._instance, kernel.ops, kernel.scheme, kernel.writes).total
