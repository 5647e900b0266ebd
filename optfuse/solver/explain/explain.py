"""Why two ops are in one kernel of a schedule, or not: asked of legality, and of a solve with the opposite forced.

Together: what the best schedule that keeps them apart costs. Apart: why no kernel may hold both; or what the best
schedule with both in one kernel costs; or that it does not fit in memory. Every figure has its bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from optfuse.errors import IllegalKernelError, InfeasibleError, InvalidInstanceError, RuleConflictError
from optfuse.problem.choose_alternatives import choosing
from optfuse.problem.cost import topology
from optfuse.problem.instance import Instance, Op
from optfuse.problem.legality import legal_index
from optfuse.problem.op_patterns import one_op
from optfuse.problem.pair_legality import pairing, shortest_path
from optfuse.problem.refusal_reasons import Details, Reason, illegal_reasons
from optfuse.problem.rules import Rule
from optfuse.problem.solution import Solution
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.explain.explanation import Explanation, OpFacts, PlanFigures, SharedTensor, Verdict
from optfuse.solver.result import SolveResult
from optfuse.solver.rules.conflict import under_rules
from optfuse.solver.solve import solve


def explain(
    instance: Instance,
    solution: Solution,
    a: str,
    b: str,
    *,
    bound: int | None = None,
    options: SolveOptions | Mapping[str, Any] | None = None,
    details: Details | None = None,
) -> Explanation:
    """Why two ops share a kernel in a schedule, or do not.

    Args:
        instance: The problem, under the rules that it was solved under.
        solution: A valid answer to it.
        a: The one op, by name, graph node or module path, as rules name ops.
        b: The other, likewise.
        bound: A proven bound on every schedule's cost. Left out, the instance is solved again for it.
        options: Limits of each solve; 30 seconds by default.
        details: What the compiler knows beyond the instance.

    Raises:
        RuleError: When a name matches no op, or several.
    """
    options = replace(SolveOptions.of(options), rules=())
    left, right = one_op(instance, a), one_op(instance, b)
    question = _Question(instance, solution, left, right, options)
    base = question.base(PlanFigures(solution.objective, 0, solution.peak_bytes))
    if left == right:
        return replace(base, verdict="same_op", plan=replace(base.plan, bound=bound or 0))
    if bound is None:
        bound = min(solution.objective, solve(instance, question.quick).bound)
    base = replace(base, plan=replace(base.plan, bound=bound))
    return question.why_together(base) if base.together else question.why_apart(base, details)


@dataclass(frozen=True, slots=True)
class _Question:
    instance: Instance
    solution: Solution
    left: int
    right: int
    options: SolveOptions

    @property
    def quick(self) -> SolveOptions:
        """The options without a search for an order, unless memory is capped: otherwise the order has no cost."""
        return replace(self.options, order="memory" if self.instance.rules.peak_memory is not None else "program")

    def base(self, plan: PlanFigures) -> Explanation:
        """The facts of the schedule at hand about the pair."""
        instance, kernels = self.instance, self.solution.kernels
        pair = {self.left, self.right}
        names = [op.name for op in instance.ops]
        shared = _shared(instance, self.left, self.right) if len(pair) > 1 else ()
        ends = (min(pair), max(pair))
        return Explanation(
            instance=instance.name,
            a=_facts(instance.ops[self.left], self.left, self.solution),
            b=_facts(instance.ops[self.right], self.right, self.solution),
            together=any(pair <= set(kernel.ops) for kernel in kernels),
            one_launch=any(pair <= {op for k in launch for op in kernels[k].ops} for launch in self.solution.launches),
            verdict="undecided",
            plan=plan,
            shared=shared,
            link=() if shared or len(pair) < 2 else tuple(names[op] for op in shortest_path(instance, *ends)),
            kernels=tuple(
                (k, tuple(names[op] for op in kernel.ops)) for k, kernel in enumerate(kernels) if pair & set(kernel.ops)
            ),
            cap=instance.rules.peak_memory,
            notes=tuple(
                f"{names[op]} does not run: its variant has chosen another alternative"
                for op in sorted(pair)
                if not any(op in kernel.ops for kernel in kernels)
            ),
        )

    def why_together(self, base: Explanation) -> Explanation:
        """What the best schedule that keeps the pair apart costs."""
        names = (base.a.name, base.b.name)
        try:
            apart = under_rules(self.instance, (Rule("no_fuse", names),))
        except RuleConflictError as error:
            reason = Reason("rule", f"the rules want them together: {error}")
            return replace(base, verdict="required", reasons=(reason,))
        return self._forced(base, apart, ())

    def why_apart(self, base: Explanation, details: Details | None) -> Explanation:
        """Why no kernel may hold the pair, or what the best schedule in which one does costs."""
        found = pairing(self.instance, self.left, self.right)
        rivals = legal_index(self.instance).rivals[self.left] >> self.right & 1
        if rivals or not (found.allowed or any(refused.refusal.code == "connection" for refused in found.refused)):
            reasons = illegal_reasons(self.instance, self.left, self.right, found, details)
            return replace(base, verdict="illegal", reasons=reasons)
        try:
            chosen, kept = choosing(self.instance, (self.left, self.right))
            together = under_rules(chosen, (Rule("fuse", (base.a.name, base.b.name)),))
        except IllegalKernelError as error:
            # Linked by nothing that may be, or against other rules, which the message names.
            reasons = illegal_reasons(self.instance, self.left, self.right, found, details)
            rule = Reason("rule", f"the rules stand against it: {error}")
            return replace(base, verdict="illegal", reasons=(rule,) if found.allowed else reasons)
        return self._forced(base, together, kept)

    def _forced(self, base: Explanation, forced: Instance, kept: tuple[int, ...]) -> Explanation:
        """Solve with the opposite forced; over the cap is what fits without it and does not with it."""
        notes = base.notes
        try:
            result = solve(forced, self.quick)
        except InfeasibleError as error:
            free = replace(forced, rules=replace(forced.rules, peak_memory=None))
            try:
                result = solve(free, self.options)
            except (IllegalKernelError, InvalidInstanceError) as wrong:
                return replace(base, notes=(*notes, str(wrong)))
            figures, kernel = self._figures(result, kept)
            return replace(base, verdict="over_cap", other=figures, other_kernel=kernel, notes=(*notes, str(error)))
        except (IllegalKernelError, InvalidInstanceError) as error:
            return replace(base, notes=(*notes, str(error)))
        figures, kernel = self._figures(result, kept)
        difference = figures.objective - base.plan.objective
        verdict: Verdict = "dearer" if difference > 0 else "cheaper" if difference < 0 else "tie"
        given_up = () if figures.proven else tuple(f"forced solve: {line}" for line in result.statistics.given_up)
        return replace(base, verdict=verdict, other=figures, other_kernel=kernel, notes=(*notes, *given_up))

    def _figures(self, result: SolveResult, kept: tuple[int, ...]) -> tuple[PlanFigures, tuple[str, ...]]:
        figures = PlanFigures(result.objective, result.bound, result.solution.peak_bytes)
        for kernel in result.solution.kernels:
            ops = [kept[op] for op in kernel.ops] if kept else []
            if {self.left, self.right} <= set(ops):
                return figures, tuple(self.instance.ops[op].name for op in ops)
        return figures, ()


def _facts(op: Op, number: int, solution: Solution) -> OpFacts:
    kernels = tuple(k for k, kernel in enumerate(solution.kernels) if number in kernel.ops)
    return OpFacts(op.name, op.kind, op.node or op.name, op.module, op.source, kernels)


def _shared(instance: Instance, left: int, right: int) -> tuple[SharedTensor, ...]:
    """Tensors that pass from one to the other, then those that both read; the larger first."""
    index = topology(instance)
    passed = {buffer for user, buffer in index.users[min(left, right)] if user == max(left, right)} - {None}
    read = [{r.buffer for offer in index.offers[op].values() for r in offer.reads} for op in (left, right)]

    def facts(number: int, how: Literal["value", "read"]) -> SharedTensor:
        return SharedTensor(instance.buffers[number].name, instance.buffers[number].bytes, how)

    values = [facts(number, "value") for number in passed if number is not None]
    reads = [facts(number, "read") for number in (read[0] & read[1]) - passed]
    found = [*sorted(values, key=lambda s: (-s.bytes, s.buffer)), *sorted(reads, key=lambda s: (-s.bytes, s.buffer))]
    return tuple(found)
