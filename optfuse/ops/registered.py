"""``optfuse::attention``, with and without dropout, and its backward as torch operators. Importing registers them."""

from __future__ import annotations

from typing import Any

import torch
from torch.library import custom_op

from optfuse.ops import attention as functions

_FORWARD = (
    "(Tensor query, Tensor key, Tensor value, Tensor? mask, float dropout_p, bool is_causal, float scale, bool keep, "
    "int draw) -> (Tensor, Tensor, Tensor, Tensor)"
)
_BACKWARD = (
    "(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor out, Tensor lse, Tensor? seed, "
    "Tensor? offset, float dropout_p, bool is_causal, float scale, bool mask_grad) -> Tensor[]"
)

attention = custom_op("optfuse::attention", functions.attention, mutates_args=(), schema=_FORWARD)
#: The same function, for calls that draw random numbers: only these may not be repeated or joined.
attention_dropout = custom_op(
    "optfuse::attention_dropout",
    functions.attention,
    mutates_args=(),
    schema=_FORWARD,
    tags=(torch.Tag.nondeterministic_seeded,),
)
attention_backward = custom_op(
    "optfuse::attention_backward", functions.attention_backward, mutates_args=(), schema=_BACKWARD
)


def _rows(x: torch.Tensor, width: int) -> torch.Tensor:
    batch, heads, length, _ = x.shape
    return x.new_empty((batch, length, heads, width)).transpose(1, 2)


@attention.register_fake
@attention_dropout.register_fake
def _attention_fake(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Any:
    keep = rest[-2]
    batch, heads, length, _ = query.shape
    lse = query.new_empty((batch, heads, length + -length % 32 if keep else 0), dtype=functions.attention_dtype(query))
    seed, offset = (torch.empty((), dtype=torch.int64, device="cpu") for _ in range(2))
    return _rows(query, value.shape[-1]), lse, seed, offset


@attention_backward.register_fake
def _attention_backward_fake(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, *rest: Any
) -> Any:
    results = [_rows(x, x.shape[-1]) for x in (query, key, value)]
    return [*results, functions.attention_mask_memory(mask)] if rest[-1] else results


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    query, key, value, mask, ctx.dropout_p, ctx.is_causal, ctx.scale, _, _ = inputs
    ctx.save_for_backward(query, key, value, mask, *output)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: torch.Tensor | None, *_: Any) -> tuple[torch.Tensor | None, ...]:
    if grad is None:
        return (None,) * 9
    query, key, value, mask, out, lse, seed, offset = ctx.saved_tensors
    rng = (seed, offset) if ctx.dropout_p > 0 else (None, None)
    wanted = ctx.needs_input_grad[3]
    grads = attention_backward(
        grad, query, key, value, mask, out, lse, *rng, ctx.dropout_p, ctx.is_causal, ctx.scale, wanted
    )
    return (*grads[:3], grads[3] if wanted else None, None, None, None, None, None)


attention.register_autograd(_backward, setup_context=_setup_context)
attention_dropout.register_autograd(_backward, setup_context=_setup_context)


def _padded_rows(mask: torch.Tensor) -> torch.Tensor:
    return functions.attention_mask_memory(mask).copy_(mask)


#: A copy of a mask with rows at multiples of 16 elements, as GPU kernels want them. Generated kernels do it.
padded_rows = custom_op("optfuse::padded_rows", _padded_rows, mutates_args=(), schema="(Tensor mask) -> Tensor")
padded_rows.register_fake(functions.attention_mask_memory)
padded_rows.register_autograd(lambda _, grad: grad)
