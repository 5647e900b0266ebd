"""Every way to break an instance is refused with a line that names the thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings

from optfuse.errors import InvalidInstanceError
from optfuse.problem.instance import ALONE, Edge, Instance, Limits, Offer, Read, Rules, Variant, Work, Write
from optfuse.problem.validate import validate
from tests.problem.cases import ADD, FLAT, GELU, MATMUL, ROWS, SCALE, SHIFT, SUM, A, B, W, X, example
from tests.strategies import instances, share

Break = Callable[[Instance], Instance]


def test_the_example_is_valid() -> None:
    validate(example())


@settings(max_examples=share(60), deadline=None, derandomize=True)
@given(instances(variants=True, rules=True))
def test_generated_instances_are_valid(instance: Instance) -> None:
    validate(instance)


def edit(family: str, position: int, **changes: object) -> Break:
    """Change one op, buffer, edge, scheme or device."""

    def apply(instance: Instance) -> Instance:
        items = list(getattr(instance, family))
        items[position] = replace(items[position], **changes)
        return replace(instance, **{family: tuple(items)})

    return apply


def top(**changes: object) -> Break:
    """Change fields of the instance itself."""
    return lambda instance: replace(instance, **changes)  # type: ignore[arg-type]


def more_edges(*edges: Edge) -> Break:
    return lambda instance: replace(instance, edges=(*instance.edges, *edges))


OFFER = example().ops[SCALE].offers[0]

BROKEN: list[tuple[str, Break]] = [
    ("version 7 is not known", top(version=7)),
    ("two ops are named 'scale'", edit("ops", SHIFT, name="scale")),
    ("two buffers are named 'x'", edit("buffers", A, name="x")),
    ("two schemes are named 'rows'", edit("schemes", FLAT, name="rows")),
    ("there is no device", top(devices=())),
    ("there is no scheme", top(schemes=())),
    ("device 'tiny': launch_ps is negative: -1", edit("devices", 0, launch_ps=-1)),
    ("device 'tiny': launch_ps is above 2**53", edit("devices", 0, launch_ps=2**53 + 1)),
    ("buffer 'a': bytes is above 2**53", edit("buffers", A, bytes=10**400)),
    ("limits: max_weight is above 2**53", top(limits=Limits(max_weight=1 << 60))),
    ("rules: peak_memory is above 2**53", top(rules=Rules(peak_memory=1 << 60))),
    ("scheme 'rows': r is negative: -3", edit("schemes", ROWS, r=-3)),
    ("buffer 'a': bytes is negative: -1", edit("buffers", A, bytes=-1)),
    ("op 'scale': work: fp32 is negative", edit("ops", SCALE, work=Work(fp32=-1))),
    ("op 'scale': weight is negative", edit("ops", SCALE, weight=-1)),
    (
        "access to buffer 0: bytes is negative",
        edit("ops", SCALE, offers=(Offer(FLAT, (Read(X, -1),), (Write(A, 1),)),)),
    ),
    ("access to buffer 2: place is negative", edit("ops", SCALE, offers=(Offer(FLAT, (), (Write(A, 1, place=-1),)),))),
    ("max_ops must be at least 1", top(limits=Limits(max_ops=0))),
    ("max_weight is negative", top(limits=Limits(max_weight=-1))),
    ("peak_memory is negative", top(rules=Rules(peak_memory=-1))),
    ("op 'scale': device 1 does not exist", edit("ops", SCALE, device=1)),
    ("op 'scale': scheme 9 does not exist", edit("ops", SCALE, offers=(replace(OFFER, scheme=9),))),
    ("op 'scale': buffer 99 does not exist", edit("ops", SCALE, offers=(replace(OFFER, reads=(Read(99, 1),)),))),
    ("edge 0: op 99 does not exist", edit("edges", 0, dst=99)),
    ("edge 0: op -1 does not exist", edit("edges", 0, src=-1)),
    ("edge 0: buffer 99 does not exist", edit("edges", 0, buffer=99)),
    ("edge 0: scheme 9 does not exist", edit("edges", 0, schemes=(9,))),
    ("buffer 'a': alias 99 does not exist", edit("buffers", A, alias=99)),
    ("variant 'v': op 99 does not exist", top(variants=(Variant("v", ((99,),)),))),
    ("rule barrier: op 99 does not exist", top(rules=Rules(barrier=(99,)))),
    ("rule no_fuse: op 99 does not exist", top(rules=Rules(no_fuse=((0, 99),)))),
    ("cycle: scale -> shift -> scale", more_edges(Edge(SHIFT, SCALE))),
    ("cycle: shift -> matmul -> add -> shift", more_edges(Edge(ADD, SHIFT))),
    ("cycle: sum -> sum", more_edges(Edge(SUM, SUM))),
    ("'sum' -> 'matmul' goes against program order", lambda i: replace(i, edges=(Edge(SUM, MATMUL),))),
    ("op 'sum' has no offers", edit("ops", SUM, offers=())),
    ("op 'scale' offers scheme 'rows' twice", edit("ops", SCALE, offers=(OFFER, OFFER))),
    ("op 'scale' writes one buffer twice", edit("ops", SCALE, offers=(replace(OFFER, writes=OFFER.writes * 2),))),
    ("allows scheme 0", edit("edges", 0, schemes=(ALONE,))),
    ("'gelu' -> 'sum' allows scheme 'flat'", edit("edges", 5, schemes=(FLAT,))),
    ("carries a buffer that op 'scale' does not write", edit("edges", 0, buffer=B)),
    (
        "buffer 'spare' is neither produced",
        lambda i: replace(i, buffers=(*i.buffers, replace(i.buffers[A], name="spare"))),
    ),
    ("buffer 'a' is donated but not an input", edit("buffers", A, donated=True)),
    ("buffer 'a': alias must name an input", edit("buffers", A, alias=B)),
    ("buffer 'a': alias must name an input", edit("buffers", A, alias=A)),
    ("op 'sum' reads buffer 'e', but no edge brings it", lambda i: replace(i, edges=i.edges[:-1])),
    ("variant 'v' has no alternatives", top(variants=(Variant("v", ()),))),
    ("names an op twice in one alternative", top(variants=(Variant("v", ((SUM, SUM),)),))),
    ("is in two variants: 'v' and 'w'", top(variants=(Variant("v", ((SUM,),)), Variant("w", ((SUM,),))))),
    ("does not write buffer 'f', which others need", top(variants=(Variant("v", ((SUM,), ())),))),
    ("does not write buffer 'e', which others need", top(variants=(Variant("v", ((GELU,), ())),))),
    ("pairs op 'sum' with itself", top(rules=Rules(fuse=((SUM, SUM),)))),
    ("fuse and no_fuse contradict", top(rules=Rules(fuse=((ADD, GELU),), no_fuse=((GELU, ADD),)))),
    ("fuse and barrier contradict", top(rules=Rules(fuse=((ADD, GELU),), barrier=(ADD,)))),
    ("single_kernel holds an empty set", top(rules=Rules(single_kernel=((),)))),
    ("single_kernel names op 'add' twice", top(rules=Rules(single_kernel=((ADD, GELU), (ADD,))))),
    ("single_kernel and barrier contradict", top(rules=Rules(single_kernel=((ADD, GELU),), barrier=(ADD,)))),
]


@pytest.mark.parametrize(("message", "corrupt"), BROKEN, ids=[message for message, _ in BROKEN])
def test_refuses(message: str, corrupt: Break) -> None:
    with pytest.raises(InvalidInstanceError) as caught:
        validate(corrupt(example()))
    text = str(caught.value)
    assert message in text
    assert text.startswith("instance 'example': ")
    assert "\n" not in text


def test_alternatives_that_owe_the_same_are_valid() -> None:
    """An in-place update of a donated input, by either of two ops."""
    plain = example()
    update = Offer(ALONE, (Read(W, 8),), (Write(W, 8),))
    ops = (*plain.ops, replace(plain.ops[MATMUL], name="one", offers=(update,)))
    ops = (*ops, replace(plain.ops[MATMUL], name="two", offers=(update,)))
    edges = (*plain.edges, Edge(SCALE, 6), Edge(SCALE, 7))
    validate(replace(plain, ops=ops, edges=edges, variants=(Variant("v", ((6,), (7,))),)))
    broken = replace(plain, ops=ops, edges=edges, variants=(Variant("v", ((6,), ())),))
    with pytest.raises(InvalidInstanceError, match="does not write buffer 'w'"):
        validate(broken)


def test_an_output_is_written_in_every_offer_of_its_op() -> None:
    offers = example().ops[ADD].offers
    broken = edit("ops", ADD, offers=(*offers[:-1], replace(offers[-1], writes=())))(example())
    broken = replace(broken, edges=tuple(edge for edge in broken.edges if edge.src != ADD))
    broken = edit("ops", GELU, offers=tuple(replace(o, reads=()) for o in broken.ops[GELU].offers))(broken)
    with pytest.raises(InvalidInstanceError, match="op 'add' writes buffer 'c' in some of its offers only"):
        validate(broken)


def test_a_value_comes_from_an_op_that_runs_when_its_user_does() -> None:
    """The user is an alternative to the op that makes what it takes."""
    instance = example()
    buffers = tuple(replace(buffer, output=False) for buffer in instance.buffers)
    rivals = replace(instance, buffers=buffers, variants=(Variant("v", ((GELU,), (SUM,))),))
    with pytest.raises(InvalidInstanceError, match="op 'sum' takes buffer 'e' from ops that need not run when it does"):
        validate(rivals)
