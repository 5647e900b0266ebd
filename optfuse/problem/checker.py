"""Check a solution, independently of the solvers.

It shares no code with the solvers or with ``legality``, only ``cost.total_cost``, the one price of kernels. Each
condition is recomputed from the instance as its documentation states it. ``check_memory`` checks the memory plan.
"""

from __future__ import annotations

from collections.abc import Iterator

from optfuse.problem.check_launches import check_launches, launch_numbers, malformed
from optfuse.problem.check_memory import check_memory
from optfuse.problem.checker_case import Case, Violation
from optfuse.problem.cost import total_cost
from optfuse.problem.instance import ALONE, Edge, Instance, Offer
from optfuse.problem.serialize import digest
from optfuse.problem.solution import Solution


def check(instance: Instance, solution: Solution) -> tuple[Violation, ...]:
    """Every condition that a solution breaks; empty when it is a correct answer to a valid instance."""
    found = [*_identity(instance, solution), *_dangling(instance, solution)]
    if found:
        return tuple(found)
    offers = _offers(instance, solution)
    found.extend(_schemes(instance, solution, offers))
    if found:
        return tuple(found)
    case = _case(instance, solution, offers)
    for family in (
        _coverage,
        _purpose,
        _edges_inside,
        _convexity,
        _connectivity,
        _limits,
        _rules,
        _order,
        _writes,
        _objective,
        check_launches,
        check_memory,
    ):
        found.extend(family(case))
    return tuple(found)


def _offers(instance: Instance, solution: Solution) -> tuple[dict[int, Offer], ...]:
    """By kernel: the offers of its ops in its scheme."""
    return tuple(
        [
            {op: offer for op in kernel.ops for offer in instance.ops[op].offers if offer.scheme == kernel.scheme}
            for kernel in solution.kernels
        ]
    )


def _case(instance: Instance, solution: Solution, offers: tuple[dict[int, Offer], ...]) -> Case:
    runs: dict[int, list[int]] = {}
    for position, kernel in enumerate(solution.kernels):
        for op in kernel.ops:
            runs.setdefault(op, []).append(position)
    into: dict[int, list[Edge]] = {op: [] for op in runs}
    out: dict[int, list[Edge]] = {op: [] for op in runs}
    for edge in instance.edges:
        if edge.src in runs and edge.dst in runs:
            into[edge.dst].append(edge)
            out[edge.src].append(edge)
    taken = tuple([_taken(into, offer) for offer in offers])
    return Case(instance, solution, runs, offers, into, out, taken, launch_numbers(solution))


def _taken(into: dict[int, list[Edge]], offers: dict[int, Offer]) -> set[int]:
    """The buffers that a kernel loads from memory; ``offers`` are those of its ops."""
    taken: set[int] = set()
    for op, offer in offers.items():
        wanted = {read.buffer for read in offer.reads}
        made: set[int | None] = {None}
        for edge in into[op]:
            if edge.src in offers:
                made.add(edge.buffer)
            elif edge.buffer is not None:
                wanted.add(edge.buffer)
        taken |= wanted - made
    return taken


def _identity(instance: Instance, solution: Solution) -> Iterator[Violation]:
    if solution.instance_digest != digest(instance):
        yield Violation(
            "another_instance",
            f"the solution answers instance {solution.instance_name!r} with digest {solution.instance_digest[:12]!r}, "
            f"not {instance.name!r} with digest {digest(instance)[:12]!r}",
        )


def _dangling(instance: Instance, solution: Solution) -> Iterator[Violation]:
    ops, schemes, buffers = range(len(instance.ops)), range(len(instance.schemes)), range(len(instance.buffers))
    for position, kernel in enumerate(solution.kernels):
        if not kernel.ops:
            yield Violation("dangling", f"kernel {position} holds no op")
        if len(kernel.ops) > 1 and len(set(kernel.ops)) != len(kernel.ops):
            yield Violation("dangling", f"kernel {position} names an op twice: {kernel.ops}")
        for op in kernel.ops:
            if op not in ops:
                yield Violation("dangling", f"kernel {position}: op {op} does not exist")
        if kernel.scheme not in schemes:
            yield Violation("dangling", f"kernel {position}: scheme {kernel.scheme} does not exist")
        for buffer in kernel.writes:
            if buffer not in buffers:
                yield Violation("dangling", f"kernel {position}: buffer {buffer} does not exist")
    for placement in solution.placements:
        if placement.buffer not in buffers:
            yield Violation("dangling", f"a placement of buffer {placement.buffer}, which does not exist")
    yield from malformed(solution)


