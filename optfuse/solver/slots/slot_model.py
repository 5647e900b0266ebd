"""The slot model: each op is in one of a small number of numbered kernels, however large these are.

Where kernels hold dozens of ops, there are too many of them to list; but then there are few in a schedule, and they run
in some order. So number them. Every op gets a *slot*, no op a slot before that of what it needs, and the ops of a slot
are a kernel: convex, and free of cycles, by the order alone.

- variables: whether an op is in a slot in a *mode*; the mode of each slot; which values a slot takes and hands on;
- families: each op in one slot, in a mode that it offers; order; edges that a mode does not allow; sizes; separators;
- objective: launches, and of each slot the larger of its memory and its compute time.

A mode is a scheme; two where a kernel that reduces cannot fill the device and pays more for its memory. Two things are
left out, which makes the model a bound from below: what a looped kernel reads again, and that kernels hang together.
The latter is mended as it is needed: whatever separates two parts of a slot must have an op there if both are there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from optfuse.problem.instance import Instance
from optfuse.problem.legality import legal_index
from optfuse.problem.op_masks import bits, mask_of
from optfuse.solver.columns.pricing import Key, Terms, pricer


@dataclass(frozen=True, slots=True)
class Mode:
    """A scheme, and what its kernels pay for memory: ``numerator``/``denominator`` of the sum; ``ops`` offer it."""

    scheme: int
    ops: int
    numerator: int = 1
    denominator: int = 1


@dataclass(frozen=True, slots=True)
class Separator:
    """In a mode's scheme nothing but ``ops`` links the ``parts`` (bitmasks) to each other."""

    scheme: int
    ops: int
    parts: tuple[int, ...]


Slots = tuple[tuple[int, int], ...]  # (ops as a bitmask, scheme) of each


@dataclass(slots=True)
class SlotModel:
    """The model while it is built. ``at[op, slot, mode]`` are its variables, ``before[op][k]`` sums of them."""

    problem: Instance
    count: int
    modes: tuple[Mode, ...]
    cp: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    at: dict[tuple[int, int, int], cp_model.IntVar] = field(default_factory=dict)
    in_mode: list[list[cp_model.IntVar]] = field(default_factory=list)
    before: list[list[cp_model.LinearExprT]] = field(default_factory=list)
    objective: cp_model.LinearExprT = 0

    def members(self, slot: int, mode: int, mask: int) -> list[cp_model.IntVar]:
        """The variables of some ops that can be in a slot in a mode."""
        return [self.at[op, slot, mode] for op in bits(mask & self.modes[mode].ops)]

    def slots(self, solver: cp_model.CpSolver) -> Slots:
        """The slots of the solution that was found."""
        masks: dict[tuple[int, int], int] = {}
        for (op, slot, mode), variable in self.at.items():
            if solver.boolean_value(variable):
                key = slot, self.modes[mode].scheme
                masks[key] = masks.get(key, 0) | 1 << op
        return tuple((masks[key], key[1]) for key in sorted(masks))


