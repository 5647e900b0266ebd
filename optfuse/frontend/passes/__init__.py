"""Simplifications of a captured graph, in order. Each takes a Captured and returns a new one that computes the same."""

from __future__ import annotations

from collections.abc import Callable

from optfuse.frontend.captured import Captured
from optfuse.frontend.passes.constants import fold_constants
from optfuse.frontend.passes.duplicates import merge_duplicates
from optfuse.frontend.passes.lazy_views import materialize_lazy_views
from optfuse.frontend.passes.noops import drop_assertions, remove_noops

PASSES: tuple[Callable[[Captured], Captured], ...] = (
    drop_assertions,
    materialize_lazy_views,
    merge_duplicates,  # first, so that equal constants are folded once
    fold_constants,
    remove_noops,
    merge_duplicates,
)


def normalize(captured: Captured) -> Captured:
    """Run ``PASSES`` in order. Nodes that nobody uses leave after each."""
    for rewrite in PASSES:
        captured = rewrite(captured)
    captured.graph.graph.lint()
    return captured
