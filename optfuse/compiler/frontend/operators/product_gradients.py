"""Gradients of cumulative products as scans: torch's own, where it is traced, is unrolled by the number of factors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from optfuse.compiler.frontend.graph.rewrite import copied

_CALLS = (
    ("call_function", torch.cumprod),
    ("call_method", "cumprod"),
    ("call_function", torch.ops.aten.cumprod.default),
)


def scan_product_gradients(graph: GraphModule) -> GraphModule:
    """The graph with cumulative products whose gradients are scans.

    Before: ``cumprod(x, 0)``. After: the same with a gradient of our own. Works on graphs before autograd, of torch
    functions or of ATen operators.
    """
    if not any((node.op, node.target) in _CALLS for node in graph.graph.nodes):
        return graph
    graph = copied(graph)
    for node in graph.graph.nodes:
        if (node.op, node.target) in _CALLS:
            node.op, node.target = "call_function", _cumulative_product
    graph.recompile()
    return graph


def _cumulative_product(input: Tensor, dim: Any, *, dtype: torch.dtype | None = None, **more: Any) -> Tensor:
    """``torch.cumprod``."""
    wanted = input.dtype if dtype is None else dtype
    if more or not isinstance(dim, int) or input.dim() == 0 or not wanted.is_floating_point:
        return torch.cumprod(input, dim, dtype=dtype, **more)
    if not (torch.is_grad_enabled() and input.requires_grad):
        return torch.cumprod(input, dim, dtype=dtype)
    return _CumulativeProduct.apply(input.to(wanted), dim)


class _CumulativeProduct(torch.autograd.Function):
    """``torch.cumprod`` with ``product_gradient``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The products."""
        products = torch.cumprod(x, dim)
        ctx.save_for_backward(x, products)
        ctx.dim = dim
        return products

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The gradient of ``x``."""
        x, products = ctx.saved_tensors
        return product_gradient(x, products, gradient, ctx.dim), None


def product_gradient(x: Tensor, products: Tensor, gradient: Tensor, dim: int) -> Tensor:
    """The gradient of ``x``, given the cumulative products of its elements along ``dim`` and their gradient.

    Before the first zero, the products that an element is part of are divided by it. The first zero gets the products
    without it, those behind it none: all of their products are zero.
    """
    zero = x == 0
    zeros = zero.cumsum(dim)
    first = zero & (zeros == 1)
    before = (products * gradient).flip(dim).cumsum(dim).flip(dim) / x
    without = torch.where(first, 1, x).cumprod(dim) * gradient
    at_first = torch.where(zeros > 0, without, 0).sum(dim, keepdim=True)
    return torch.where(zeros == 0, before, torch.where(first, at_first, 0))
