"""Flags to solver options."""

from __future__ import annotations

from typing import Any

from optfuse.rules import load_rules
from optfuse.solver.control.options import SolveOptions


def solve_options(**values: Any) -> SolveOptions:
    """The solver's options out of flags; those left out (None) keep the solver's own default.

    Raises:
        InvalidOptionError: On a value out of range.
        RuleError: When the file of ``rules`` cannot be read.
    """
    given = {name: value for name, value in values.items() if value is not None}
    if "rules" in given:
        given["rules"] = load_rules(given["rules"])
    return SolveOptions.from_mapping(given)
