"""From ATen FX graphs to the loop IR: one rule an op, views folded into index maps, library calls for the rest."""

from optfuse.compiler.lower import (  # noqa: F401  (registers rules)
    copies,
    creation,
    depth,
    indexing,
    movement,
    normalized,
    pointwise_basic,
    pointwise_nn,
    pooling,
    random,
    reductions,
)
from optfuse.compiler.lower.graph import lower

__all__ = ["lower"]