def _schemes(instance: Instance, solution: Solution, offers: tuple[dict[int, Offer], ...]) -> Iterator[Violation]:
    for position, kernel in enumerate(solution.kernels):
        for op in kernel.ops:
            if op not in offers[position]:
                name = instance.schemes[kernel.scheme].name
                yield Violation(
                    "scheme", f"kernel {position}: op {instance.ops[op].name} does not offer scheme {name!r}"
                )
        if kernel.scheme == ALONE and len(kernel.ops) > 1:
            names = ", ".join(instance.ops[op].name for op in kernel.ops)
            yield Violation("scheme", f"kernel {position}: these can only run alone: {names}")


def _coverage(case: Case) -> Iterator[Violation]:
    optional: set[int] = set()
    for variant in case.instance.variants:
        members = {op for alternative in variant.alternatives for op in alternative}
        optional |= members
        running = {op for op in members if op in case.runs}
        if all(running != set(alternative) for alternative in variant.alternatives):
            yield Violation(
                "variant", f"variant {variant.name!r}: the ops that run are no alternative: {case.names(running)}"
            )
    for number, op in enumerate(case.instance.ops):
        if number not in optional and number not in case.runs:
            yield Violation("coverage", f"op {op.name} is in no kernel")
        if len(case.runs.get(number, ())) > 1 and not op.recompute:
            yield Violation("recompute", f"op {op.name} is in several kernels but may not be computed twice")


def _purpose(case: Case) -> Iterator[Violation]:
    """A kernel of ops that all run elsewhere too must write a buffer that some op reads."""
    buffers = case.instance.buffers
    for position, kernel in enumerate(case.solution.kernels):
        if all(len(case.runs[op]) > 1 for op in kernel.ops):
            taken = set[int]().union(*(takes for other, takes in enumerate(case.taken) if other != position))
            if not any(buffers[number].output or number in taken for number in kernel.writes):
                yield Violation("recompute", f"{case.label(position)} computes again what other kernels do, for no use")


def _edges_inside(case: Case) -> Iterator[Violation]:
    for position, kernel in enumerate(case.solution.kernels):
        for op in kernel.ops:
            for edge in case.out[op]:
                if edge.dst in kernel.ops and kernel.scheme not in edge.schemes:
                    yield Violation(
                        "edge",
                        f"kernel {position}: {case.names((edge.src, edge.dst))} may not share a kernel of scheme "
                        f"{case.instance.schemes[kernel.scheme].name!r}",
                    )


def _convexity(case: Case) -> Iterator[Violation]:
    """No path leaves a kernel and returns, unless it starts at an op that runs elsewhere too (see ``_order``)."""
    for position, kernel in enumerate(case.solution.kernels):
        inside = set(kernel.ops)
        if len(inside) == 1:
            continue
        starts = [op for op in kernel.ops if len(case.runs[op]) == 1]
        frontier = [edge.dst for op in starts for edge in case.out[op] if edge.dst not in inside]
        seen = set(frontier)
        while frontier:
            op = frontier.pop()
            for edge in case.out[op]:
                if edge.dst in inside:
                    yield Violation(
                        "convexity",
                        f"kernel {position}: a path leaves it and comes back by {case.names((op, edge.dst))}",
                    )
                # Edges follow program order: beyond the kernel's last op no path comes back.
                elif edge.dst not in seen and edge.dst < max(inside):
                    seen.add(edge.dst)
                    frontier.append(edge.dst)


def _connectivity(case: Case) -> Iterator[Violation]:
    if not case.instance.limits.connected:
        return
    for position, kernel in enumerate(case.solution.kernels):
        if len(kernel.ops) == 1:
            continue
        footprints = {
            op: {(read.buffer, read.footprint) for read in case.offers[position][op].reads} for op in kernel.ops
        }
        linked = {kernel.ops[0]}
        frontier = [kernel.ops[0]]
        while frontier:
            op = frontier.pop()
            near = {edge.dst for edge in case.out[op]} | {edge.src for edge in case.into[op]}
            for other in kernel.ops:
                if other not in linked and (other in near or footprints[op] & footprints[other]):
                    linked.add(other)
                    frontier.append(other)
        if len(linked) < len(kernel.ops):
            yield Violation(
                "connectivity",
                f"kernel {position}: nothing links {case.names(linked)} to {case.names(set(kernel.ops) - linked)}",
            )