def modes_of(problem: Instance) -> tuple[Mode, ...]:
    """The modes of a block on one device."""
    device = problem.devices[problem.ops[0].device]
    terms = pricer(problem).terms
    found: list[Mode] = []
    for scheme, facts in enumerate(problem.schemes):
        offering = [op for op, offers in enumerate(terms) if scheme in offers]
        reducing = {op for op in offering if terms[op][scheme].reduces}
        programs = max(1, facts.parallel)
        plain = [op for op in offering if op not in reducing]
        if not reducing or programs >= device.saturating_programs:
            found.append(Mode(scheme, mask_of(offering)))
            continue
        found.append(Mode(scheme, mask_of(plain)))
        common = math.gcd(device.saturating_programs, programs)
        found.append(Mode(scheme, mask_of(offering), device.saturating_programs // common, programs // common))
    return tuple(mode for mode in found if mode.ops)


def slot_model(problem: Instance, count: int, modes: tuple[Mode, ...]) -> SlotModel:
    """All schedules of exactly ``count`` kernels of a block without variants and rules, on one device."""
    model = SlotModel(problem, count, modes)
    _add_variables(model)
    _add_order(model)
    _add_sizes(model)
    if problem.limits.connected:
        _add_connectivity(model)
    model.objective = sum(_add_cost(model, slot) for slot in range(count))
    model.cp.minimize(model.objective)
    return model


def add_separator(model: SlotModel, separator: Separator) -> None:
    """Where ops of two parts share a slot, each part there has an op beside one of the separator that is there too."""
    links = links_of(model.problem, separator.scheme)
    for slot in range(model.count):
        for number, mode in enumerate(model.modes):
            if mode.scheme != separator.scheme:
                continue
            several = model.cp.new_bool_var("")
            there: list[cp_model.IntVar] = []
            for part in separator.parts:
                members = model.members(slot, number, part)
                if not members:
                    continue
                there.append(model.cp.new_bool_var(""))
                for member in members:
                    model.cp.add_implication(member, there[-1])
                touching: list[cp_model.IntVar] = []
                for op in bits(separator.ops & mode.ops):
                    beside = model.members(slot, number, links[op] & part)
                    if beside:
                        touching.append(model.cp.new_bool_var(""))
                        model.cp.add_implication(touching[-1], model.at[op, slot, number])
                        model.cp.add(sum(beside) >= touching[-1])
                model.cp.add(sum(touching) + 1 >= there[-1] + several)
            model.cp.add(sum(there) <= 1 + (len(there) - 1) * several)
            room, largest = model.problem.limits.max_ops, max(part.bit_count() for part in separator.parts)
            if largest < room:
                in_parts = [variable for part in separator.parts for variable in model.members(slot, number, part)]
                model.cp.add(sum(in_parts) <= largest + (room - largest) * several)
                model.cp.add(sum(model.members(slot, number, separator.ops)) >= several)


def _add_variables(model: SlotModel) -> None:
    """Each op in one slot and mode, each slot in one mode and not empty."""
    cp = model.cp
    model.in_mode = [[cp.new_bool_var("") for _ in model.modes] for _ in range(model.count)]
    for in_mode in model.in_mode:
        cp.add_exactly_one(in_mode)
    for op in range(len(model.problem.ops)):
        mine: list[list[cp_model.IntVar]] = []
        for slot in range(model.count):
            here: list[cp_model.IntVar] = []
            for number, mode in enumerate(model.modes):
                if mode.ops >> op & 1:
                    here.append(cp.new_bool_var(""))
                    model.at[op, slot, number] = here[-1]
                    cp.add_implication(here[-1], model.in_mode[slot][number])
            mine.append(here)
        cp.add_exactly_one(variable for here in mine for variable in here)
        model.before.append(
            [sum(variable for here in mine[: slot + 1] for variable in here) for slot in range(model.count)]
        )


def _add_order(model: SlotModel) -> None:
    """No op before what it needs; later, where no mode lets the two share a kernel."""
    for edge in model.problem.edges:
        first, then = model.before[edge.src], model.before[edge.dst]
        if edge.schemes:
            for slot in range(model.count - 1):
                model.cp.add(then[slot] <= first[slot])
        else:
            model.cp.add(then[0] == 0)
            for slot in range(1, model.count):
                model.cp.add(then[slot] <= first[slot - 1])
        for number, mode in enumerate(model.modes):
            both = 1 << edge.src | 1 << edge.dst
            if mode.ops & both == both and edge.schemes and mode.scheme not in edge.schemes:
                for slot in range(model.count):
                    model.cp.add(sum(model.members(slot, number, both)) <= model.in_mode[slot][number])


def _add_sizes(model: SlotModel) -> None:
    """A slot has room for so many ops; one op alone always may run, and only one runs in scheme 0."""
    limits, ops = model.problem.limits, model.problem.ops
    everything = (1 << len(ops)) - 1
    weighs = sum(op.weight for op in ops) > limits.max_weight and all(op.weight <= limits.max_weight for op in ops)
    for slot in range(model.count):
        for number, mode in enumerate(model.modes):
            most = max(1, limits.max_ops) if mode.scheme else 1
            here = model.members(slot, number, everything)
            model.cp.add(sum(here) <= most * model.in_mode[slot][number])
            model.cp.add(sum(here) >= model.in_mode[slot][number])
            if weighs:
                weight = sum(ops[op].weight * model.at[op, slot, number] for op in bits(mode.ops))
                model.cp.add(weight <= limits.max_weight)


def _add_connectivity(model: SlotModel) -> None:
    """No op is without any that it is linked to, unless it is alone."""
    room = max(1, model.problem.limits.max_ops)
    for number, mode in enumerate(model.modes):
        links = links_of(model.problem, mode.scheme)
        for slot in range(model.count):
            alone = model.cp.new_bool_var("")
            here = model.members(slot, number, mode.ops)
            model.cp.add(sum(here) <= 1 + (room - 1) * ~alone)
            for op in bits(mode.ops):
                neighbours = model.members(slot, number, links[op])
                model.cp.add(sum(neighbours) + alone >= model.at[op, slot, number])


def _add_cost(model: SlotModel, slot: int) -> cp_model.LinearExprT:
    """A launch, and the larger of the memory and the compute time of a slot."""
    problem = model.problem
    prices = pricer(problem)
    device = problem.devices[problem.ops[0].device]
    stretch = max(-(-mode.numerator // mode.denominator) for mode in model.modes)
    slowest = stretch * sum(_dearest(offers) for offers in prices.terms) + sum(prices.compute)
    time = model.cp.new_int_var(0, slowest, "")
    for number, mode in enumerate(model.modes):
        memory = _memory(model, slot, number)
        model.cp.add(mode.denominator * time + mode.denominator - 1 >= mode.numerator * memory)
    if any(prices.compute):
        work = sum(prices.compute[op] * variable for (op, here, _), variable in model.at.items() if here == slot)
        model.cp.add(time >= work)
    return device.launch_ps + time


def _memory(model: SlotModel, slot: int, number: int) -> cp_model.LinearExprT:
    """What a slot takes from memory and leaves there in a mode."""
    mode, at, cp = model.modes[number], model.at, model.cp
    terms = pricer(model.problem).terms
    total: list[cp_model.LinearExprT] = []
    readers: dict[Key, list[tuple[int, int]]] = {}
    least: dict[Key, int] = {}
    for op in bits(mode.ops):
        mine = terms[op][mode.scheme]
        for key, price, _, producers in mine.reads:
            readers.setdefault(key, []).append((op, producers))
            least[key] = min(least.get(key, price), price)
        consumers = dict(mine.users)
        for buffer, price, always in mine.writes:
            users = consumers.get(buffer, 0)
            if always or users & ~mode.ops:
                total.append(price * at[op, slot, number])
            elif users:
                written = cp.new_bool_var("")
                for user in model.members(slot, number, users):
                    cp.add(written >= at[op, slot, number] - user)
                total.append(price * written)
    for key, those in readers.items():
        read = cp.new_bool_var("")
        for op, producers in those:
            cp.add(read >= at[op, slot, number] - sum(model.members(slot, number, producers)))
        total.append(least[key] * read)
    return sum(total)


def _dearest(offers: Mapping[int, Terms]) -> int:
    return max(sum(read[1] for read in term.reads) + sum(write[1] for write in term.writes) for term in offers.values())


def links_of(problem: Instance, scheme: int) -> list[int]:
    """The ops that an op is linked to in a scheme, by an edge or by what both read."""
    index = legal_index(problem)
    links = [0] * len(problem.ops)
    readers: dict[Key, int] = {}
    for op, offered in enumerate(index.footprints):
        for key in offered.get(scheme, ()):
            readers[key] = readers.get(key, 0) | 1 << op
    for mask in readers.values():
        for op in bits(mask):
            links[op] |= mask & ~(1 << op)
    for edge in problem.edges:
        if scheme in edge.schemes:
            links[edge.src] |= 1 << edge.dst
            links[edge.dst] |= 1 << edge.src
    return links


def separators_of(problem: Instance, slots: Slots) -> list[Separator]:
    """For every slot that falls apart, what separates one of its pieces from the others."""
    found: dict[Separator, None] = {}
    for mask, scheme in slots:
        links = links_of(problem, scheme)
        pieces = pieces_of(links, mask)
        if len(pieces) == 1:
            continue
        offering = mask_of(op for op, offered in enumerate(legal_index(problem).footprints) if scheme in offered)
        for piece in pieces:
            around = _around(links, piece) & offering
            other = next(one for one in pieces if one != piece)
            beyond = _reached(links, offering & ~around, other)
            ops = around & _around(links, beyond)
            found[Separator(scheme, ops, tuple(pieces_of(links, offering & ~ops)))] = None
    return list(found)


def pieces_of(links: Sequence[int], mask: int) -> list[int]:
    """The parts of a set that links hold together."""
    pieces: list[int] = []
    while mask:
        piece = _reached(links, mask, mask & -mask)
        pieces.append(piece)
        mask &= ~piece
    return pieces


def _reached(links: Sequence[int], mask: int, start: int) -> int:
    part = frontier = start
    while frontier:
        frontier = _around(links, frontier) & mask & ~part
        part |= frontier
    return part


def _around(links: Sequence[int], mask: int) -> int:
    found = 0
    for op in bits(mask):
        found |= links[op]
    return found & ~mask
