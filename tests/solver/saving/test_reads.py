"""What reading forward values costs at least, against every kernel."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from optfuse.solver.saving.choice import ForwardValue
from optfuse.solver.saving.reads import least_reads


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[ForwardValue], list[int], list[int], list[int]]:
    """Up to six values, with times of reading, numbers of elements, and those that a backward graph uses."""
    values: list[ForwardValue] = []
    for k in range(draw(st.integers(1, 6))):
        inputs = tuple(sorted(draw(st.sets(st.integers(0, k - 1), max_size=3)))) if k else ()
        if k and draw(st.integers(0, 4)) == 0:
            values.append(ForwardValue(f"v{k}", inputs[:1], None, view=True))
            continue
        again, library = draw(st.sampled_from([(None, False), (3, True), (0, False), (0, False)]))
        values.append(ForwardValue(f"v{k}", inputs, 8, again_ps=again, library=library))
    times = [draw(st.integers(0, 9)) for _ in values]
    elements = [draw(st.sampled_from([4, 4, 4, 2])) for _ in values]
    for k, value in enumerate(values):
        if value.view and value.inputs:
            elements[k] = elements[value.inputs[0]]
    return values, times, elements, sorted(draw(st.sets(st.integers(0, len(values) - 1), min_size=1)))


def subsets(items: list[int]) -> Iterator[frozenset[int]]:
    return (frozenset(some) for count in range(len(items) + 1) for some in combinations(items, count))


def cheapest_kernel(values: list[ForwardValue], times: list[int], used: frozenset[int]) -> int:
    """The least time of the reads of a kernel that has ``used``, whatever lies in memory."""
    able = [k for k, v in enumerate(values) if v.again_ps is not None and not v.library and not v.view]
    costs = []
    for computed in subsets(able):
        ahead, seen, read = list(used), set[int](), set[int]()
        while ahead:
            k = ahead.pop()
            if k in seen:
                continue
            seen.add(k)
            if k in computed or values[k].view:
                ahead += values[k].inputs
            else:
                read.add(k)
        costs.append(sum(times[k] for k in read))
    return min(costs)


@given(problems())
def test_no_kernel_of_any_choice_reads_less(
    problem: tuple[list[ForwardValue], list[int], list[int], list[int]],
) -> None:
    values, times, elements, wanted = problem
    charges = least_reads(values, wanted, times, elements)
    assert set(charges) == set(wanted)
    for used in subsets(wanted):
        assert sum(charges[k] for k in used) <= cheapest_kernel(values, times, used)


def test_a_mask_and_the_result_it_follows_from_are_read_for_the_result() -> None:
    """A convolution's result, a value that is computed from it, and a mask of that."""
    values = [
        ForwardValue("convolution", (), 16, again_ps=90, library=True),
        ForwardValue("normalized", (0,), 16),
        ForwardValue("mask", (1,), 8),
    ]
    times = [16, 16, 8]
    assert least_reads(values, [2], times, [8, 8, 8]) == {2: 8}
    assert sum(least_reads(values, [0, 1, 2], times, [8, 8, 8]).values()) == 16
    assert least_reads(values, [2], times, [8, 8, 4]) == {2: 0}  # a mask of a part


def test_what_follows_from_the_step_s_inputs_alone_is_read_for_nothing() -> None:
    values = [ForwardValue("doubled", (), 16)]
    assert least_reads(values, [0], [16], [8]) == {0: 0}
