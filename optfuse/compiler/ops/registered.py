"""Register our operators with torch, with fake results and gradients. Importing this module registers them."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.library import custom_op

from optfuse.compiler.ops import attention as functions
from optfuse.compiler.ops import attention_cached as cached
from optfuse.compiler.ops import (
    attention_memory,
    convolution,
    depthwise,
    groups,
    joint_products,
    matmul,
    seeded,
    space_to_depth,
)
from optfuse.compiler.ops import convolution_weights as weight_gradients
from optfuse.compiler.ops import max_pool as max_pooling
from optfuse.compiler.ops import sum_rows as row_sums

_FORWARD = (
    "(Tensor query, Tensor key, Tensor value, Tensor? mask, bool is_causal, float scale, bool keep) -> (Tensor, Tensor)"
)
_DROPOUT = (
    "(Tensor query, Tensor key, Tensor value, Tensor? mask, float dropout_p, bool is_causal, float scale, bool keep, "
    "int draw) -> (Tensor, Tensor, Tensor, Tensor)"
)
_BACKWARD = (
    "(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor out, Tensor lse, Tensor? seed, "
    "Tensor? offset, float dropout_p, bool is_causal, float scale, bool mask_grad) -> Tensor[]"
)


def _operator(name: str, function: Any, schema: str, *, random: bool = False) -> Any:
    """Register ``optfuse::name``. ``random``: it draws random numbers, so calls are never repeated or merged."""
    tags = (torch.Tag.nondeterministic_seeded,) if random else None
    return custom_op(f"optfuse::{name}", function, mutates_args=(), schema=schema, tags=tags)


attention = _operator("attention", functions.attention, _FORWARD)
attention_dropout = _operator("attention_dropout", functions.attention_dropout, _DROPOUT, random=True)
attention_backward = _operator("attention_backward", functions.attention_backward, _BACKWARD)


attention_cached = _operator(
    "attention_cached",
    cached.attention_cached,
    "(Tensor query, Tensor key, Tensor value, Tensor? mask, bool is_causal, float scale) -> Tensor",
)


def _rows(x: torch.Tensor, width: int) -> torch.Tensor:
    batch, heads, length, _ = x.shape
    return x.new_empty((batch, length, heads, width)).transpose(1, 2)


@attention.register_fake
def _attention_fake(
    query: torch.Tensor, _: torch.Tensor, value: torch.Tensor, mask: Any, is_causal: bool, scale: float, keep: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    del mask, is_causal, scale
    batch, heads, length, __ = query.shape
    lse = query.new_empty(
        (batch, heads, length + -length % 32 if keep else 0), dtype=attention_memory.attention_dtype(query)
    )
    return _rows(query, value.shape[-1]), lse


@attention_dropout.register_fake
def _attention_dropout_fake(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, _: float, *rest: Any
) -> Any:
    seeds = (torch.empty((), dtype=torch.int64, device="cpu") for _ in range(2))
    return *_attention_fake(query, key, value, mask, *rest[:-1]), *seeds


@attention_cached.register_fake
def _attention_cached_fake(query: torch.Tensor, _: torch.Tensor, value: torch.Tensor, *__: Any) -> torch.Tensor:
    return _rows(query, value.shape[-1])


@attention_backward.register_fake
def _attention_backward_fake(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, *rest: Any
) -> Any:
    results = [_rows(x, x.shape[-1]) for x in (query, key, value)]
    return [*results, attention_memory.attention_mask_memory(mask)] if rest[-1] else results


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    query, key, value, mask, ctx.is_causal, ctx.scale, _ = inputs
    ctx.save_for_backward(query, key, value, mask, *output)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: torch.Tensor | None, _: Any) -> tuple[torch.Tensor | None, ...]:
    if grad is None:
        return (None,) * 7
    wanted = ctx.needs_input_grad[3]
    grads = attention_backward(grad, *ctx.saved_tensors, None, None, 0.0, ctx.is_causal, ctx.scale, wanted)
    return (*grads[:3], grads[3] if wanted else None, None, None, None)


def _setup_dropout(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    query, key, value, mask, ctx.dropout_p, ctx.is_causal, ctx.scale, _, _ = inputs
    ctx.save_for_backward(query, key, value, mask, *output)
    ctx.set_materialize_grads(False)


def _dropout_backward(ctx: Any, grad: torch.Tensor | None, *_: Any) -> tuple[torch.Tensor | None, ...]:
    if grad is None:
        return (None,) * 9
    wanted = ctx.needs_input_grad[3]
    grads = attention_backward(grad, *ctx.saved_tensors, ctx.dropout_p, ctx.is_causal, ctx.scale, wanted)
    return (*grads[:3], grads[3] if wanted else None, None, None, None, None, None)


attention.register_autograd(_backward, setup_context=_setup_context)
attention_dropout.register_autograd(_dropout_backward, setup_context=_setup_dropout)


def _padded_rows(mask: torch.Tensor) -> torch.Tensor:
    return attention_memory.attention_mask_memory(mask).copy_(mask)


#: A copy of a mask with rows padded to multiples of 16 elements, as GPU kernels need them.
padded_rows = _operator("padded_rows", _padded_rows, "(Tensor mask) -> Tensor")
padded_rows.register_fake(attention_memory.attention_mask_memory)
padded_rows.register_autograd(lambda _, grad: grad)


max_pool = _operator(
    "max_pool",
    max_pooling.max_pool,
    "(Tensor x, int[] kernel, int[] stride, int[] padding, bool ceil_mode) -> (Tensor, Tensor)",
)
max_pool_backward = _operator(
    "max_pool_backward",
    max_pooling.max_pool_backward,
    "(Tensor grad, Tensor x, int[] kernel, int[] stride, int[] padding, bool ceil_mode, Tensor offsets) -> Tensor",
)


@max_pool.register_fake
def _max_pool_fake(x: torch.Tensor, kernel: Any, stride: Any, padding: Any, ceil_mode: bool) -> Any:
    out, positions = max_pooling.max_pool_positions(x, kernel, stride, padding, ceil_mode)
    return out, torch.empty_like(positions, dtype=torch.int8)


@max_pool_backward.register_fake
def _max_pool_backward_fake(
    grad: torch.Tensor, x: torch.Tensor, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, offsets: torch.Tensor
) -> Any:
    positions = torch.empty_like(offsets, dtype=torch.int64)
    return max_pooling.max_pool_gradient(grad, x, kernel, stride, padding, ceil_mode, positions)


convolution_relu = _operator(
    "convolution_relu",
    convolution.convolution_relu,
    "(Tensor x, Tensor weight, Tensor bias, Tensor? residual, int[] stride, int[] padding, int[] dilation) -> Tensor",
)
norm_weight = _operator(
    "norm_weight", convolution.norm_weight, "(Tensor kernel, Tensor? weight, Tensor variance, float eps) -> Tensor"
)
norm_shift = _operator(
    "norm_shift",
    convolution.norm_shift,
    "(Tensor kernel, Tensor? weight, Tensor? bias, Tensor mean, Tensor variance, float eps, Tensor? inner, "
    "Tensor? beside) -> Tensor",
)


@convolution_relu.register_fake
def _convolution_relu_fake(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, _: Any, stride: Any, padding: Any, dilation: Any
) -> Any:
    return torch.ops.aten.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), 1)


@norm_weight.register_fake
def _norm_weight_fake(kernel: torch.Tensor, *_: Any) -> Any:
    return torch.empty_like(kernel)


@norm_shift.register_fake
def _norm_shift_fake(kernel: torch.Tensor, *_: Any) -> Any:
    return kernel.new_empty(kernel.shape[:1])


_WINDOW = "int[] window, int[] stride, int[] padding, int[] dilation"
depthwise_images = _operator(
    "depthwise_images",
    depthwise.depthwise_images,
    f"(Tensor gradient, Tensor weight, SymInt[] size, {_WINDOW}) -> Tensor",
)
depthwise_images.register_fake(lambda gradient, _, size, *__: depthwise.depthwise_empty(gradient, size))
depthwise_weights = _operator(
    "depthwise_weights",
    depthwise.depthwise_weights,
    f"(Tensor gradient, Tensor images, {_WINDOW}, int parts) -> Tensor",
)
convolution_weights = _operator(
    "convolution_weights",
    weight_gradients.convolution_weights,
    f"(Tensor gradient, Tensor images, {_WINDOW}, int groups, int parts) -> Tensor",
)
depthwise_convolution = _operator(
    "depthwise", depthwise.depthwise, f"(Tensor images, Tensor weight, {_WINDOW}) -> Tensor"
)


@depthwise_convolution.register_fake
def _depthwise_fake(images: torch.Tensor, _: Any, *window: Any) -> Any:
    return depthwise.depthwise_empty(images, depthwise.depthwise_sizes(images, *window))


@depthwise_weights.register_fake
def _depthwise_weights_fake(_: Any, images: torch.Tensor, window: Any, *rest: Any) -> Any:
    return images.new_empty((rest[-1], prod(window), images.shape[1]), dtype=torch.float32)


@convolution_weights.register_fake
def _convolution_weights_fake(gradient: torch.Tensor, images: torch.Tensor, window: Any, *rest: Any) -> Any:
    shape = (rest[-1], prod(window), gradient.shape[1], images.shape[1] // rest[-2])
    return images.new_empty(shape, dtype=torch.float32)


addmm_activation = _operator(
    "addmm_activation", matmul.addmm_activation, "(Tensor bias, Tensor x, Tensor weight, bool gelu) -> Tensor"
)


@addmm_activation.register_fake
def _addmm_activation_fake(bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, _: bool) -> Any:
    return torch.ops.aten.addmm(bias, x, weight)


products = _operator(
    "joint_products", joint_products.joint_products, "(Tensor x, Tensor[] weights, Tensor[] biases) -> Tensor"
)
products.register_fake(lambda x, weights, _: x.new_empty((x.shape[0] * sum(w.shape[0] for w in weights),)))


grouped = _operator(
    "grouped_products", joint_products.grouped_products, "(Tensor x, Tensor weights, Tensor ends) -> Tensor"
)
grouped.register_fake(lambda x, weights, _: x.new_empty((x.shape[0], weights.shape[2])))


exact_bmm = _operator("exact_bmm", matmul.exact_bmm, "(Tensor a, Tensor b) -> Tensor")


@exact_bmm.register_fake
def _exact_bmm_fake(a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.ops.aten.bmm(a, b)


to_depth = _operator(
    "to_depth", space_to_depth.to_depth, "(Tensor x, int[] before, int[] blocks, int channels) -> Tensor"
)
from_depth = _operator("from_depth", space_to_depth.from_depth, "(Tensor x, int[] before, SymInt[] size) -> Tensor")


@to_depth.register_fake
def _to_depth_fake(x: torch.Tensor, _: Any, blocks: Any, channels: int) -> Any:
    return torch.empty_like(x.new_empty((x.shape[0], channels, *blocks)), memory_format=torch.channels_last)


@from_depth.register_fake
def _from_depth_fake(x: torch.Tensor, _: Any, size: Any) -> Any:
    return x.new_empty(size)


resize_groups = _operator("resize_groups", groups.resize_groups, "(Tensor x, int dim, int groups, int width) -> Tensor")


@resize_groups.register_fake
def _resize_groups_fake(x: torch.Tensor, dim: int, count: int, width: int) -> Any:
    made = x.new_empty((*x.shape[:dim], count * width, *x.shape[dim + 1 :]))
    return torch.empty_like(made, memory_format=groups.groups_format(x))


stack_groups = _operator("stack_groups", groups.stack_groups, "(Tensor x, int groups) -> Tensor")


@stack_groups.register_fake
def _stack_groups_fake(x: torch.Tensor, count: int) -> Any:
    batch, channels, high, wide = x.shape
    return x.new_empty((count, batch, high, wide, channels // count)).permute(0, 1, 4, 2, 3)


sum_rows = _operator("sum_rows", row_sums.sum_rows, "(Tensor rows, Tensor places, SymInt count) -> Tensor")
sum_rows.register_fake(lambda rows, _, count: rows.new_empty((count, rows.shape[1])))


step_seed = _operator("step_seed", seeded.step_seed, "(Tensor like) -> Tensor", random=True)
step_seed.register_fake(lambda like: like.new_empty((), dtype=torch.int64))
seeded_random = _operator(
    "seeded_random",
    seeded.seeded_random,
    "(Tensor seed, int draw, bool normal, SymInt[] size, SymInt[] stride, ScalarType dtype) -> Tensor",
)
seeded_random.register_fake(seeded.seeded_random_fake)
