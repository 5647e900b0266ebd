"""The start from the critical path: legal, and cheaper where sums over steps dominate."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from optfuse.problem.checker import check
from optfuse.problem.instance import Buffer, Edge, Instance, Limits, Offer, Op, Read, Scheme, Write
from optfuse.solver.baseline.exhaustive import exhaustive
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.control.clock import WorkClock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.assemble import assemble
from optfuse.solver.reduce.blocks import cut_out
from optfuse.solver.solve_block import STRATEGIES, Subject
from optfuse.solver.strategies.block import BlockResult, Budget
from optfuse.solver.strategies.critical_path import critical_path_partition
from tests.layered import build, layered
from tests.strategies import DEVICE, share

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
STEPS = 9


@settings(QUIET, max_examples=share(150))
@given(layered(6, 12))
def test_it_is_a_solution(instance: Instance) -> None:
    solution = assemble(instance, critical_path_partition(instance))
    assert not check(instance, solution)
    best = exhaustive(instance).solution
    assert best is not None
    assert best.objective <= solution.objective


def recurrent(steps: int) -> Instance:
    """Each step: an op, a library call that the next step waits for, a sum of the op's value, and its addition."""
    buffers = [Buffer("start", 65536, "input")]
    ops: list[Op] = []
    edges: list[Edge] = []

    def op(name: str, schemes: tuple[int, ...], reads: tuple[int, ...], size: int, *, output: bool = False) -> int:
        buffers.append(Buffer(name, size, output=output))
        taken = tuple(Read(buffer, buffers[buffer].bytes) for buffer in reads)
        offers = tuple(
            Offer(scheme, taken, (Write(len(buffers) - 1, size),), full=scheme == 2, reduces=name.startswith("sum"))
            for scheme in schemes
        )
        ops.append(Op(name, "library" if schemes == (0,) else "loop", offers))
        return len(buffers) - 1

    made: dict[int, int] = {}
    state, total = 0, None
    for step in range(steps):
        last = step == steps - 1
        value = op(f"value{step}", (1,), (state,), 65536)
        made[value] = len(ops) - 1
        if state in made:
            edges.append(Edge(made[state], made[value], state, ()))
        state = op(f"call{step}", (0,), (value,), 65536, output=last)
        made[state] = len(ops) - 1
        edges.append(Edge(made[value], made[state], value, ()))
        part = op(f"sum{step}", (2,), (value,), 256)
        made[part] = len(ops) - 1
        edges.append(Edge(made[value], made[part], value, ()))
        reads = (part,) if total is None else (part, total)
        total = op(f"add{step}", (2, 3), reads, 256, output=last)
        made[total] = len(ops) - 1
        edges += [Edge(made[buffer], made[total], buffer, (2, 3) if buffer != part else (2,)) for buffer in reads]
    schemes = (
        Scheme("alone", 1),
        Scheme("flat", 16384, parallel=16384),
        Scheme("columns", 64, 256, parallel=64),
        Scheme("few", 64, parallel=64),
    )
    return Instance("recurrent", (DEVICE,), schemes, tuple(buffers), tuple(ops), tuple(edges), limits=Limits(6))


def test_sums_of_many_steps_share_a_kernel() -> None:
    """Greedy adds up first, and has no room for the sums then; a kernel holds three steps' sums and additions."""
    instance = recurrent(STEPS)
    solution = assemble(instance, critical_path_partition(instance))
    assert not check(instance, solution)
    sums = [kernel for kernel in solution.kernels if any(instance.ops[op].name.startswith("sum") for op in kernel.ops)]
    assert [len(kernel.ops) for kernel in sums] == [6] * (STEPS // 3)
    assert solution.objective < greedy(instance).objective


def test_what_takes_longer_than_is_left_is_not_begun() -> None:
    """No step of a block outlasts its time by more than it takes to say so: what is known is the answer."""
    shape = cut_out(build(0, 12), range(len(build(0, 12).ops))).shape
    start = tuple((kernel.ops, kernel.scheme) for kernel in greedy(shape.problem).kernels)
    known = BlockResult(start, 1 << 40, 0)
    clock = WorkClock()
    late = Budget(SolveOptions(), clock, 1e-5)
    for strategy in STRATEGIES:
        if strategy.applies(Subject(shape, shape.problem), known):
            assert strategy.run(Subject(shape, shape.problem), known, late) == known
    assert clock.now() == 0
    listing = next(strategy for strategy in STRATEGIES if strategy.name == "listing")
    found = listing.run(Subject(shape, shape.problem), known, Budget(SolveOptions(), clock, 10.0))
    best = exhaustive(shape.problem).solution
    assert best is not None
    assert found.cost == found.bound == best.objective
