"""The fusion problem as a constraint model over candidate kernels, solved with OR-tools and with proof.

Read it like a paper:

- what is decided: ``blocks`` (parts that can be decided apart, and which are the same), ``atoms`` (ops that stay
  together), ``compatibility``, ``growth`` and ``candidates`` (the kernels to choose from), ``pricing`` and ``sums``
  (their cost);
- the model: ``master`` (as plain data), ``variables``, ``constraints``, ``objective`` (in CP-SAT), ``relaxation`` (its
  linear bound, certified in integers), ``cycles`` (cuts);
- how it is solved: ``search`` (one master problem), ``strategies`` (one block: the list of strategies, and the loop
  over it), ``solver`` (the whole instance);
- the strategies: ``listing`` (choose among candidates), ``critical_path`` (another start), ``slot_search`` (a small
  count of kernels), ``parts`` and ``limits`` (bounds), ``block_bound`` (a bound that needs no search).
"""

from optfuse.solve.cpsat.outcome import CpsatOutcome
from optfuse.solve.cpsat.solver import solve_cpsat

__all__ = ["CpsatOutcome", "solve_cpsat"]
