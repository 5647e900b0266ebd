"""From ATen FX graphs to the loop IR: one rule an op, views folded into index maps, library calls for the rest."""

from optfuse.lower import copies, creation, indexing, movement, pointwise_basic, pointwise_nn, random, reductions  # noqa: F401  (registers rules)
from optfuse.lower.graph import lower

__all__ = ["lower"]