def _limits(case: Case) -> Iterator[Violation]:
    limits = case.instance.limits
    for position, kernel in enumerate(case.solution.kernels):
        if len(kernel.ops) == 1:  # is always allowed to run
            continue
        if len({case.instance.ops[op].device for op in kernel.ops}) > 1:
            yield Violation("device", f"{case.label(position)} holds ops of different devices")
        if len(kernel.ops) > limits.max_ops:
            yield Violation("limit", f"{case.label(position)} holds {len(kernel.ops)} ops, above {limits.max_ops}")
        weight = sum(case.instance.ops[op].weight for op in kernel.ops)
        if weight > limits.max_weight:
            yield Violation("limit", f"{case.label(position)} has weight {weight}, above {limits.max_weight}")


def _rules(case: Case) -> Iterator[Violation]:
    rules = case.instance.rules
    for position, kernel in enumerate(case.solution.kernels):
        inside = set(kernel.ops)
        for op in rules.barrier:
            if op in inside and len(inside) > 1:
                yield Violation("rule", f"barrier: {case.names((op,))} is not alone in {case.label(position)}")
        for pair in rules.no_fuse:
            if inside >= set(pair):
                yield Violation("rule", f"no_fuse: {case.names(pair)} are both in {case.label(position)}")
        for pair in rules.fuse:
            if len(inside & set(pair)) == 1:
                yield Violation("rule", f"fuse: {case.names(pair)} are not both in {case.label(position)}")
        for group in rules.single_kernel:
            if inside & set(group) and inside != set(group):
                yield Violation("rule", f"single_kernel: {case.names(group)} are not exactly {case.label(position)}")


def _order(case: Case) -> Iterator[Violation]:
    """Each kernel runs after the producers of its ops, and the values that it loads have been written."""
    kernels = case.solution.kernels
    for edges in case.into.values():
        for edge in edges:
            producers = case.runs[edge.src]
            first = producers[0]
            if edge.buffer in kernels[first].writes and all([first < reader for reader in case.runs[edge.dst]]):
                continue
            for reader in case.runs[edge.dst]:
                if edge.buffer is None:
                    late = [position for position in producers if position > reader]
                    if late:
                        yield _runs_late(case, edge, late[0], reader)
                    continue
                if reader in producers:
                    continue
                before = [position for position in producers if position < reader]
                if not before:
                    yield _runs_late(case, edge, producers[0], reader)
                elif all(edge.buffer not in kernels[position].writes for position in before):
                    yield Violation(
                        "writes",
                        f"{case.label(reader)} reads buffer {case.instance.buffers[edge.buffer].name!r}, which no "
                        f"earlier kernel with op {case.names((edge.src,))} writes",
                    )


def _runs_late(case: Case, edge: Edge, producer: int, reader: int) -> Violation:
    return Violation(
        "order",
        f"{case.label(reader)} runs before {case.label(producer)} but {case.names((edge.dst,))} "
        f"needs {case.names((edge.src,))}",
    )


def _writes(case: Case) -> Iterator[Violation]:
    """Kernels write only results of their ops; temporaries are written before they are read; outputs are written."""
    buffers = case.instance.buffers
    given = {number for number, buffer in enumerate(buffers) if buffer.kind != "temporary"}
    owed = given.union(number for number, buffer in enumerate(buffers) if buffer.output)
    ready = set(given)
    for position, kernel in enumerate(case.solution.kernels):
        if not case.taken[position] <= ready:
            for number in sorted(case.taken[position] - ready):
                yield Violation("writes", f"{case.label(position)} reads {buffers[number].name!r} before it is written")
        makes = [write.buffer for offer in case.offers[position].values() for write in offer.writes]
        for number in kernel.writes:
            if number not in makes:
                yield Violation("writes", f"{case.label(position)} cannot write buffer {buffers[number].name!r}")
        if len(kernel.writes) > 1 and len(set(kernel.writes)) != len(kernel.writes):
            yield Violation("writes", f"{case.label(position)} lists a write twice")
        ready.update(kernel.writes)
    for op, positions in sorted(case.runs.items()):
        for write in case.offers[positions[0]][op].writes:
            if write.buffer in owed and all(
                write.buffer not in case.solution.kernels[position].writes for position in positions
            ):
                yield Violation(
                    "writes", f"no kernel with op {case.names((op,))} writes {buffers[write.buffer].name!r}"
                )


def _objective(case: Case) -> Iterator[Violation]:
    total = total_cost(case.instance, case.solution.kernels)
    if total != case.solution.objective:
        yield Violation("objective", f"the kernels cost {total} ps, but the solution says {case.solution.objective}")
