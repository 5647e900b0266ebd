"""Torch's shape environment, with comparisons of sizes decided by our formulas.

Torch compares symbols by rewriting expressions in sympy, tens of milliseconds for those of models that pad and
partition images of any size. Formulas of sizes are canonical data, and their comparisons take microseconds.
"""

from __future__ import annotations

from typing import Any

import sympy
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.compiler.ir.sizes import Size
from optfuse.compiler.symbols.traced_sizes import known_sizes, size_of_expression
from optfuse.errors import CaptureError

#: Relations as comparisons of a difference with 0, and whether it is that of right and left.
_COMPARISONS: dict[type[sympy.Basic], tuple[str, bool]] = {
    sympy.Eq: ("==", False),
    sympy.Ne: ("!=", False),
    sympy.StrictLessThan: ("<", False),
    sympy.GreaterThan: (">=", False),
    sympy.StrictGreaterThan: ("<", True),
    sympy.LessThan: (">=", True),
}


class FormulaShapes(ShapeEnv):
    """A shape environment whose comparisons become guards of ``Decisions``, where these know the sizes.

    What is found equal at the hint alone is left to torch, which then replaces one by the other.
    """

    _decisions: Decisions | None = None

    def decide_by(self, decisions: Decisions) -> None:
        """Decide by these from now on; all of their symbols have been created."""
        self._known_sizes = known_sizes(decisions)
        self._decisions = decisions

    def evaluate_expr(self, orig_expr: sympy.Basic, *arguments: Any, **more: Any) -> sympy.Basic:
        """The value of an expression, with a guard where it has others at other sizes."""
        answer = self._decided(orig_expr)
        if answer is None:
            return super().evaluate_expr(orig_expr, *arguments, **more)
        return sympy.true if answer else sympy.false

    def _decided(self, expr: sympy.Basic) -> bool | None:
        """Whether a relation holds; None if torch is to decide it."""
        decisions, found = self._decisions, _COMPARISONS.get(type(expr))
        if decisions is None or found is None:
            return None
        comparison, swapped = found
        try:
            left, right = (size_of_expression(side, self._known_sizes) for side in expr.args)
        except (CaptureError, ZeroDivisionError):
            return None
        difference = right - left if swapped else left - right
        if not isinstance(difference, Size):
            return {"==": difference == 0, "!=": difference != 0, "<": difference < 0, ">=": difference >= 0}[
                comparison
            ]
        known = decisions.known(difference.formula, comparison)
        if known is not None:
            return known
        if comparison in ("==", "!=") and decisions.at_hint(difference.formula, "=="):
            return None
        if self._suppress_guards_tls():
            return decisions.at_hint(difference.formula, comparison)
        return decisions.decide(difference.formula, comparison)
