"""The packing checker finds each kind of fault; the CSV reader names each."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from optfuse.errors import InvalidPackingError
from optfuse.problem.packing import Lifetime, check_packing
from optfuse.problem.packing_csv import format_packing, parse_packing

TWO = (Lifetime("a", 0, 3, 4), Lifetime("b", 2, 5, 4, alignment=4))


def test_valid_packings() -> None:
    assert check_packing(TWO, (0, 4), 8) == ()
    assert check_packing((TWO[0], Lifetime("b", 3, 5, 4)), (0, 0), 4) == ()


@pytest.mark.parametrize(
    ("offsets", "code"),
    [((0,), "placement"), ((0, 8), "arena"), ((-4, 4), "arena"), ((0, 0), "overlap"), ((0, 3), "alignment")],
)
def test_each_fault_is_named(offsets: tuple[int, ...], code: str) -> None:
    assert code in {violation.code for violation in check_packing(TWO, offsets, 8)}


def test_columns_in_any_order_with_spaces_and_more() -> None:
    table = parse_packing("size, id ,upper,lower,note,alignment\n 4 , a, 3, 0,x,\n8,b,9,3,,16\n\n")
    assert table.buffers == (Lifetime("a", 0, 3, 4), Lifetime("b", 3, 9, 8, 16))
    assert format_packing(table, (1, 16)) == (
        "size,id,upper,lower,note,alignment,offset\n4,a,3,0,x,,1\n8,b,9,3,,16,16\n"
    )


def test_an_offset_column_is_replaced() -> None:
    table = parse_packing("id,lower,upper,size,offset\na,0,3,4,77\n")
    assert format_packing(table, (5,)) == "id,lower,upper,size,offset\na,0,3,4,5\n"


def test_other_names_of_columns() -> None:
    assert parse_packing("buffer_id,start,end,size\na,0,2,4\n").buffers == (Lifetime("a", 0, 3, 4),)


BAD = {
    "": "empty",
    "id,lower,size\n": "no column 'upper'",
    "id,lower,upper,size,start\n": "two columns give 'lower'",
    "id,lower,upper,size,end\n": "both 'upper' (exclusive) and 'end' (inclusive)",
    "id,lower,upper,size\na,0,3\n": "line 2: 3 cells under 4 columns",
    "id,lower,upper,size\na,0,x,4\n": "line 2: upper must be a whole number, not 'x'",
    "id,lower,upper,size\na,3,3,4\n": "line 2: buffer 'a': upper 3 must be above lower 3",
    "id,lower,upper,size\na,0,3,-4\n": "line 2: buffer 'a': size -4 is negative",
    "id,lower,upper,size\na,0,3,4\na,0,3,4\n": "line 3: id 'a' was used in line 2",
    "id,lower,upper,size,alignment\na,0,3,4,0\n": "alignment 0 is below 1",
    "id,lower,upper,size,gaps\na,0,3,4,1-2\n": "gaps in lifetimes are not supported",
    'id,lower,upper,size\n"a,0,3,4\n': "not CSV",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_files_are_refused_with_the_place(text: str) -> None:
    with pytest.raises(InvalidPackingError) as caught:
        parse_packing(text, "x.csv")
    assert str(caught.value).startswith("x.csv")
    assert BAD[text] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_sweep_finds_an_overlap_exactly_when_comparing_all_pairs_does() -> None:
    rng = random.Random(0)
    wrong = 0
    for _ in range(300):
        buffers = [
            Lifetime(f"b{n}", lower, lower + rng.randint(1, 3), rng.choice([0, 1, 2, 5]))
            for n, lower in enumerate(rng.choices(range(6), k=5))
        ]
        offsets = rng.choices(range(8), k=5)
        apart = all(
            one.upper <= other.lower or other.upper <= one.lower or at + one.size <= to or to + other.size <= at
            for (one, at), (other, to) in combinations(zip(buffers, offsets, strict=True), 2)
            if one.size and other.size
        )
        assert (check_packing(buffers, offsets) == ()) == apart
        wrong += not apart
    assert 50 < wrong < 250
