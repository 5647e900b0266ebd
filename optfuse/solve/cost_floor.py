"""A bound on the cost of every solution that needs no search."""

from __future__ import annotations

from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import ALONE, Instance


def cost_floor(instance: Instance) -> int:
    """A bound that needs no search: ops that only run alone cost what they cost; the rest, at least one launch."""
    optional = {op for variant in instance.variants for alternative in variant.alternatives for op in alternative}
    total = 0
    shared = False
    for number, op in enumerate(instance.ops):
        if number in optional:
            continue
        if all(offer.scheme == ALONE for offer in op.offers):
            total += kernel_cost(instance, (number,), ALONE)
        else:
            shared = True
    return total + (min(device.launch_ps for device in instance.devices) if shared else 0)
