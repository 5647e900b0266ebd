"""A bound on the time of a training step that holds for every choice of what it saves.

Any step computes its results, which takes at least as long as a forward graph that saves nothing. Its backward graph
has the same backward half in every choice, whose loops read forward values, or values that these are computed from:
``solver.saving.reads`` says what each kernel is charged for them. Library calls read what they need from memory in any
case.

Within a cap, library calls run again and values that library calls need are written again, both at least as often as in
the cheapest choice of that kind: of what is in memory between the halves, or at one of ``saving_moments``. Library
calls are kernels of their own, so that their time comes on top. Writes may come on top of memory time only: they are
added to a bound for which loops' arithmetic takes no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from optfuse.compiler.frontend.aot_autograd.joint import Choice, JointStep, joint_names, results_alone
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.stages import fusion_problem
from optfuse.problem.cost import MIB
from optfuse.problem.device_files import load_device
from optfuse.problem.instance import Device, Instance, Offer, Op, Read, Work
from optfuse.schedule.saving_moments import Moment
from optfuse.solver.control.clock import Clock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.saving.choice import (
    ForwardValue,
    choose_saving,
    fewest_recomputed,
    least_cost,
    of_library_calls,
    of_writes,
)
from optfuse.solver.saving.reads import least_reads
from optfuse.solver.solve import solve

#: Temporaries of at most this share of the L2 cache are read and written at its rate: see ``problem.cost``.
_L2_SHARE = 8


@dataclass(slots=True)
class StepBound:
    """Bounds on the time of one training step, for every choice of what it saves.

    ``forward`` is its forward graph by any choice; ``held`` are the bytes that are in memory at any time; ``seconds``
    limits each solve of the constraint model.
    """

    step: JointStep
    forward: Captured
    values: Sequence[ForwardValue]
    moments: Sequence[Moment]
    held: int
    device: str
    options: SolveOptions
    clock: Clock
    seconds: float
    _graphs: tuple[Instance, Instance | None] | None = None
    _priced: int | None = None
    _by_memory: int | None = None

    def within(self, cap: int | None) -> int:
        """Picoseconds that every step whose peak is at most ``cap`` bytes takes at least."""
        if self._priced is None:
            self._priced = self._least(self._halves())
        if cap is None:
            return self._priced
        if self._by_memory is None:
            self._by_memory = self._least(tuple(one and without_arithmetic(one) for one in self._halves()))
        left = max(0, cap - self.held)
        bounds = []
        for moment in (Moment(0, tuple(self.values)), *self.moments):
            room, cheap = max(0, left - moment.gradients), at_cache_rates(moment.values, load_device(self.device))
            bounds += [
                self._priced + self._more(of_library_calls(cheap), room),
                self._by_memory + self._more(of_writes(cheap), room),
            ]
        return max(bounds)

    def _more(self, values: Sequence[ForwardValue], left: int) -> int:
        """Picoseconds that the cheapest choice of at most ``left`` bytes adds at least."""
        return least_cost(values, left, self.clock, self.clock.now() + self.seconds)

    def _least(self, graphs: Sequence[Instance | None]) -> int:
        free = replace(self.options, rules=(), peak_memory=None, order="program")
        return sum(solve(graph, free).bound for graph in graphs if graph is not None)

    def _halves(self) -> tuple[Instance, Instance | None]:
        """A forward graph that saves nothing, and a backward graph that is charged the least for what it is given."""
        if self._graphs is None:
            forward = fusion_problem(results_alone(self.forward), self.device).instance
            self._graphs = forward, self._backward()
        return self._graphs

    def _backward(self) -> Instance | None:
        """The bound of the backward graph; None if no choice was found in time."""
        values, clock = self.values, self.clock
        found = choose_saving(fewest_recomputed(values), None, self.options, clock, clock.now() + self.seconds)
        if found is None:
            return None
        names = [value.name for value in values]
        choice = Choice(frozenset(names[k] for k in found.saved), frozenset(names[k] for k in found.again))
        half = self.step.halves(choice)[1]
        elements = {value.name: value.elements for value in self.step.values}
        given = joint_names(half)
        problem = fusion_problem(half, self.device).instance
        return charged(problem, values, [elements[name] for name in names], given, load_device(self.device))


def charged(
    instance: Instance,
    values: Sequence[ForwardValue],
    elements: Sequence[int],
    names: Mapping[str, str],
    device: Device,
) -> Instance:
    """The backward graph's instance in which loops read forward values for ``least_reads``.

    ``names``: the joint graph's names of the graph's nodes.
    """
    place = {value.name: k for k, value in enumerate(values)}
    given = {
        n: place[name]
        for n, buffer in enumerate(instance.buffers)
        if buffer.kind == "input" and (name := names.get(buffer.name, buffer.name)) in place
    }
    ops = [(op, offer) for op in instance.ops if op.kind == "loop" for offer in op.offers]
    whole = {
        given[read.buffer]
        for _, offer in ops
        for read in offer.reads
        if read.buffer in given and read.bytes >= instance.buffers[read.buffer].bytes
    }
    reading = [value.read_ps for value in at_cache_rates(values, device)]
    least = least_reads(values, whole, reading, elements)
    bytes_of = {n: _bytes_for(least.get(k, 0), device) for n, k in given.items()}
    return replace(instance, ops=tuple(_charged_op(op, instance, bytes_of, device) for op in instance.ops))


def _charged_op(op: Op, instance: Instance, bytes_of: Mapping[int, int], device: Device) -> Op:
    offers = []
    for offer in op.offers:
        reads: dict[int, Read] = {}
        others = []
        for read in offer.reads:
            if read.buffer not in bytes_of:
                others.append(read)
            elif op.kind != "loop":
                others.append(replace(read, bytes=_at_cache_rate(read.bytes, device), access="contiguous"))
            elif bytes_of[read.buffer] and read.bytes >= instance.buffers[read.buffer].bytes:
                reads[read.buffer] = Read(read.buffer, bytes_of[read.buffer])  # each once, wherever it is read
        offers.append(Offer(offer.scheme, (*others, *reads.values()), offer.writes, offer.full, offer.reduces))
    return replace(op, offers=tuple(offers))


def _bytes_for(time_ps: int, device: Device) -> int:
    """The most bytes whose first read takes at most ``time_ps``, the time until memory is at its rate included."""
    moving = time_ps - device.ramp_ps if time_ps >= 2 * device.ramp_ps else time_ps // 2
    return moving * MIB // device.dram_ps_per_mib


def _at_cache_rate(size: int, device: Device) -> int:
    """The bytes that memory reads in the time in which the cache may read ``size``."""
    rate = min(device.l2_ps_per_mib, device.dram_ps_per_mib)
    return size * rate // device.dram_ps_per_mib if size * _L2_SHARE <= device.l2_bytes else size


def at_cache_rates(values: Sequence[ForwardValue], device: Device) -> tuple[ForwardValue, ...]:
    """The values with the least times of reading and writing them, wherever they lie."""
    dram, most = device.dram_ps_per_mib, device.l2_bytes * device.dram_ps_per_mib // MIB
    read, write = (min(dram, rate or dram) for rate in (device.l2_ps_per_mib, device.l2_write_ps_per_mib))
    return tuple(
        replace(value, read_ps=value.read_ps * read // dram, write_ps=value.write_ps * write // dram)
        if max(value.read_ps, value.write_ps) * _L2_SHARE <= most
        else value
        for value in values
    )


def without_arithmetic(instance: Instance) -> Instance:
    """The instance whose loops take the time of their memory traffic alone."""
    ops = (replace(op, work=Work()) if op.kind == "loop" else op for op in instance.ops)
    return replace(instance, ops=tuple(ops))
