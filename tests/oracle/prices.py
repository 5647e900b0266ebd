"""The price of a solution, from the text of instances/README.md alone and in the obvious way: a second opinion.

Works on the plain JSON data of an instance and a solution, and shares nothing with ``optfuse.problem.cost``.
"""

from __future__ import annotations

from typing import Any

MIB = 2**20
GOP = 2**30

Data = dict[str, Any]


def objective(instance: Data, solution: Data) -> int:
    """What the kernels of a solution cost together, in picoseconds."""
    return sum(kernel_price(instance, kernel) for kernel in solution["kernels"])


def kernel_price(instance: Data, kernel: Data) -> int:
    """Launch, and the larger of memory time and compute time."""
    device = instance["devices"][instance["ops"][kernel["ops"][0]].get("device", 0)]
    launch = device["launch_ps"] + max(instance["ops"][op].get("launch_ps", 0) for op in kernel["ops"])
    return launch + max(_memory(instance, kernel, device), _compute(instance, kernel, device))


def _compute(instance: Data, kernel: Data, device: Data) -> int:
    total = 0
    for op in kernel["ops"]:
        work = instance["ops"][op].get("work", {})
        classes = ("fp32", "special", "tensor", "atomic")
        total += sum(work.get(name, 0) * device[f"{name}_ps_per_gop"] for name in classes) // GOP
    return total


def _memory(instance: Data, kernel: Data, device: Data) -> int:
    scheme = instance["schemes"][kernel["scheme"]]
    looped = scheme.get("r", 1) > device["persistent_elements"]
    passes = {op: _later_passes(instance, kernel, op) if looped else 0 for op in kernel["ops"]}
    dearest: dict[tuple[int, int], tuple[int, int]] = {}
    again: dict[tuple[int, int], int] = {}
    for op in kernel["ops"]:
        for read in _offer(instance, op, kernel).get("reads", []):
            if _is_made_inside(instance, kernel, op, read["buffer"]):
                continue
            key = read["buffer"], read.get("footprint", 0)
            amount = _scaled(read, device)
            first = _ramped(amount * _read_rate(instance, read["buffer"], device), device) // MIB
            later = amount * device["l2_ps_per_mib"] // MIB
            dearest[key] = max(dearest.get(key, (0, 0)), (first, later))
            again[key] = max(again.get(key, 0), passes[op])
    memory = sum(first + later * again[key] for key, (first, later) in dearest.items())
    for op in kernel["ops"]:
        for write in _offer(instance, op, kernel).get("writes", []):
            if write["buffer"] in kernel.get("writes", []):
                rate = _write_rate(instance, write["buffer"], device)
                memory += _ramped(_scaled(write, device) * rate, device) // MIB
    if any(_offer(instance, op, kernel).get("reduces", False) for op in kernel["ops"]):
        programs = max(1, scheme.get("parallel", 1))
        if programs < device["saturating_programs"]:
            memory = memory * device["saturating_programs"] // programs
    return memory


def _offer(instance: Data, op: int, kernel: Data) -> Data:
    return next(offer for offer in instance["ops"][op]["offers"] if offer["scheme"] == kernel["scheme"])


def _is_made_inside(instance: Data, kernel: Data, op: int, buffer: int) -> bool:
    return any(
        edge["dst"] == op and edge.get("buffer") == buffer and edge["src"] in kernel["ops"]
        for edge in instance["edges"]
    )


def _scaled(access: Data, device: Data) -> int:
    percent = {
        "strided": device.get("strided_percent", 200),
        "gather": device.get("gather_percent", 150),
        "column": device.get("column_percent", 100),
    }
    return access["bytes"] * percent.get(access.get("access", "contiguous"), 100) // 100


def _ramped(amount: int, device: Data) -> int:
    """With what an access pays on top: ``ramp_ps``, or as much again if that is less. Picoseconds times MiB."""
    return amount + min(amount, device.get("ramp_ps", 0) * MIB)


def _stays_in_l2(instance: Data, buffer: int, device: Data) -> bool:
    facts = instance["buffers"][buffer]
    return facts.get("kind", "temporary") == "temporary" and facts["bytes"] * 8 <= device["l2_bytes"]


def _read_rate(instance: Data, buffer: int, device: Data) -> int:
    return device["l2_ps_per_mib" if _stays_in_l2(instance, buffer, device) else "dram_ps_per_mib"]


def _write_rate(instance: Data, buffer: int, device: Data) -> int:
    if _stays_in_l2(instance, buffer, device) and device.get("l2_write_ps_per_mib", 0):
        return device["l2_write_ps_per_mib"]
    return device["dram_ps_per_mib"]


def _level(instance: Data, kernel: Data, op: int) -> int:
    """How many reductions of the kernel lie before an op, on the path with most of them."""
    levels = [0]
    for edge in instance["edges"]:
        if edge["dst"] == op and edge["src"] in kernel["ops"]:
            reduces = _offer(instance, edge["src"], kernel).get("reduces", False)
            levels.append(_level(instance, kernel, edge["src"]) + reduces)
    return max(levels)


def _passes(instance: Data, kernel: Data, op: int) -> set[int]:
    """The passes in which an op is computed: its own, and those of what uses its values without a reduction between."""
    found = {_level(instance, kernel, op)}
    offer = _offer(instance, op, kernel)
    if offer.get("full", True) and not offer.get("reduces", False):
        for edge in instance["edges"]:
            if edge["src"] == op and edge["dst"] in kernel["ops"] and edge.get("buffer") is not None:
                found |= _passes(instance, kernel, edge["dst"])
    return found


def _later_passes(instance: Data, kernel: Data, op: int) -> int:
    return len(_passes(instance, kernel, op)) - 1
