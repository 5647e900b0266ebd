"""The list of the frontend's rewrites against the functions that run."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module

import pytest

from optfuse.compiler.frontend import passes
from optfuse.compiler.frontend.passes.listed import FRONTEND_PASSES, FrontendPass

#: Public functions of the passes' modules that rewrite nothing by themselves, and modules of tools.
NO_PASSES = {"mask_meaning"}
TOOLS = {"listed", "scores_mask"}


@pytest.mark.parametrize("each", FRONTEND_PASSES, ids=lambda each: each.name)
def test_each_is_where_it_says(each: FrontendPass) -> None:
    assert callable(getattr(import_module(f"optfuse.compiler.frontend.{each.module}"), each.name))


def test_normalization_runs_what_is_listed_in_that_order() -> None:
    listed = [each.name for each in FRONTEND_PASSES if each.stage == "normalize"]
    assert listed == list(dict.fromkeys(function.__name__ for function in passes.PASSES))


def test_no_pass_is_left_out() -> None:
    written = set()
    for module in pkgutil.iter_modules(passes.__path__):
        if module.name not in TOOLS:
            held = import_module(f"optfuse.compiler.frontend.passes.{module.name}")
            functions = inspect.getmembers(held, inspect.isfunction)
            written |= {
                name for name, f in functions if f.__module__ == held.__name__ and not name.startswith("_")
            } - NO_PASSES
    assert written <= {each.name for each in FRONTEND_PASSES}
