from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from optfuse.report.layers import place

Drawing = tuple[list[tuple[float, float]], list[tuple[int, int]]]


@st.composite
def drawings(draw: st.DrawFn) -> Drawing:
    count = draw(st.integers(0, 12))
    sizes = [(draw(st.floats(5, 200)), draw(st.floats(5, 200))) for _ in range(count)]
    pairs = st.sampled_from(list(combinations(range(count), 2))) if count > 1 else st.nothing()
    return sizes, draw(st.lists(pairs, unique=True, max_size=30)) if count > 1 else []


@given(drawings())
def test_boxes_stay_apart_and_arrows_lead_down(
    drawing: tuple[list[tuple[float, float]], list[tuple[int, int]]],
) -> None:
    sizes, arrows = drawing

    found = place(sizes, arrows, (10.0, 20.0))

    for (a, (width_a, height_a)), (b, (width_b, height_b)) in combinations(enumerate(sizes), 2):
        beside = abs(found.centers[a] - found.centers[b]) >= (width_a + width_b) / 2 + 10 - 1e-6
        over = min(found.tops[a] + height_a - found.tops[b], found.tops[b] + height_b - found.tops[a]) <= -20 + 1e-6
        assert beside or over
    for (source, target), bends in zip(arrows, found.bends, strict=True):
        heights = [found.tops[source] + sizes[source][1], *(y for _, y in bends), found.tops[target]]
        assert heights == sorted(heights)
    for (width, height), center, top in zip(sizes, found.centers, found.tops, strict=True):
        assert center - width / 2 >= -1e-6
        assert center + width / 2 <= found.width + 1e-6
        assert top + height <= found.height + 1e-6


def test_a_chain_is_a_straight_line() -> None:
    found = place([(50.0, 10.0), (100.0, 10.0), (20.0, 10.0)], [(0, 1), (1, 2)], (10.0, 20.0))

    assert found.centers == (50.0, 50.0, 50.0)
    assert found.tops == (0.0, 30.0, 60.0)


def test_an_arrow_that_passes_a_row_has_a_lane_beside_the_box_in_it() -> None:
    found = place([(50.0, 10.0)] * 3, [(0, 1), (1, 2), (0, 2)], (10.0, 20.0))

    ((x, _),) = found.bends[2]
    assert abs(x - found.centers[1]) >= 25
