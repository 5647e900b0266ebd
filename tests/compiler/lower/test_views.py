"""Views: folded into the index maps of their readers, for every op of ATen that makes one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils import _pytree as pytree

from optfuse.compiler.ir.nodes import Load, View
from tests.compiler.lower.eager import check, lowered, nests

aten = torch.ops.aten

VIEWS: dict[str, Callable[[torch.Tensor], object]] = {
    "view": lambda x: x.view(6, 20),
    "view_merging": lambda x: x.view(-1),
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "permute": lambda x: x.permute(3, 0, 2, 1),
    "transpose": lambda x: x.transpose(1, -1),
    "expand": lambda x: x[:, :1].expand(2, 7, 4, 5),
    "expand_new_dimension": lambda x: x.expand(3, 2, 3, 4, 5),
    "slice": lambda x: x[:, 1:, 1:4:2, -3:],
    "select": lambda x: x[1, :, -1],
    "squeeze": lambda x: x[:1, :, :1].squeeze(0),
    "squeeze_all": lambda x: x[:1, :, :1].squeeze(),
    "unsqueeze": lambda x: x.unsqueeze(1).unsqueeze(-1),
    "diagonal": lambda x: x.diagonal(1, 1, 3),
    "unfold": lambda x: x.unfold(3, 3, 2),
    "as_strided": lambda x: x.as_strided((4, 3), (7, 2), 65),
    "as_strided_of_a_view": lambda x: x[1].as_strided((4, 3), (7, 2)),
    "alias": lambda x: aten.alias.default(x),
    "detach": lambda x: x.detach(),
    "split": lambda x: x.split(2, dim=2)[1],
    "split_sizes": lambda x: x.split([1, 4], dim=3),
    "chunk": lambda x: x.chunk(3, 1)[2],
    "unbind": lambda x: x.unbind(1),
    "movedim": lambda x: x.movedim(0, 2),
    "narrow": lambda x: x.narrow(2, 1, 2),
    "matrix_transpose": lambda x: x.mT,
    "chain": lambda x: x.permute(0, 2, 3, 1)[:, ::2].unsqueeze(0).expand(2, 2, 2, 5, 3)[1].transpose(0, 1),
}


def _inputs() -> dict[str, torch.Tensor]:
    return {
        "contiguous": torch.randn(2, 3, 4, 5),
        "offset": torch.randn(3, 3, 4, 5)[1:],
    }


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("layout", _inputs())
def test_a_view_is_no_op(name: str, layout: str) -> None:
    x = _inputs()[layout]
    assert check(lambda x: pytree.tree_leaves(VIEWS[name](x)), x).ops == ()
    graph = check(lambda x: [v * 2 for v in pytree.tree_leaves(VIEWS[name](x))], x)
    assert {op.origin.target for op in graph.ops} == {"aten.mul.Tensor"}
    check(lambda x: [v + 1 for v in pytree.tree_leaves(VIEWS[name](x.exp()))], x)


def test_as_strided_to_before_the_first_element_is_left_to_torch() -> None:
    graph, _ = lowered(lambda x: x.as_strided((3,), (1,), 0) + 1, torch.randn(4, 6)[2:])
    assert [op.origin.target for op in graph.ops] == ["aten.as_strided.default", "aten.add.Tensor"]


def test_an_output_that_is_a_view_of_an_input_is_a_window_of_its_buffer() -> None:
    x = torch.randn(4, 6)
    graph, _ = lowered(lambda x: (x.t()[1:3], x), x)
    name = graph.inputs[0]
    assert graph.outputs == (View(name, (2, 4), (1, 6), 1), View(name, (4, 6), (6, 1), 0))


@pytest.mark.parametrize(
    "x", [torch.randn(4, 6).t(), torch.randn(5, 8)[:, ::2], torch.randn(3, 1).expand(3, 4), torch.randn(0, 4).t()]
)
def test_a_reshape_across_strides_is_one_copy(x: torch.Tensor) -> None:
    graph = check(lambda x: x.reshape(-1) + 1, x)
    assert len(nests(graph)) <= 2
    check(lambda x: x.reshape(2, -1).sum(0), x)


def test_contiguous_copies_only_what_is_not() -> None:
    assert nests(check(lambda x: x.contiguous(), torch.randn(3, 4))) == []
    assert len(nests(check(lambda x: x.contiguous(), torch.randn(3, 4).t()))) == 1
    graph = check(lambda x: x.contiguous(memory_format=torch.channels_last), torch.randn(2, 3, 4, 5))
    assert graph.buffers[-1].stride == (60, 1, 15, 3)


def test_the_index_map_of_a_permuted_read() -> None:
    (nest,) = nests(
        check(lambda x: x.permute(1, 0)[:, 1:].clone(memory_format=torch.contiguous_format), torch.randn(3, 4))
    )
    assert nest.sizes == (4, 2)
    assert str(nest.stores[0].index) == "2*i0 + i1"
    assert isinstance(nest.stores[0].value, Load)
    assert str(nest.stores[0].value.index) == "i0 + 4*i1 + 4"


def test_a_library_call_sees_the_window() -> None:
    graph = check(lambda x: x[:, :3].t() @ x[:, 1:4], torch.randn(5, 6), library=["aten.mm.default"])
    (call,) = graph.ops
    assert call.args == (View(graph.inputs[0], (3, 5), (1, 6)), View(graph.inputs[0], (5, 3), (6, 1), 1))


def test_views_of_uniform_tensors_stay_uniform() -> None:
    graph = check(lambda x: x + torch.ones(4, 2).t()[1].view(2, 2).unsqueeze(0).expand(3, 2, 2), torch.randn(3, 2, 2))
    assert len(graph.ops) == 1


def test_bits_taken_for_another_dtype_are_a_library_call() -> None:
    check(lambda x: x.view(torch.int32) + 1, torch.randn(4), library=["aten.view.dtype"])
    check(
        lambda x: torch.view_as_real(x) * 2,
        torch.randn(3, dtype=torch.complex64),
        library=["aten.view_as_real.default"],
    )


def test_views_of_tensors_that_no_loop_computes() -> None:
    check(lambda x: x.t()[1:], torch.randn(3, 4, dtype=torch.complex64))
    library = ["aten.mul.Tensor"]
    check(lambda x: x.t()[1:] * x.t()[:-1], torch.randn(3, 4, dtype=torch.complex64), library=library)
