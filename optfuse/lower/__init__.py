"""From ATen FX graphs to the loop IR: one rule an op, views folded into index maps, library calls for the rest."""

from optfuse.lower import pointwise, reductions  # noqa: F401  (importing a rule module registers its rules)
from optfuse.lower.graph import lower

__all__ = ["lower"]
