"""Pixels as channels and back, as loops against the operators; and what the operators do."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import optfuse.compiler.ops.registered  # noqa: F401 - has the operators of ours
from tests.compiler.lower.eager import check

OURS = torch.ops.optfuse


@pytest.mark.parametrize("before", [[0, 0], [1, 0], [4, 2]])
@pytest.mark.parametrize("blocks", [[2, 3], [5, 6]])
def test_to_depth(before: list[int], blocks: list[int]) -> None:
    x = torch.randn(2, 3, 7, 6)
    check(lambda x: OURS.to_depth(x, before, blocks, 16), x)
    torch.library.opcheck(OURS.to_depth.default, (x, before, blocks, 12), test_utils=["test_faketensor", "test_schema"])


@pytest.mark.parametrize("before", [[0, 0], [1, 0]])
def test_from_depth_is_the_way_back(before: list[int]) -> None:
    x = torch.randn(2, 3, 7, 6)
    deep = OURS.to_depth(x, before, [4, 3], 16)
    assert torch.equal(OURS.from_depth(deep, before, list(x.shape)), x)
    check(lambda deep: OURS.from_depth(deep, before, list(x.shape)), deep)
    arguments = (deep, before, list(x.shape))
    torch.library.opcheck(OURS.from_depth.default, arguments, test_utils=["test_faketensor", "test_schema"])


@pytest.mark.parametrize(("kernel", "padding"), [(7, 3), (3, 1), (3, 0), (4, 1), (6, 2)])
def test_a_convolution_of_stride_two_is_one_of_stride_one(kernel: int, padding: int) -> None:
    x, weight = torch.randn(2, 3, 14, 13), torch.randn(5, 3, kernel, kernel)
    expected = F.conv2d(x, weight, stride=2, padding=padding)
    ahead, blocks = padding + padding % 2, (kernel + padding % 2 + 1) // 2
    around = [size + blocks - 1 for size in expected.shape[2:]]
    images = OURS.to_depth(x, [ahead] * 2, around, 16)
    kernels = OURS.to_depth(weight, [padding % 2] * 2, [blocks] * 2, 16)
    torch.testing.assert_close(F.conv2d(images, kernels), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("dim", "width"), [(1, 8), (1, 5), (1, 3), (0, 2), (0, 1)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_resize_groups(dim: int, width: int, layout: torch.memory_format) -> None:
    x = torch.randn(2, 10, 3, 4).to(memory_format=layout)
    check(lambda x: OURS.resize_groups(x, dim, 2, width), x)
    arguments = (x, dim, 2, width)
    torch.library.opcheck(OURS.resize_groups.default, arguments, test_utils=["test_faketensor", "test_schema"])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_stack_groups(layout: torch.memory_format) -> None:
    x = torch.randn(2, 6, 3, 4).to(memory_format=layout)
    stacked = OURS.stack_groups(x, 2)
    assert all(torch.equal(part, x[:, 3 * k : 3 * k + 3]) for k, part in enumerate(stacked))
    assert all(part.is_contiguous(memory_format=torch.channels_last) for part in stacked)
    check(lambda x: OURS.stack_groups(x, 2), x)
    torch.library.opcheck(OURS.stack_groups.default, (x, 2), test_utils=["test_faketensor", "test_schema"])


def test_resize_groups_is_the_way_back() -> None:
    x = torch.randn(2, 10, 3, 4)
    wide = OURS.resize_groups(x, 1, 2, 8)
    assert torch.equal(wide[:, 5:8], torch.zeros(2, 3, 3, 4))
    assert torch.equal(OURS.resize_groups(wide, 1, 2, 5), x)
    assert torch.equal(OURS.resize_groups(x[0, :, 0, 0], 0, 2, 8)[8:13], x[0, 5:, 0, 0])
