"""Lower ATen FX graphs to the loop IR: a rule for each operator, views folded into indices, else library calls."""

from optfuse.compiler.lower import (  # noqa: F401  (registers rules)
    activations,
    arithmetic,
    average_pooling,
    creation,
    gathers,
    histograms,
    index_stores,
    matvec,
    max_pooling,
    movement,
    own_operators,
    random,
    random_choices,
    reductions,
    scans,
    selection,
    sorting,
)
from optfuse.compiler.lower.lower_graph import lower

__all__ = ["lower"]
