"""Library calls: arguments, outputs, randomness."""

from __future__ import annotations

import torch

from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, TorchValue, View
from tests.compiler.lower.eager import check, lowered

aten = torch.ops.aten


def only_call(graph: LoopGraph) -> LibraryCall:
    """The one library call of a graph."""
    (call,) = [op for op in graph.ops if isinstance(op, LibraryCall)]
    return call


def test_every_kind_of_argument() -> None:
    call = only_call(
        lowered(lambda x: torch.nn.functional.interpolate(x, size=(3, 2), mode="bicubic"), torch.ones(1, 1, 4, 4))[0]
    )
    assert call.args[1:] == ((3, 2), False)
    call = only_call(lowered(lambda x: torch.randperm(5, dtype=torch.int32, device="cpu"), torch.ones(1))[0])
    assert call.args == (5,)
    assert dict(call.kwargs)["dtype"] == TorchValue("dtype", "int32")
    assert dict(call.kwargs)["device"] == TorchValue("device", "cpu")
    call = only_call(lowered(lambda x: torch.linalg.vector_norm(x.mode()[0], float("inf")), torch.randn(3, 16))[0])
    assert call.kwargs == ()


def test_several_outputs_are_several_buffers() -> None:
    x = torch.randn(4, 3)
    graph = check(lambda x: [v * 2 for v in torch.linalg.qr(x)], x, library=["aten.linalg_qr.default"])
    call = only_call(graph)
    assert call.outputs == ("linalg_qr_0", "linalg_qr_1")
    graph = check(lambda x: x.mode()[1] + 1, x, library=["aten.mode.default"])
    assert only_call(graph).outputs == ("mode_0", "mode_1")


def test_lists_of_tensors() -> None:
    x = torch.randn(3)
    graph = check(lambda x: aten._foreach_add.Scalar([x, x * 2], 1.0)[1] + 1, x, library=["aten._foreach_add.Scalar"])  # noqa: SLF001
    (tensors, scalar) = only_call(graph).args
    assert isinstance(tensors, tuple)
    assert [type(v) for v in tensors] == [View, View]
    assert scalar == 1.0


def test_uniform_arguments_are_put_in_memory_once() -> None:
    graph = check(lambda x: x @ torch.ones(3, 3) + torch.ones(3), torch.randn(2, 3), library=["aten.mm.default"])
    assert [op.origin.target for op in graph.ops] == ["aten.ones.default", "aten.mm.default", "aten.add.Tensor"]
    assert [op.name for op in graph.ops] == ["ones", "mm", "add"]

    def function(x: torch.Tensor) -> torch.Tensor:
        ones = torch.ones(3, 3)
        return x @ ones @ ones

    assert len(check(function, torch.randn(2, 3), library=["aten.mm.default"]).ops) == 3


def test_convolution_keeps_its_layout() -> None:
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    weight = torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last)
    convolve = torch.nn.functional.conv2d
    graph = check(
        lambda x, w: convolve(x, w).relu(), x, weight, library=["aten.convolution.default"], atol=1e-4, rtol=1e-4
    )
    assert graph.buffers[-1].stride == (144, 1, 24, 4)
    args = only_call(graph).args
    assert args[2:] == (None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)


def test_randomness_is_marked() -> None:
    assert only_call(lowered(lambda x: torch.bernoulli(x), torch.rand(3))[0]).random
    assert not only_call(lowered(lambda x: x @ x, torch.rand(3, 3))[0]).random
    q = torch.randn(1, 2, 4, 8)

    def attention(q: torch.Tensor, dropout: float) -> torch.Tensor:
        return aten.scaled_dot_product_attention.default(q, q, q, None, dropout)

    for dropout in (0.0, 0.5):
        fused = aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001
        graph, _ = lowered(lambda q, p=dropout, fused=fused: fused(q, q, q, p)[0], q)
        assert only_call(graph).random == (dropout > 0)
    check(lambda q: attention(q, 0.0) * 2, q, library=["aten._scaled_dot_product_flash_attention_for_cpu.default"])


def test_absent_outputs_are_none() -> None:
    def function(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        options = ([4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        return aten.convolution_backward.default(grad, x, w, *options, [False, True, False])[1] * 2

    x, w = torch.randn(1, 3, 6, 6), torch.randn(4, 3, 3, 3)
    grad = torch.randn(1, 4, 4, 4)
    graph = check(function, grad, x, w, library=["aten.convolution_backward.default"], atol=1e-4, rtol=1e-4)
    assert only_call(graph).outputs == (None, "convolution_backward_1", None)


def test_dtypes_without_loops_stay_with_torch() -> None:
    x = torch.randn(4, dtype=torch.complex64)
    library = ["aten.exp.default", "aten.abs.default"]
    check(lambda x: x.exp().abs() + 1, x, library=library)
    eight = torch.randn(4).to(torch.float8_e4m3fnuz)
    check(lambda x: x.to(torch.float32) + 1, eight, library=["aten._to_copy.default"])


def test_ops_without_rules_are_never_an_error() -> None:
    check(
        lambda x: (torch.linalg.det(x), torch.mode(x, 0)[0], torch.digamma(x)),
        torch.rand(3, 3) + 1,
        library=["aten._linalg_det.default", "aten.mode.default", "aten.digamma.default"],
    )
