"""The fusion problem as a constraint model over candidate kernels, solved with OR-tools and with proof.

Read in this order: ``blocks`` (what can be decided apart), ``candidates`` (the kernels to choose from), ``master`` (the
model as data), ``variables``, ``constraints``, ``objective`` (the model in CP-SAT), ``relaxation`` (its linear bound),
``cycles`` (cuts), ``search`` (one block), ``solver`` (the whole).
"""

from optfuse.solve.cpsat.outcome import CpsatOutcome
from optfuse.solve.cpsat.solver import solve_cpsat

__all__ = ["CpsatOutcome", "solve_cpsat"]
