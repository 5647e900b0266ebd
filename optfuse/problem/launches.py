"""Which kernels may share a launch, and what that saves.

Kernels share a launch when none depends on another. All hold loops alone, on one device, without products of matrices,
barriers, and ops that make a launch dearer. What registers a launch has is decided by its largest kernel; so those of
its kernels that take longer than a launch are *alike*: their ops have the same forms, each of them one (``Op.form``).
"""

from __future__ import annotations

from dataclasses import dataclass

from optfuse.problem.cost import kernel_price
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Kernel


@dataclass(frozen=True, slots=True)
class Launchable:
    """A kernel that may share a launch: its device, and its ops' forms, () if it takes no longer than a launch."""

    device: int
    forms: tuple[int, ...]


def never_shares(instance: Instance, op: int) -> bool:
    """Whether every kernel that holds this op needs a launch of its own."""
    facts = instance.ops[op]
    return facts.kind != "loop" or bool(facts.work.tensor or facts.launch_ps) or op in instance.rules.barrier


def launchable(instance: Instance, kernel: Kernel) -> Launchable | None:
    """The facts that decide which kernels a kernel may share a launch with; None if it may share with none."""
    ops = [instance.ops[op] for op in kernel.ops]
    device = instance.devices[ops[0].device]
    if not 0 < device.shared_ps < device.launch_ps or any(never_shares(instance, op) for op in kernel.ops):
        return None
    price = kernel_price(instance, kernel.ops, kernel.scheme, kernel.writes)
    if price.total <= 2 * device.launch_ps:
        return Launchable(ops[0].device, ())
    forms = tuple(sorted(op.form for op in ops))
    return Launchable(ops[0].device, forms) if forms[0] else None
