"""Validate instances: a malformed one is refused with one line that names the fault.

Called where instances are read and where they are solved; cached by identity. Solvers rely on what is checked here. For
speed, numbers are checked column by column first, and one by one only to name a bad one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from itertools import chain
from operator import attrgetter

from optfuse.errors import InvalidInstanceError
from optfuse.problem.check_variants import check_sources, check_variants, writes_always
from optfuse.problem.instance import ALONE, FORMAT_VERSION, LARGEST, Edge, Instance, Read, Write
from optfuse.problem.instance_cache import per_instance

#: How the types of numbers are written in ``instance``, and which numbers are ids there.
NUMBERS = ("int", "int | None")
IDS = ("buffer", "device", "alias")
#: The most characters of a name, a graph node or a module path.
LONGEST = 4096


@per_instance
def validate(instance: Instance) -> None:
    """Check all conditions that the dataclasses do not enforce.

    Raises:
        InvalidInstanceError: On the first problem found: an unknown version, a duplicate name, a negative size, a
            dangling id, a cycle (its path is shown), an edge against program order, an op without offers, and so on.
    """
    for check in CHECKS:
        problem = next(iter(check(instance)), None)
        if problem is not None:
            raise InvalidInstanceError(f"instance {_shortened(instance.name)}: {problem}")


def _version(instance: Instance) -> Iterator[str]:
    if instance.version != FORMAT_VERSION:
        yield f"version {instance.version} is not known; this program reads version {FORMAT_VERSION}"


def _names(instance: Instance) -> Iterator[str]:
    yield from _bad_text(instance.name, "its name")
    for family in ("devices", "schemes", "buffers", "ops", "variants"):
        seen: set[str] = set()
        for item in getattr(instance, family):
            yield from _bad_text(item.name, "a name")
            if item.name in seen:
                yield f"two {family} are named {item.name!r}"
            seen.add(item.name)
    for op in instance.ops:
        yield from _bad_text(op.node, f"op {op.name!r}: node")
        yield from _bad_text(op.module, f"op {op.name!r}: module")
        if _has_lone_surrogate(op.source):
            yield f"op {op.name!r}: source {_shortened(op.source)} holds half a surrogate pair, which is no text"
    if not instance.devices:
        yield "there is no device"
    if not instance.schemes:
        yield "there is no scheme; scheme 0 is that of ops that run alone"


def _sizes(instance: Instance) -> Iterator[str]:
    if instance.limits.max_ops >= 1 and all(map(_all_in_range, _families(instance))):
        return
    for device in instance.devices:
        yield from _out_of_range(device, f"device {device.name!r}")
    for scheme in instance.schemes:
        yield from _out_of_range(scheme, f"scheme {scheme.name!r}")
    for buffer in instance.buffers:
        yield from _out_of_range(buffer, f"buffer {buffer.name!r}")
    for op in instance.ops:
        yield from _out_of_range(op.work, f"op {op.name!r}: work")
        yield from _out_of_range(op, f"op {op.name!r}")
        for offer in op.offers:
            for access in (*offer.reads, *offer.writes):
                yield from _out_of_range(access, f"op {op.name!r}: access to buffer {access.buffer}")
    if instance.limits.max_ops < 1:
        yield f"limits: max_ops must be at least 1, not {instance.limits.max_ops}"
    yield from _out_of_range(instance.limits, "limits")
    yield from _out_of_range(instance.rules, "rules")


def _families(instance: Instance) -> Iterator[Sequence[object]]:
    """All records that hold numbers, those of a kind together."""
    yield from (instance.devices, instance.schemes, instance.buffers, instance.ops)
    yield list(map(attrgetter("work"), instance.ops))
    yield from _accesses(instance)
    yield from ((instance.limits,), (instance.rules,))


def _accesses(instance: Instance) -> tuple[list[Read], list[Write]]:
    """All reads and all writes, in all offers."""
    offers = [offer for op in instance.ops for offer in op.offers]
    reads, writes = map(attrgetter("reads"), offers), map(attrgetter("writes"), offers)
    return list(chain.from_iterable(reads)), list(chain.from_iterable(writes))


def _column(records: Iterable[object], name: str) -> set[int]:
    """The distinct values of a field, where it is set."""
    return set(map(attrgetter(name), records)) - {None}


def _all_in_range(records: Sequence[object]) -> bool:
    """Whether ``_out_of_range`` finds nothing in any record of a kind."""
    return not records or all(
        0 <= value <= LARGEST for name in _number_names(type(records[0])) for value in _column(records, name)
    )


def _out_of_range(record: object, where: str) -> Iterator[str]:
    """Numbers of a record that are negative or beyond ``LARGEST``; ids among them are left to ``_references``."""
    for name in _number_names(type(record)):
        value = getattr(record, name)
        if value is not None and value < 0:
            yield f"{where}: {name} is negative: {value}"
        elif value is not None and value > LARGEST:
            yield f"{where}: {name} is above 2**53, the largest number that a file may hold"


@cache
def _number_names(kind: type) -> tuple[str, ...]:
    """The fields of a record that are whole numbers and no ids."""
    return tuple(item.name for item in fields(kind) if item.type in NUMBERS and item.name not in IDS)


def _references(instance: Instance) -> Iterator[str]:
    ops, buffers, schemes = len(instance.ops), len(instance.buffers), len(instance.schemes)
    if _all_known(instance):
        return
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
    for name, groups in _ruled(instance):
        for group in groups:
            yield from _dangling(f"rule {name}", "op", group, ops)


def _ruled(instance: Instance) -> tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]:
    """The ops that rules name, by kind of rule."""
    rules = instance.rules
    named = ("fuse", rules.fuse), ("no_fuse", rules.no_fuse), ("single_kernel", rules.single_kernel)
    return *named, ("barrier", (rules.barrier,))


def _all_known(instance: Instance) -> bool:
    """Whether ``_references`` finds nothing: all ids of a kind at once."""
    reads, writes = _accesses(instance)
    ops = _column(instance.edges, "src") | _column(instance.edges, "dst")
    ops.update(op for variant in instance.variants for alternative in variant.alternatives for op in alternative)
    ops.update(op for _, groups in _ruled(instance) for group in groups for op in group)
    buffers = _column(reads, "buffer") | _column(writes, "buffer")
    buffers |= _column(instance.edges, "buffer") | _column(instance.buffers, "alias")
    schemes = {offer.scheme for op in instance.ops for offer in op.offers}
    schemes.update(scheme for allowed in set(map(attrgetter("schemes"), instance.edges)) for scheme in allowed)
    devices = _column(instance.ops, "device")
    families = (
        (ops, instance.ops),
        (buffers, instance.buffers),
        (schemes, instance.schemes),
        (devices, instance.devices),
    )
    return all(0 <= number < len(records) for numbers, records in families for number in numbers)


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
            if len(offer.writes) > 1 and len({write.buffer for write in offer.writes}) < len(offer.writes):
                yield f"op {op.name!r} writes one buffer twice in scheme {instance.schemes[offer.scheme].name!r}"


def _edges(instance: Instance) -> Iterator[str]:
    offered = [{offer.scheme for offer in op.offers} for op in instance.ops]
    always = [writes_always(op) for op in instance.ops]
    for edge in instance.edges:
        if ALONE in edge.schemes:
            yield f"edge {_edge_name(instance, edge)} allows scheme 0, but a kernel of that scheme holds one op"
        if edge.schemes and not (
            offered[edge.src].issuperset(edge.schemes) and offered[edge.dst].issuperset(edge.schemes)
        ):
            both = offered[edge.src] & offered[edge.dst]
            scheme = instance.schemes[next(scheme for scheme in edge.schemes if scheme not in both)].name
            yield f"edge {_edge_name(instance, edge)} allows scheme {scheme!r}, which its two ops do not both offer"
        if edge.buffer is not None and edge.buffer not in always[edge.src]:
            name = instance.ops[edge.src].name
            yield f"edge {_edge_name(instance, edge)} carries a buffer that op {name!r} does not write in every offer"


def _buffers(instance: Instance) -> Iterator[str]:
    written = _column(_accesses(instance)[1], "buffer")
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
                if (number, read.buffer) not in carried and instance.buffers[read.buffer].kind == "temporary":
                    source = instance.buffers[read.buffer]
                    yield f"op {op.name!r} reads buffer {source.name!r}, but no edge brings it from its producer"


def _owed(instance: Instance) -> Iterator[str]:
    """An op writes outputs and inputs in every offer or in none, so that results do not depend on its scheme."""
    kept = {n for n, buffer in enumerate(instance.buffers) if buffer.output or buffer.kind != "temporary"}
    for op in instance.ops:
        written = [kept.intersection([write.buffer for write in offer.writes]) for offer in op.offers]
        missing = set[int]().union(*written) - set[int].intersection(*written)
        if missing:
            yield f"op {op.name!r} writes buffer {instance.buffers[min(missing)].name!r} in some of its offers only"


def _rules(instance: Instance) -> Iterator[str]:
    rules = instance.rules
    name = [op.name for op in instance.ops]
    # contradictions of rules on ops of alternatives depend on the choice: the solver finds them
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


def _collectives(instance: Instance) -> Iterator[str]:
    """What a collective reads must be in use until the wait: a wait reads it too, if only 0 bytes."""
    reads = [{read.buffer for offer in op.offers for read in offer.reads} for op in instance.ops]
    for op in instance.ops:
        if op.kind != "collective" and (op.channel or op.transfer_ps):
            yield f"op {op.name!r}: channel and transfer_ps are a collective's, and its kind is {op.kind!r}"
        if op.transfer_ps and not op.channel and op.kind == "collective":
            yield f"op {op.name!r}: a transfer needs a channel, from 1"
    for edge in instance.edges:
        kinds = instance.ops[edge.src].kind, instance.ops[edge.dst].kind
        freed = reads[edge.src] - reads[edge.dst]
        if edge.buffer is not None and kinds == ("collective", "wait") and freed:
            wait, start = instance.ops[edge.dst].name, instance.ops[edge.src].name
            name = instance.buffers[min(freed)].name
            yield f"op {wait!r} waits for {start!r} and must read {name!r} too (0 bytes), which is in use until then"


#: In order: later checks rely on earlier ones.
CHECKS: tuple[Callable[[Instance], Iterator[str]], ...] = (
    _version,
    _names,
    _sizes,
    _references,
    _order,
    _offers,
    _edges,
    _buffers,
    _owed,
    _collectives,
    check_variants,
    check_sources,
    _rules,
)


def _bad_text(text: str, what: str) -> Iterator[str]:
    """Why a text may not be part of a one-line message; nothing if it may."""
    if len(text) > LONGEST:
        yield f"{what} has {len(text)} characters; at most {LONGEST} are read: {_shortened(text)}"
    if text.isprintable():
        return
    if _has_lone_surrogate(text):
        yield f"{what} holds half a surrogate pair, which is no text: {_shortened(text)}"
    bad = next((c for c in text if unicodedata.category(c) in ("Cc", "Zl", "Zp")), None)
    if bad is not None:
        yield f"{what} holds the control character {bad!a}: {_shortened(text)}"


def _has_lone_surrogate(text: str) -> bool:
    """Whether a text has half a surrogate pair, which JSON can hold but files and terminals cannot."""
    return not text.isascii() and any(unicodedata.category(c) == "Cs" for c in text)


def _shortened(text: str) -> str:
    """A text in ASCII, shortened for a one-line message."""
    shown = ascii(text)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
