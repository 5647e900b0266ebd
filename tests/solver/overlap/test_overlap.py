"""Communication beside computation: times of an order, the bound, and the orders found, against all orders."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from optfuse.errors import InvalidInstanceError
from optfuse.problem.checker import check
from optfuse.problem.device_files import load_device
from optfuse.problem.instance import Buffer, Edge, Instance, Offer, Op, OpKind, Read, Scheme, Work, Write
from optfuse.problem.solution import Kernel
from optfuse.problem.validate import validate
from optfuse.report.summary import summary
from optfuse.report.text import report
from optfuse.schedule.result_file import result_from_plain, result_to_plain
from optfuse.solver.control.clock import NEVER, WorkClock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.order_problem import order_problem
from optfuse.solver.overlap.overlap import overlapped
from optfuse.solver.overlap.timeline import TimelineProblem, least_makespan, timeline, timeline_problem
from optfuse.solver.solve import solve

US = 1_000_000
OPTIONS = SolveOptions(time_limit=5, workers=1, deterministic=True)


def instance_of(
    ops: Sequence[tuple[OpKind, int, int, Sequence[int]]], size: int = 1 << 10, slowdown: int = 0
) -> Instance:
    """An instance of (kind, microseconds, channel, producers) an op; each makes one buffer, leaves are outputs."""
    device = replace(load_device("h200"), launch_ps=0, tensor_ps_per_gop=1 << 30, link_slowdown_percent=slowdown)
    used = {source for *_, sources in ops for source in sources}
    buffers = [Buffer(f"b{k}", size, output=k not in used) for k in range(len(ops))]
    made, edges = [], []
    for k, (kind, us, channel, sources) in enumerate(ops):
        held = list(sources)
        if kind == "wait":
            held += [source for start in sources for source in ops[start][3]]
        edges += [Edge(source, k, source) for source in dict.fromkeys(held)]
        offer = Offer(0, tuple(Read(source, 0) for source in dict.fromkeys(held)), (Write(k, 0),))
        compute = 0 if kind in ("collective", "wait") else us * US
        made.append(
            Op(
                f"op{k}",
                kind,
                (offer,),
                Work(tensor=compute),
                channel=channel,
                transfer_ps=us * US if kind == "collective" else 0,
            )
        )
    starts = [k for k, op in enumerate(ops) if op[0] == "collective"]
    edges += [Edge(first, then) for first, then in pairwise(starts)]
    instance = Instance("streams", (device,), (Scheme("alone", 1),), tuple(buffers), tuple(made), tuple(edges))
    validate(instance)
    return instance


def singles(instance: Instance) -> list[Kernel]:
    return [Kernel((k,), 0, (k,)) for k in range(len(instance.ops))]


def timed(instance: Instance) -> TimelineProblem:
    kernels = singles(instance)
    return timeline_problem(instance, kernels, order_problem(instance, kernels), range(len(kernels)))


#: A gradient is reduced while the next one is computed; the traced order waits at once.
TWO_GRADIENTS: list[tuple[OpKind, int, int, Sequence[int]]] = [
    ("library", 4, 0, ()),
    ("collective", 6, 1, (0,)),
    ("wait", 0, 0, (1,)),
    ("library", 5, 0, (0,)),
    ("collective", 6, 1, (3,)),
    ("wait", 0, 0, (4,)),
    ("library", 1, 0, (2, 5)),
]


def test_a_wait_beside_its_start_hides_nothing() -> None:
    problem = timed(instance_of(TWO_GRADIENTS))
    assert timeline(problem, range(7)).makespan == (4 + 6 + 5 + 6 + 1) * US
    assert timeline(problem, (0, 1, 3, 4, 2, 5, 6)).makespan == (4 + 6 + 6 + 1) * US


def test_kernels_are_slower_while_a_transfer_is_in_flight() -> None:
    """Of the 5 us beside the first transfer of 6, all run at half speed for 6: 3 are done, and 2 are left."""
    problem = timed(instance_of(TWO_GRADIENTS, slowdown=100))
    found = timeline(problem, (0, 1, 3, 4, 2, 5, 6))
    assert found.makespan == (4 + 6 + 2 + 6 + 1) * US
    assert found.idle == 6 * US
    assert least_makespan(problem) >= (10 + 12 // 2) * US - len(problem.busy)


def test_transfers_of_one_group_queue_and_those_of_two_do_not() -> None:
    other = [*TWO_GRADIENTS]
    other[4] = ("collective", 6, 2, (3,))
    assert timeline(timed(instance_of(other)), (0, 1, 3, 4, 2, 5, 6)).makespan == (4 + 5 + 6 + 1) * US


def test_the_best_order_starts_early_and_waits_late_and_is_proven() -> None:
    instance = instance_of(TWO_GRADIENTS)
    result = solve(instance, OPTIONS)
    found = result.statistics.overlap
    assert found is not None
    assert (found.makespan, found.bound, found.gap) == (17 * US, 17 * US, 0.0)
    assert (found.exposed, found.transfers) == (7 * US, 12 * US)
    assert not check(instance, result.solution)


def test_a_result_says_what_is_exposed_and_keeps_it() -> None:
    instance = instance_of(TWO_GRADIENTS)
    result = solve(instance, OPTIONS)
    line = "12.0 us of communication, 7.0 us of it exposed: the call takes 17.0 us"
    assert line in report(instance, result)
    assert summary(instance, result)["overlap"]["exposed"] == 7 * US
    kept = result_from_plain(json.loads(json.dumps(result_to_plain(result))), result.solution, result.greedy_solution)
    assert kept.statistics.overlap == result.statistics.overlap


def test_the_programs_order_is_kept_where_it_is_asked_for() -> None:
    result = solve(instance_of(TWO_GRADIENTS), replace(OPTIONS, order="program"))
    assert [kernel.ops[0] for kernel in result.solution.kernels] == list(range(7))
    assert result.statistics.overlap is not None
    assert result.statistics.overlap.makespan == 22 * US
    assert "overlap: 22.0 us not proven least; no order takes less than 17.0 us" in result.statistics.given_up


def test_an_order_that_overlaps_stays_within_the_cap() -> None:
    """To compute beside a transfer keeps the transfer's buffers: with as little memory as can be it is not done."""
    instance = instance_of(TWO_GRADIENTS, 1 << 20)
    free = solve(instance, OPTIONS)
    least = free.statistics.order_bound
    assert least < free.solution.peak_bytes
    capped = solve(instance, replace(OPTIONS, peak_memory=least))
    assert capped.solution.peak_bytes <= least
    assert capped.statistics.overlap is not None
    assert free.statistics.overlap is not None
    assert capped.statistics.overlap.makespan > free.statistics.overlap.makespan


