"""The master problem of a block: choose candidate kernels that cover its ops at least cost.

``master`` (the model as plain data: columns and their costs), ``cpsat_model`` (the same in CP-SAT), ``relaxation`` (its
linear bound, certified in integers), ``cycles`` and ``cycle_repair`` (cuts, and solutions without a cycle), ``search``
(the loop that solves it). The other CP-SAT models, each with its own variables: ``memory.arena_model`` (offsets
in one arena), ``joint.joint_model`` (kernels, order and memory together), ``slots`` (a given number of kernels),
``rules.feasible`` (whether rules can be obeyed), ``saving.choice`` (what a training step saves) and
``saving.linear_relaxation`` (its linear bound).
"""
