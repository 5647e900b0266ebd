"""The checker accepts right answers and rejects each kind of wrong one, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings

from optfuse.problem.checker import check
from optfuse.problem.checker_case import Code
from optfuse.problem.instance import ALONE, Edge, Instance, Limits, Rules, Variant
from optfuse.problem.solution import Kernel, Placement, Solution
from optfuse.solver.memory.assemble import assemble
from tests.problem.cases import (
    ADD,
    FLAT,
    GELU,
    MATMUL,
    ROWS,
    SCALE,
    SHIFT,
    SUM,
    A,
    B,
    C,
    D,
    E,
    F,
    answer,
    claims,
    example,
    with_kernels,
)
from tests.strategies import instances, share

Corruption = Callable[[Instance, Solution], tuple[Instance, Solution]]


def codes(instance: Instance, solution: Solution) -> set[str]:
    return {violation.code for violation in check(instance, solution)}


def test_accepts_the_example() -> None:
    assert check(example(), answer(example())) == ()


@settings(max_examples=share(60), deadline=None, derandomize=True)
@given(instances(rules=True))
def test_accepts_every_op_on_its_own(instance: Instance) -> None:
    alone = assemble(instance, [((op,), instance.ops[op].offers[0].scheme) for op in range(len(instance.ops))])
    assert check(instance, alone) == ()


def kernels_of(*kernels: tuple[tuple[int, ...], int, tuple[int, ...]]) -> Corruption:
    """The same instance with these kernels (ops, scheme, writes)."""
    return lambda instance, solution: (instance, with_kernels(solution, *(Kernel(*kernel) for kernel in kernels)))


def field(**changes: object) -> Corruption:
    """Change fields of the solution."""
    return lambda instance, solution: (instance, replace(solution, **changes))  # type: ignore[arg-type]


def under(**changes: object) -> Corruption:
    """Change fields of the instance, and let the solution claim to answer it."""

    def corrupt(instance: Instance, solution: Solution) -> tuple[Instance, Solution]:
        changed = replace(instance, **changes)  # type: ignore[arg-type]
        return changed, claims(changed, solution)

    return corrupt


def moved(buffer: int, offset: int) -> Corruption:
    """Put one buffer elsewhere in the arena."""

    def corrupt(instance: Instance, solution: Solution) -> tuple[Instance, Solution]:
        places = tuple(Placement(buffer, offset) if p.buffer == buffer else p for p in solution.placements)
        return instance, replace(solution, placements=places)

    return corrupt


def second_device(instance: Instance, solution: Solution) -> tuple[Instance, Solution]:
    ops = list(instance.ops)
    ops[SHIFT] = replace(ops[SHIFT], device=1)
    devices = (*instance.devices, replace(instance.devices[0], name="second"))
    return under(devices=devices, ops=tuple(ops))(instance, solution)


def against_order_edge(instance: Instance, solution: Solution) -> tuple[Instance, Solution]:
    """An order edge between independent kernels, against the order in which they run."""
    edges = (*instance.edges, Edge(SCALE, MATMUL))
    flipped = with_kernels(solution, *(solution.kernels[i] for i in (1, 0, 2, 3)))
    return under(edges=edges)(instance, flipped)


FIRST = ((SCALE, SHIFT), FLAT, (A, B))
LIBRARY = ((MATMUL,), ALONE, (D,))
SECOND = ((ADD, GELU), FLAT, (C, E))
LAST = ((SUM,), ROWS, (F,))

CORRUPTIONS: list[tuple[str, Corruption]] = [
    ("another_instance", field(instance_digest="0" * 64)),
    ("dangling", kernels_of(FIRST, LIBRARY, SECOND, ((99,), ROWS, (F,)))),
    ("dangling", kernels_of(FIRST, LIBRARY, SECOND, ((-1,), ROWS, (F,)))),
    ("dangling", kernels_of(FIRST, LIBRARY, SECOND, ((SUM,), 9, (F,)))),
    ("dangling", kernels_of(FIRST, LIBRARY, SECOND, ((SUM,), ROWS, (99,)))),
    ("dangling", kernels_of(FIRST, LIBRARY, SECOND, ((SUM, SUM), ROWS, (F,)))),
    ("dangling", kernels_of(FIRST, LIBRARY, SECOND, LAST, ((), ROWS, ()))),
    ("dangling", field(placements=(Placement(99, 0),))),
    ("coverage", kernels_of(FIRST, LIBRARY, SECOND)),
    ("variant", under(variants=(Variant("v", ((SUM,), (GELU,))),))),
    ("recompute", kernels_of(FIRST, LIBRARY, SECOND, ((GELU, SUM), ROWS, (F,)))),
    ("scheme", kernels_of(FIRST, LIBRARY, SECOND, ((SUM,), FLAT, (F,)))),
    ("scheme", kernels_of(FIRST, ((MATMUL, ADD), ALONE, (C, D)), ((GELU,), FLAT, (E,)), LAST)),
    ("edge", under(edges=(*example().edges, Edge(ADD, GELU, None, (ROWS,))))),
    ("convexity", kernels_of(((SHIFT,), FLAT, (B,)), LIBRARY, ((SCALE, ADD, GELU), FLAT, (A, C, E)), LAST)),
    ("connectivity", kernels_of(FIRST, LIBRARY, ((ADD,), FLAT, (C,)), ((SHIFT, GELU), FLAT, (B, E)), LAST)),
    ("device", second_device),
    ("limit", under(limits=Limits(max_ops=1))),
    ("limit", under(limits=Limits(max_weight=1))),
    ("rule", under(rules=Rules(barrier=(GELU,)))),
    ("rule", under(rules=Rules(no_fuse=((GELU, ADD),)))),
    ("rule", under(rules=Rules(fuse=((GELU, SUM),)))),
    ("rule", under(rules=Rules(single_kernel=((ADD, GELU, SUM),)))),
    ("order", kernels_of(LIBRARY, FIRST, SECOND, LAST)),
    ("order", against_order_edge),
    ("writes", kernels_of(((SCALE, SHIFT), FLAT, (B,)), LIBRARY, SECOND, LAST)),
    ("writes", kernels_of(FIRST, LIBRARY, ((ADD, GELU), FLAT, (E,)), LAST)),
    ("writes", kernels_of(FIRST, LIBRARY, SECOND, ((SUM,), ROWS, (A, F)))),
    ("writes", kernels_of(FIRST, LIBRARY, SECOND, ((SUM,), ROWS, (F, F)))),
    ("objective", field(objective=answer(example()).objective + 1)),
    ("peak", field(peak_bytes=answer(example()).peak_bytes - 1)),
    ("peak_cap", under(rules=Rules(peak_memory=answer(example()).peak_bytes - 1))),
    ("placement", field(placements=answer(example()).placements[1:])),
    ("placement", field(placements=(*answer(example()).placements, Placement(C, 0)))),
    ("placement", field(placements=(*answer(example()).placements, answer(example()).placements[0]))),
    ("alignment", moved(A, 1)),
    ("overlap", moved(B, answer(example()).placements[0].offset)),
    ("arena", field(arena_bytes=answer(example()).arena_bytes - 1)),
    ("arena", moved(A, -64)),
    ("arena", field(arena_bytes=1 << 40)),
    ("launch", field(launches=((0, 2),))),
    ("launch", field(launches=((0, 1),))),
    ("saving", field(saved_ps=1)),
]


@pytest.mark.parametrize(("code", "corrupt"), CORRUPTIONS, ids=lambda value: value if isinstance(value, str) else "")
def test_rejects_each_corruption_by_name(code: str, corrupt: Corruption) -> None:
    assert code in codes(*corrupt(example(), answer(example())))


def test_every_code_has_a_corruption() -> None:
    assert {code for code, _ in CORRUPTIONS} == set(get_args(Code))


def test_messages_name_the_ops() -> None:
    instance, wrong = kernels_of(FIRST, LIBRARY, SECOND)(example(), answer(example()))
    assert any("sum" in violation.message for violation in check(instance, wrong))


def recomputable() -> Instance:
    """The example with ``scale`` allowed to run twice."""
    ops = list(example().ops)
    ops[SCALE] = replace(ops[SCALE], recompute=True)
    return replace(example(), ops=tuple(ops))


def test_accepts_recompute_where_allowed() -> None:
    instance = recomputable()
    kernels = [
        Kernel((SCALE, SHIFT), FLAT, (B,)),
        Kernel((MATMUL,), ALONE, (D,)),
        Kernel((SCALE, ADD, GELU), FLAT, (C, E)),
        Kernel((SUM,), ROWS, (F,)),
    ]
    wrong = with_kernels(answer(instance), *kernels)
    # Objective, peak and placements still speak of the old kernels; nothing else may be wrong.
    assert codes(instance, wrong) <= {"objective", "peak", "placement", "overlap", "arena"}


def test_recompute_still_needs_its_inputs_written() -> None:
    instance = recomputable()
    kernels = [
        Kernel((SCALE, SHIFT), FLAT, (B,)),
        Kernel((MATMUL,), ALONE, (D,)),
        Kernel((ADD, GELU), FLAT, (C, E)),
        Kernel((SCALE, SUM), ROWS, (A, F)),
    ]
    assert "writes" in codes(instance, with_kernels(answer(instance), *kernels))


def test_a_kernel_that_only_repeats_others_is_refused() -> None:
    """Its copy of ``scale`` writes what no other kernel takes: it would do nothing but shift when others run."""
    problem = replace(
        example(), ops=tuple(replace(op, recompute=op.name == "scale") for op in example().ops), limits=Limits()
    )
    solution = answer(problem)
    scheme = next(offer.scheme for offer in problem.ops[SCALE].offers)
    idle = Kernel((SCALE,), scheme, ())
    found = check(problem, replace(solution, kernels=(idle, *solution.kernels)))
    assert [v.code for v in found if v.code == "recompute"] == ["recompute"]
    assert any("for no use" in v.message for v in found)
