"""Blocks: what can be decided apart, and what is the same."""

from __future__ import annotations

import time
from dataclasses import replace

from hypothesis import HealthCheck, given, settings

from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Edge, Instance
from optfuse.problem.op_masks import mask_of
from optfuse.solver.columns.atoms import find_atoms
from optfuse.solver.columns.candidates import enumerate_candidates
from optfuse.solver.reduce.blocks import cut_out, find_blocks
from optfuse.solver.reduce.union_find import Components
from tests.layered import build
from tests.solver.columns.test_candidates import legal_kernels
from tests.strategies import instances, share

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def kernels_of_blocks(instance: Instance) -> dict[int, int]:
    """Costs of the candidates of all blocks, in the ids of the whole."""
    found: dict[int, int] = {}
    for group in find_blocks(instance):
        block = cut_out(instance, group)
        atoms = find_atoms(block.shape.problem)
        pool = enumerate_candidates(block.shape.problem, atoms, 1_000_000, time.monotonic() + 60)
        for candidate in pool.candidates:
            ops = [block.ops[op] for op in atoms.ops_of(candidate.mask)]
            assert kernel_cost(instance, ops, block.schemes[candidate.scheme]) == candidate.cost
            found[mask_of(ops)] = candidate.cost
    return found


@settings(QUIET, max_examples=share(150))
@given(instances(min_ops=2, max_ops=8, variants=True, rules=True))
def test_blocks_hold_all_legal_kernels_at_their_price(instance: Instance) -> None:
    assert kernels_of_blocks(instance) == legal_kernels(instance)


def twice(instance: Instance) -> Instance:
    """An instance after itself: all of the second before none of the first."""
    count, shift = len(instance.ops), len(instance.buffers)

    def later(edge: Edge) -> Edge:
        return Edge(
            edge.src + count, edge.dst + count, None if edge.buffer is None else edge.buffer + shift, edge.schemes
        )

    def moved(access: object) -> object:
        return replace(access, buffer=access.buffer + shift)  # type: ignore[attr-defined, type-var]

    ops = tuple(
        replace(
            op,
            name=f"{op.name} again",
            offers=tuple(
                replace(o, reads=tuple(map(moved, o.reads)), writes=tuple(map(moved, o.writes))) for o in op.offers
            ),
        )
        for op in instance.ops
    )
    return replace(
        instance,
        buffers=(*instance.buffers, *(replace(b, name=f"{b.name} again") for b in instance.buffers)),
        ops=(*instance.ops, *ops),
        edges=(*instance.edges, *map(later, instance.edges)),
    )


def test_repeated_parts_have_equal_shapes() -> None:
    for seed in range(30):
        instance = build(seed, 12)
        if not instance.limits.connected:
            continue
        once = [cut_out(instance, group).shape for group in find_blocks(instance)]
        both = [cut_out(twice(instance), group).shape for group in find_blocks(twice(instance))]
        assert len(both) == 2 * len(once)
        assert set(both) == set(once)


def test_a_path_through_a_library_call_separates() -> None:
    instance = build(0, 3)
    first = instance.ops[0].offers[0]
    loop = replace(instance.ops[0], offers=(replace(first, scheme=1, reduces=False),), kind="loop")
    call = replace(loop, kind="library", offers=(replace(first, scheme=0, reduces=False),))
    ops = (replace(loop, name="a"), replace(call, name="b"), replace(loop, name="c"))
    edges = (Edge(0, 1, None, ()), Edge(1, 2, None, ()), Edge(0, 2, None, (1,)))
    apart = replace(instance, ops=ops, edges=edges)
    assert find_blocks(apart) == [(0,), (1,), (2,)]
    assert find_blocks(replace(apart, edges=edges[2:])) == [(0, 2), (1,)]


def test_components_are_named_by_their_first() -> None:
    components = Components(5)
    components.join((4, 2))
    components.join((2, 3))
    assert components.find(4) == 2
    assert components.groups() == [(0,), (1,), (2, 3, 4)]