@pytest.mark.parametrize(
    ("position", "changes", "message"),
    [
        (2, {"offers": (Offer(0, (Read(1, 0),), (Write(2, 0),)),)}, "waits for 'op1' and must read 'b0' too"),
        (0, {"transfer_ps": 5}, "channel and transfer_ps are a collective's, and its kind is 'library'"),
        (1, {"channel": 0}, "a transfer needs a channel"),
    ],
)
def test_what_no_collective_is_is_refused(position: int, changes: dict[str, Any], message: str) -> None:
    instance = instance_of(TWO_GRADIENTS)
    ops = list(instance.ops)
    ops[position] = replace(ops[position], **changes)
    edges = tuple(edge for edge in instance.edges if "offers" not in changes or (edge.dst, edge.buffer) != (2, 0))
    with pytest.raises(InvalidInstanceError, match=message):
        validate(replace(instance, ops=tuple(ops), edges=edges))


def test_a_graph_without_communication_has_no_overlap() -> None:
    assert solve(instance_of([("library", 4, 0, ()), ("library", 5, 0, (0,))]), OPTIONS).statistics.overlap is None


def drawn(seed: int, slowdown: int = 0) -> Instance:
    """Up to nine ops: kernels, and collectives on one or two channels with their waits."""
    draw = random.Random(seed)
    ops: list[tuple[OpKind, int, int, Sequence[int]]] = [("library", draw.randint(1, 9), 0, ())]
    values = [0]
    while len(ops) < 8:
        sources = sorted(set(draw.choices(values, k=draw.randint(1, 2))))
        if draw.random() < 0.4:
            ops.append(("collective", draw.randint(1, 12), draw.randint(1, 2), sources[:1]))
            ops.append(("wait", 0, 0, (len(ops) - 1,)))
        else:
            ops.append(("library", draw.randint(1, 9), 0, sources))
        values.append(len(ops) - 1)
    return instance_of(ops, slowdown=slowdown)


def orders(problem: TimelineProblem, done: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    if len(done) == len(problem.before):
        yield done
    for kernel, earlier in enumerate(problem.before):
        if kernel not in done and set(earlier) <= set(done):
            yield from orders(problem, (*done, kernel))


@pytest.mark.spread(3)
@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold_and_no_order_gets_worse_where_transfers_slow_kernels_down(seed: int) -> None:
    instance = drawn(seed, slowdown=40)
    problem = timed(instance)
    best = min(timeline(problem, order).makespan for order in orders(problem))
    found = solve(instance, OPTIONS).statistics.overlap
    assert least_makespan(problem) <= best
    if found is not None:
        assert found.bound <= best <= found.makespan <= found.before


@pytest.mark.parametrize("seed", [*range(20), 28, 41, 122, 176])
def test_bounds_hold_and_answers_are_best_of_all_orders(seed: int) -> None:
    instance = drawn(seed)
    problem = timed(instance)
    best = min(timeline(problem, order).makespan for order in orders(problem))
    assert least_makespan(problem) <= best
    kernels = singles(instance)
    found = overlapped(
        instance,
        kernels,
        order_problem(instance, kernels),
        range(len(kernels)),
        OPTIONS,
        NEVER,
        WorkClock(None, interruptible=False),
    )
    if found is None:
        assert not any(problem.transfer)
        return
    order, figures = found
    assert sorted(order) == list(range(len(kernels)))
    assert all(order.index(first) < order.index(then) for then, mine in enumerate(problem.before) for first in mine)
    assert timeline(problem, order).makespan == figures.makespan
    assert figures.bound <= best <= figures.makespan
    assert figures.makespan == best
