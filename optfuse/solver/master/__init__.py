"""The constraint model of a block, read like a paper.

``master`` (the model as plain data: columns and their costs), ``variables``, ``constraints``, ``objective`` (the same
in CP-SAT), ``relaxation`` (its linear bound, certified in integers), ``cycles`` and ``cycle_repair`` (cuts, and
solutions without a cycle), ``search`` (the loop that solves it). The other CP-SAT models, each with its own variables:
``memory.order_model`` (an order of given kernels), ``joint.joint_model`` (kernels, order and memory together),
``slots.slots`` (a given number of kernels) and ``rules.feasible`` (whether rules can be obeyed).
"""
