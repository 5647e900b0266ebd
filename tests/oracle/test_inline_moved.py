"""Kernels that pad, cut, roll or join what they compute on the way, against eager execution and float64."""

from __future__ import annotations

import pytest
import torch

from tests.compiler.extract.functions import model
from tests.compiler.simplify.test_inline_moved import CASES, tensors_of
from tests.oracle.judging import assert_all_pass, judge

MOVED = ["pad", "pad on both sides", "crop", "pad of a pad", "slice", "turned", "rolled", "channels last", "reduced"]


@pytest.mark.spread(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", MOVED)
def test_moved(case: str, dtype: torch.dtype) -> None:
    assert_all_pass(judge(model(CASES[case][0]), tuple(tensors_of(case, dtype))))
