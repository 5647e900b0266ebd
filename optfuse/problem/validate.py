"""Refuse an instance that breaks its own format, with one line that names the thing.

Called once, where instances come from: by the loader and by extraction. Solvers may assume what is checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import cache

from optfuse.errors import InvalidInstanceError
from optfuse.problem.instance import ALONE, FORMAT_VERSION, LARGEST, Edge, Instance, Op


def validate(instance: Instance) -> None:
    """Check everything that the dataclasses cannot say by themselves.

    Raises:
        InvalidInstanceError: On the first problem found: an unknown version, a duplicate name, a negative size, a
            dangling id, a cycle (its path is shown), an edge against program order, an op without offers, and so on.
    """
    for check in CHECKS:
        problem = next(iter(check(instance)), None)
        if problem is not None:
            raise InvalidInstanceError(f"instance {instance.name!r}: {problem}")


def _version(instance: Instance) -> Iterator[str]:
    if instance.version != FORMAT_VERSION:
        yield f"version {instance.version} is not known; this program reads version {FORMAT_VERSION}"


def _names(instance: Instance) -> Iterator[str]:
    for family in ("devices", "schemes", "buffers", "ops", "variants"):
        seen: set[str] = set()
        for item in getattr(instance, family):
            if item.name in seen:
                yield f"two {family} are named {item.name!r}"
            seen.add(item.name)
    if not instance.devices:
        yield "there is no device"
    if not instance.schemes:
        yield "there is no scheme; scheme 0 is that of ops that run alone"


def _sizes(instance: Instance) -> Iterator[str]:
    for device in instance.devices:
        yield from _out_of_range(device, f"device {device.name!r}")
    for scheme in instance.schemes:
        yield from _out_of_range(scheme, f"scheme {scheme.name!r}")
    for buffer in instance.buffers:
        yield from _out_of_range(buffer, f"buffer {buffer.name!r}", skip=("alias",))
    for op in instance.ops:
        yield from _out_of_range(op.work, f"op {op.name!r}: work")
        yield from _out_of_range(op, f"op {op.name!r}", skip=("device",))
        for offer in op.offers:
            for access in (*offer.reads, *offer.writes):
                where = f"op {op.name!r}: access to buffer {access.buffer}"
                yield from _out_of_range(access, where, skip=("buffer", "footprint"))
    if instance.limits.max_ops < 1:
        yield f"limits: max_ops must be at least 1, not {instance.limits.max_ops}"
    yield from _out_of_range(instance.limits, "limits")
    yield from _out_of_range(instance.rules, "rules")


def _out_of_range(record: object, where: str, skip: tuple[str, ...] = ()) -> Iterator[str]:
    """Numbers of a record that are negative or beyond ``LARGEST``; ids among them are left to ``_references``."""
    for name in _field_names(type(record)):
        value = getattr(record, name)
        if not isinstance(value, int) or name in skip:
            continue
        if value < 0:
            yield f"{where}: {name} is negative: {value}"
        elif value > LARGEST:
            yield f"{where}: {name} is above 2**53, the largest number that a file may hold"


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


def _references(instance: Instance) -> Iterator[str]:
    ops, buffers, schemes = len(instance.ops), len(instance.buffers), len(instance.schemes)
    for op in instance.ops:
        where = f"op {op.name!r}"
        yield from _dangling(where, "device", (op.device,), len(instance.devices))
        for offer in op.offers:
            yield from _dangling(where, "scheme", (offer.scheme,), schemes)
            yield from _dangling(where, "buffer", (a.buffer for a in (*offer.reads, *offer.writes)), buffers)
    for position, edge in enumerate(instance.edges):
        where = f"edge {position}"
        yield from _dangling(where, "op", (edge.src, edge.dst), ops)
        yield from _dangling(where, "scheme", edge.schemes, schemes)
        yield from _dangling(where, "buffer", () if edge.buffer is None else (edge.buffer,), buffers)
    for buffer in instance.buffers:
        yield from _dangling(
            f"buffer {buffer.name!r}", "alias", () if buffer.alias is None else (buffer.alias,), buffers
        )
    for variant in instance.variants:
        for alternative in variant.alternatives:
            yield from _dangling(f"variant {variant.name!r}", "op", alternative, ops)
    rules = instance.rules
    for name, groups in (
        ("fuse", rules.fuse),
        ("no_fuse", rules.no_fuse),
        ("single_kernel", rules.single_kernel),
        ("barrier", (rules.barrier,)),
    ):
        for group in groups:
            yield from _dangling(f"rule {name}", "op", group, ops)


def _dangling(where: str, what: str, ids: Iterable[int], count: int) -> Iterator[str]:
    for number in ids:
        if not 0 <= number < count:
            yield f"{where}: {what} {number} does not exist (there are {count})"


def _order(instance: Instance) -> Iterator[str]:
    if all(edge.src < edge.dst for edge in instance.edges):
        return
    cycle = _find_cycle(instance)
    if cycle:
        yield f"the edges form a cycle: {' -> '.join(instance.ops[op].name for op in cycle)}"
    for edge in instance.edges:
        if edge.src >= edge.dst:
            yield (
                f"edge {_edge_name(instance, edge)} goes against program order: "
                f"list op {instance.ops[edge.src].name!r} before op {instance.ops[edge.dst].name!r}"
            )


def _find_cycle(instance: Instance) -> list[int]:
    """A cycle as a list of ops that ends where it starts, or nothing."""
    successors: list[list[int]] = [[] for _ in instance.ops]
    for edge in instance.edges:
        successors[edge.src].append(edge.dst)
    done: set[int] = set()
    for root in range(len(instance.ops)):
        path: list[int] = []
        on_path: set[int] = set()
        stack = [(root, iter(successors[root]))] if root not in done else []
        if stack:
            path, on_path = [root], {root}
        while stack:
            op, rest = stack[-1]
            after = next(rest, None)
            if after is None:
                stack.pop()
                done.add(op)
                on_path.discard(path.pop())
            elif after in on_path:
                return [*path[path.index(after) :], after]
            elif after not in done:
                stack.append((after, iter(successors[after])))
                path.append(after)
                on_path.add(after)
    return []


def _offers(instance: Instance) -> Iterator[str]:
    for op in instance.ops:
        if not op.offers:
            yield f"op {op.name!r} has no offers: it cannot run in any scheme"
        seen: set[int] = set()
        for offer in op.offers:
            if offer.scheme in seen:
                yield f"op {op.name!r} offers scheme {instance.schemes[offer.scheme].name!r} twice"
            seen.add(offer.scheme)
            written = [write.buffer for write in offer.writes]
            if len(written) != len(set(written)):
                yield f"op {op.name!r} writes one buffer twice in scheme {instance.schemes[offer.scheme].name!r}"


def _edges(instance: Instance) -> Iterator[str]:
    offered = [{offer.scheme for offer in op.offers} for op in instance.ops]
    for edge in instance.edges:
        where = f"edge {_edge_name(instance, edge)}"
        for scheme in edge.schemes:
            if scheme == ALONE:
                yield f"{where} allows scheme 0, but a kernel of that scheme holds one op"
            if scheme not in offered[edge.src] or scheme not in offered[edge.dst]:
                yield f"{where} allows scheme {instance.schemes[scheme].name!r}, which its two ops do not both offer"
        if edge.buffer is not None and not all(
            any(write.buffer == edge.buffer for write in offer.writes) for offer in instance.ops[edge.src].offers
        ):
            yield f"{where} carries a buffer that op {instance.ops[edge.src].name!r} does not write in every offer"


def _buffers(instance: Instance) -> Iterator[str]:
    written = {write.buffer for op in instance.ops for offer in op.offers for write in offer.writes}
    carried = {(edge.dst, edge.buffer) for edge in instance.edges}
    for number, buffer in enumerate(instance.buffers):
        if buffer.kind == "temporary" and number not in written:
            yield f"buffer {buffer.name!r} is neither produced by an op nor an input or constant"
        if buffer.donated and buffer.kind != "input":
            yield f"buffer {buffer.name!r} is donated but not an input"
        if buffer.alias is not None and (
            buffer.alias == number
            or instance.buffers[buffer.alias].kind == "temporary"
            or instance.buffers[buffer.alias].alias is not None
        ):
            yield f"buffer {buffer.name!r}: alias must name an input or constant that has storage of its own"
    for number, op in enumerate(instance.ops):
        for offer in op.offers:
            for read in offer.reads:
                source = instance.buffers[read.buffer]
                if source.kind == "temporary" and (number, read.buffer) not in carried:
                    yield f"op {op.name!r} reads buffer {source.name!r}, but no edge brings it from its producer"


def _variants(instance: Instance) -> Iterator[str]:
    owner: dict[int, str] = {}
    for variant in instance.variants:
        where = f"variant {variant.name!r}"
        if not variant.alternatives:
            yield f"{where} has no alternatives"
        members = {op for alternative in variant.alternatives for op in alternative}
        for alternative in variant.alternatives:
            if len(set(alternative)) != len(alternative):
                yield f"{where} names an op twice in one alternative"
        for op in sorted(members):
            if op in owner:
                yield f"op {instance.ops[op].name!r} is in two variants: {owner[op]!r} and {variant.name!r}"
            owner[op] = variant.name
        wanted = _wanted_from(instance, members)
        for alternative in variant.alternatives:
            missing = wanted - {buffer for op in alternative for buffer in _writes_always(instance.ops[op])}
            if missing:
                name = instance.buffers[min(missing)].name
                yield f"{where}: alternative {alternative} does not write buffer {name!r}, which others need"


def _wanted_from(instance: Instance, members: set[int]) -> set[int]:
    """Buffers that the ops of a variant owe to the rest: outputs, mutated inputs, and values used outside it."""
    wanted = {
        edge.buffer
        for edge in instance.edges
        if edge.src in members and edge.dst not in members and edge.buffer is not None
    }
    for op in members:
        for buffer in _writes_always(instance.ops[op]):
            if instance.buffers[buffer].output or instance.buffers[buffer].kind != "temporary":
                wanted.add(buffer)
    return wanted


def _writes_always(op: Op) -> set[int]:
    return set.intersection(*({write.buffer for write in offer.writes} for offer in op.offers))


def _rules(instance: Instance) -> Iterator[str]:
    rules = instance.rules
    name = [op.name for op in instance.ops]
    # Rules on ops of alternatives contradict each other only if these run: that is for the solver to see.
    optional = {op for variant in instance.variants for alternative in variant.alternatives for op in alternative}
    for label, pairs in (("fuse", rules.fuse), ("no_fuse", rules.no_fuse)):
        for left, right in pairs:
            if left == right:
                yield f"rule {label} pairs op {name[left]!r} with itself"
    apart = {frozenset(pair) for pair in rules.no_fuse}
    for pair in rules.fuse:
        if optional.issuperset(pair):
            continue
        if frozenset(pair) in apart:
            yield f"rules fuse and no_fuse contradict each other on {name[pair[0]]!r} and {name[pair[1]]!r}"
        for op in pair:
            if op in rules.barrier:
                yield f"rules fuse and barrier contradict each other on {name[op]!r}"
    seen: set[int] = set()
    for group in rules.single_kernel:
        if not group:
            yield "rule single_kernel holds an empty set"
        for op in group:
            if op in seen:
                yield f"rule single_kernel names op {name[op]!r} twice"
            seen.add(op)
            if op in rules.barrier and len(group) > 1 and not optional.issuperset(group):
                yield f"rules single_kernel and barrier contradict each other on {name[op]!r}"


def _edge_name(instance: Instance, edge: Edge) -> str:
    return f"{instance.ops[edge.src].name!r} -> {instance.ops[edge.dst].name!r}"


#: In this order: later checks rely on earlier ones.
CHECKS: tuple[Callable[[Instance], Iterator[str]], ...] = (
    _version,
    _names,
    _sizes,
    _references,
    _order,
    _offers,
    _edges,
    _buffers,
    _variants,
    _rules,
)
