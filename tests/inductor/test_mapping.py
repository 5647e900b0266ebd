"""Kernels by node names become sets of our ops, and whatever does not fit is counted."""

from __future__ import annotations

from optfuse.inductor.groups import Groups, Launch, LaunchKind, Part
from optfuse.inductor.mapping import map_groups, sets_to_price
from tests.inductor.models import small


def part(*whole: str, partly: tuple[str, ...] = (), calls: str = "") -> Part:
    return Part("buf", frozenset(whole), frozenset(partly), frozenset(whole), calls, False)


def launch(*parts: Part, kind: LaunchKind = "loops") -> Launch:
    return Launch("kernel", kind, parts)


def groups(*launches: Launch, kept: tuple[str, ...] = ()) -> Groups:
    return Groups(launches, frozenset(kept), "2.x", "a GPU")


NORM = ("var_mean", "add", "rsqrt", "sub", "mul", "mul_1", "add_1")


def test_ops_are_where_their_nodes_are() -> None:
    _, extraction = small()
    names = {op.name: number for number, op in enumerate(extraction.graph.ops)}
    matmul = launch(part("mm"), kind="library")
    mapped = map_groups(extraction.graph, groups(launch(part(*NORM)), matmul, launch(part("relu"))))
    assert mapped.kernels == (frozenset(names[name] for name in NORM), frozenset(), frozenset({names["relu"]}))
    assert mapped.unmapped == mapped.loops_there == mapped.library_there == mapped.two_stages == ()
    assert (mapped.strangers, mapped.repeated) == (0, frozenset())


def test_what_is_inlined_twice_is_in_both() -> None:
    _, extraction = small()
    names = {op.name: number for number, op in enumerate(extraction.graph.ops)}
    mapped = map_groups(extraction.graph, groups(launch(part(*NORM)), launch(part("add_1", "relu"))))
    assert mapped.repeated == {names["add_1"]}
    assert all(names["add_1"] in kernel for kernel in mapped.kernels)


def test_two_stages_of_one_reduction_are_joined() -> None:
    _, extraction = small()
    names = {op.name: number for number, op in enumerate(extraction.graph.ops)}
    mapped = map_groups(extraction.graph, groups(launch(part("var_mean")), launch(part(*NORM))))
    assert mapped.two_stages == (names["var_mean"],)
    assert sets_to_price(extraction.instance, mapped) == (frozenset(names[name] for name in NORM), frozenset())
    assert mapped.repeated == frozenset()


def test_everything_that_does_not_fit_is_counted() -> None:
    _, extraction = small()
    names = {op.name: number for number, op in enumerate(extraction.graph.ops)}
    given = groups(
        launch(part("mm")),  # a library call of ours
        launch(part("relu"), kind="library"),
        launch(part()),
        launch(part(*NORM[:5], partly=("mul_1",))),
        kept=("mul_1", "relu"),
    )
    mapped = map_groups(extraction.graph, given)
    assert mapped.loops_there == (names["mm"],)
    assert mapped.library_there == (names["relu"],)
    assert mapped.strangers == 2  # the matmul's kernel holds no loop op of ours either
    assert names["mul_1"] in mapped.kernels[3]  # a step of it is all there is
    assert mapped.unmapped == ((names["add_1"], "removed"),)


def test_what_inductor_does_without_is_priced_with_its_only_user() -> None:
    _, extraction = small()
    names = {op.name: number for number, op in enumerate(extraction.graph.ops)}
    mapped = map_groups(extraction.graph, groups(launch(part(*(name for name in NORM if name != "rsqrt")))))
    assert names["rsqrt"] not in mapped.kernels[0]
    assert (names["rsqrt"], "removed") in mapped.unmapped
    (priced,) = sets_to_price(extraction.instance, mapped)
    assert priced == {names[name] for name in NORM}  # but not the last op, whose user is a library call
