"""Strides of reshaped windows are those that torch finds."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optfuse.compiler.lower.reshaped_windows import reshaped_strides
from tests.strategies import share

#: Shapes of 24 elements.
SHAPES = [(24,), (2, 12), (12, 2), (4, 6), (2, 3, 4), (4, 3, 2), (1, 24), (24, 1), (2, 1, 12), (6, 1, 1, 4), (2, 2, 6)]


@given(
    shape=st.sampled_from(SHAPES),
    wanted=st.sampled_from(SHAPES),
    order=st.randoms(use_true_random=False),
    gaps=st.lists(st.sampled_from([0, 0, 1]), min_size=4, max_size=4),
    expanded=st.lists(st.booleans(), min_size=4, max_size=4),
)
@settings(max_examples=share(800))
def test_strides_are_torchs(shape, wanted, order, gaps, expanded) -> None:
    sizes = list(shape)
    order.shuffle(sizes)
    base = torch.empty([n + gap for n, gap in zip(sizes, gaps, strict=False)])
    window = base[tuple(slice(0, n) for n in sizes)]
    axes = list(range(len(sizes)))
    order.shuffle(axes)
    window = window.permute(axes)
    if expanded[0]:
        window = window.as_strided(
            window.shape, [0 if e else s for e, s in zip(expanded, window.stride(), strict=False)]
        )
    found = reshaped_strides(window.shape, window.stride(), wanted)
    try:
        strides = window.view(wanted).stride()
    except RuntimeError:
        assert found is None
        return
    assert found is not None
    kept = [k for k, n in enumerate(wanted) if n > 1]
    assert [found[k] for k in kept] == [strides[k] for k in kept]


def test_windows_of_one_element_and_of_none_beside_them() -> None:
    assert reshaped_strides((), (), (1, 1)) == (1, 1)
    assert reshaped_strides((1, 1), (5, 7), ()) == ()
    assert reshaped_strides((2,), (1,), (3,)) is None
