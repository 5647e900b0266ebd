"""Which operators fall apart into pointwise ops, views and single reductions, and which stay whole.

Torch's core ATen decompositions are the base. DECOMPOSED lists what we take apart beyond them (norms, softmax,
activations, losses and their backward). WHOLE lists what a library does better and so must never come apart. Torch's
decompositions compute half types in float32 inside, as Inductor's do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache, partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from optfuse.compiler.frontend.operators.convolutions import convolution, convolution_backward
from optfuse.compiler.frontend.operators.foreach import foreach_decompositions
from optfuse.compiler.frontend.operators.mask_writes import put_by_mask
from optfuse.compiler.frontend.operators.padding import replication_pad_backward
from optfuse.compiler.frontend.operators.pooling import (
    adaptive_average_pool,
    adaptive_average_pool_backward,
    average_pool,
    average_pool1d,
)
from optfuse.compiler.frontend.operators.scatters import scatter_reduce
from optfuse.compiler.frontend.operators.slices import (
    refuse_other_shape,
    select_backward,
    select_scatter,
    slice_backward,
    slice_scatter,
)
from optfuse.compiler.frontend.operators.tables import add_at_places, embedding_gradient
from optfuse.compiler.frontend.torch_internals.torch_bridge import TO_COPY, operator_name
from optfuse.compiler.frontend.torch_internals.torch_decompositions import (
    Decompositions,
    composite_operators,
    decomposition_of,
    for_exported,
    standard_decompositions,
)
from optfuse.compiler.frontend.torch_internals.torch_sizes import known_equal

aten = torch.ops.aten

_WHOLE = """
mm addmm bmm baddbmm addmv addbmm convolution convolution_backward embedding embedding_dense_backward embedding_bag
_embedding_bag index index_select index_fill index_put index_add index_copy gather scatter scatter_add scatter_reduce
slice_scatter select_scatter masked_scatter max_pool1d_with_indices max_pool2d_with_indices
max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool2d
avg_pool2d_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward
_adaptive_avg_pool3d _adaptive_avg_pool3d_backward adaptive_max_pool2d adaptive_max_pool2d_backward sort topk cumsum
cumprod cummax cummin logcumsumexp median kthvalue mode var var_mean mean sum prod amax amin argmax argmin any all
_to_copy clone arange full constant_pad_nd flip roll cat squeeze unsqueeze permute expand select slice clamp clamp_min
clamp_max sigmoid tanh erf rand rand_like randn randn_like randint _unsafe_index alias_copy
"""

_DECOMPOSED = """
native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward _fused_rms_norm
_fused_rms_norm_backward rms_norm native_batch_norm native_batch_norm_backward _native_batch_norm_legit
_native_batch_norm_legit_functional _native_batch_norm_legit_no_training _batch_norm_with_update
_batch_norm_with_update_functional _batch_norm_no_update batch_norm_backward cudnn_batch_norm
cudnn_batch_norm_backward miopen_batch_norm_backward _softmax _softmax_backward_data _log_softmax
_log_softmax_backward_data logsumexp gelu gelu_backward silu silu_backward mish mish_backward elu elu_backward glu
glu_backward hardtanh hardtanh_backward hardswish hardswish_backward hardsigmoid hardsigmoid_backward relu6
leaky_relu leaky_relu_backward threshold threshold_backward softplus softplus_backward sigmoid_backward
tanh_backward logit logit_backward log_sigmoid_forward log_sigmoid_backward nll_loss_forward nll_loss2d_forward
mse_loss mse_loss_backward l1_loss smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward
binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits soft_margin_loss kl_div
native_dropout native_dropout_backward addcmul addcdiv lerp rsub masked_fill frac logaddexp xlogy sinc zeros_like
ones_like full_like new_zeros new_ones new_full zeros ones zero fill fill_ zero_ linalg_vector_norm norm std
std_mean aminmax count_nonzero trace tril triu rot90 stack tile repeat narrow_copy t dot mv vdot addr eye linspace
logspace nan_to_num isin isposinf isneginf sgn heaviside special_entr logical_xor
"""

#: Operators (all overloads) that stay one node: libraries, gathers and scatters, and what lowering reads better whole.
WHOLE = frozenset(_WHOLE.split())

#: Operators (all overloads) that come apart although the core ATen opset keeps them.
DECOMPOSED = tuple(_DECOMPOSED.split())


def _split(self: Tensor, split_size: int, dim: int = 0) -> list[Tensor]:
    size = self.shape[dim]
    if size == 0:
        return [aten.slice.Tensor(self, dim, 0, 0)]
    # their number, not the size, is what a graph of changing sizes is for
    count = (size + split_size - 1) // split_size
    ends = [*(split_size * (k + 1) for k in range(count - 1)), size]
    return [aten.slice.Tensor(self, dim, split_size * k, end) for k, end in enumerate(ends)]


def _split_with_sizes(self: Tensor, split_sizes: list[int], dim: int = 0) -> list[Tensor]:
    starts = [sum(split_sizes[:k]) for k in range(len(split_sizes))]
    return [aten.slice.Tensor(self, dim, start, start + size) for start, size in zip(starts, split_sizes, strict=True)]


def _unbind(self: Tensor, dim: int = 0) -> list[Tensor]:
    return [aten.select.int(self, dim, k) for k in range(self.shape[dim])]


def _nll_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """The gradient is minus the weight at the target's class and zero elsewhere: a comparison, not a scatter.

    Classes are axis 1 (axis 0 of an unbatched input); ``reduction`` is 0 none, 1 mean, 2 sum, as in ATen.
    """
    axis = 0 if self.dim() < 2 else 1
    classes = self.shape[axis]
    shape = [1] * self.dim()
    shape[axis] = classes
    if reduction == 1:
        grad_output = grad_output / total_weight
    valid = target != ignore_index
    grad = torch.where(valid, -grad_output, 0).unsqueeze(axis)
    if weight is not None:
        grad = grad * weight.view(shape)
    positions = torch.arange(classes, device=self.device).view(shape)
    return torch.where(positions == target.unsqueeze(axis), grad, 0).to(self.dtype)


def _has_memory_around(x: Tensor) -> bool:
    """Whether a contiguous tensor is a window of a larger storage, which as_strided of its copy can reach."""
    return not known_equal(x.untyped_storage().nbytes(), x.numel() * x.element_size())


def _copy(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """A row-major copy; one into another layout or a window keeps that layout, gaps and the memory around included."""
    if not self.is_contiguous() or _has_memory_around(self):
        return NotImplemented
    moved = TO_COPY(src, dtype=self.dtype, device=self.device)
    return aten.clone.default(aten.expand.default(moved, list(self.shape)), memory_format=torch.contiguous_format)


def _index_put(self: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """By choices for a mask, by sums for whole rows."""
    chosen = put_by_mask(self, indices, values, accumulate)
    return add_at_places(self, indices, values, accumulate) if chosen is NotImplemented else chosen


def _bernoulli_p(self: Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> Tensor:
    if generator is not None or not math.isfinite(p):
        return NotImplemented
    draws = aten.rand.default(list(self.shape), dtype=torch.float32, device=self.device, pin_memory=False)
    return TO_COPY(draws < p, dtype=self.dtype)


def _full_like(self: Tensor, fill_value: complex, *, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    """A value everywhere, in the order of dimensions in memory that eager execution gives the result."""
    dtype, device = dtype or self.dtype, kwargs.get("device") or self.device
    shape, wanted = list(self.shape), kwargs.get("memory_format") or torch.preserve_format
    if self.is_contiguous() and wanted in (torch.preserve_format, torch.contiguous_format):
        return aten.full.default(shape, fill_value, dtype=dtype, device=device, pin_memory=False)
    like = torch.empty_like(torch.empty_strided(shape, self.stride(), device="meta"), memory_format=wanted)
    order = sorted(range(len(shape)), key=lambda d: -like.stride(d))
    filled = aten.full.default([shape[d] for d in order], fill_value, dtype=dtype, device=device, pin_memory=False)
    return aten.permute.default(filled, [order.index(d) for d in range(len(shape))])


def _ones_like(self: Tensor, **kwargs: Any) -> Tensor:
    return _full_like(self, 1, **kwargs)


def _zeros_like(self: Tensor, **kwargs: Any) -> Tensor:
    return _full_like(self, 0, **kwargs)


def _diagonal_scatter(self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A choice between ``src`` and ``self`` at each element, by whether it lies on the diagonal."""
    refuse_other_shape(aten.diagonal.default, self, src, offset, dim1, dim2)
    if src.numel() == 0:
        return aten.clone.default(self)
    rows, columns = dim1 % self.dim(), dim2 % self.dim()
    before = max(0, -offset)
    spread = aten.constant_pad_nd.default(src, [before, self.shape[rows] - before - src.shape[-1]], 0)
    spread = spread.movedim(-1, rows - (columns < rows)).unsqueeze(columns)
    places = [_along(self, d) for d in (rows, columns)]
    chosen = torch.where(places[1] - places[0] == offset, TO_COPY(spread, dtype=self.dtype), self)
    return chosen if self.is_contiguous() else aten.copy.default(self, chosen)


def _along(x: Tensor, dim: int) -> Tensor:
    """The index of each element along one dimension, one long along the others."""
    return torch.arange(x.shape[dim], device=x.device).view([-1 if d == dim else 1 for d in range(x.dim())])


def _as_strided_scatter(
    self: Tensor, src: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> Tensor:
    """A scatter by place. A place counts from the start of the storage, which the result keeps with all that is in it.

    A scatter that covers all of the tensor is its source (pooling to 1 x 1 leaves such ones behind). Where elements of
    the source have one place, the order of writes decides: that is left to ATen.
    """
    if 0 in size or 0 in self.shape:
        return aten.clone.default(self)
    if any(step == 0 and n > 1 for n, step in zip(self.shape, self.stride(), strict=True)):
        return _as_strided_scatter(aten.clone.default(self), src, size, stride, storage_offset)
    reach = 0
    for step, n in sorted(((step, n) for n, step in zip(size, stride, strict=True) if n > 1), key=itemgetter(0)):
        if step <= reach:
            return NotImplemented
        reach += (n - 1) * step
    own = self.storage_offset()
    first = own if storage_offset is None else storage_offset
    last = first + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    src = TO_COPY(src, dtype=self.dtype)
    if not self.is_contiguous() or own or last >= self.numel():
        end = own + 1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride(), strict=True))
        storage = aten.as_strided.default(self, [max(end, last + 1)], [1], 0)
        written = _as_strided_scatter(aten.clone.default(storage), src, size, stride, first)
        return aten.as_strided.default(written, list(self.shape), list(self.stride()), own)
    if src.numel() == self.numel() and tuple(stride) == torch.empty(size, device="meta").stride():
        return aten.view.default(aten.clone.default(src, memory_format=torch.contiguous_format), list(self.shape))
    places = torch.zeros([1] * len(size), dtype=torch.int64, device=self.device) + first
    for k, (n, step) in enumerate(zip(size, stride, strict=True)):
        along = torch.arange(n, device=self.device) * step
        places = places + along.view([n if k == m else 1 for m in range(len(size))])
    flat = torch.scatter(self.reshape(-1), 0, places.reshape(-1), src.reshape(-1))
    return flat.view(self.shape)


def _repeat(self: Tensor, repeats: list[int]) -> Tensor:
    """A copy of the tensor expanded by a dimension before each of its own: dense, as eager makes it, also at size 1."""
    sizes = [1] * (len(repeats) - self.dim()) + list(self.shape)
    apart = aten.view.default if self.is_contiguous() else aten.reshape.default
    spread = apart(self, [n for size in sizes for n in (1, size)])
    copies = aten.expand.default(spread, [n for pair in zip(repeats, sizes, strict=True) for n in pair])
    made = aten.clone.default(copies, memory_format=torch.contiguous_format)
    return aten.view.default(made, [r * n for r, n in zip(repeats, sizes, strict=True)])


def _addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """Torch's own decomposition, which refuses the fraction that ATen cuts off where all operands are integers."""
    rule = decomposition_of(aten.addcmul.default)
    whole = not any(x.is_floating_point() or x.is_complex() for x in (self, tensor1, tensor2))
    return rule(self, tensor1, tensor2, value=int(value) if whole else value) if rule else NotImplemented


def _native_dropout(self: Tensor, p: float, train: bool | None) -> Any:
    """Dropout by numbers of float32, as in eager execution: of numbers in half types another share exceeds ``p``."""
    if not train or self.dtype not in (torch.bfloat16, torch.float16) or not 0 < p < 1:
        rule = decomposition_of(aten.native_dropout.default)
        return rule(self, p, train) if rule else NotImplemented
    kept = torch.rand_like(self, dtype=torch.float32) > p
    return kept * self * (1 / (1 - p)), kept


OWN: dict[Any, Callable[..., Any]] = {
    aten.addcmul.default: _addcmul,
    aten.repeat.default: _repeat,
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split_with_sizes,
    aten.unbind.int: _unbind,
    aten.select_backward.default: select_backward,
    aten.slice_backward.default: slice_backward,
    aten.select_scatter.default: select_scatter,
    aten.slice_scatter.default: slice_scatter,
    aten.nll_loss_backward.default: _nll_loss_backward,
    aten.nll_loss2d_backward.default: _nll_loss_backward,
    aten.copy.default: _copy,
    aten.bernoulli.p: _bernoulli_p,
    aten.native_dropout.default: _native_dropout,
    aten.full_like.default: _full_like,
    aten.ones_like.default: _ones_like,
    aten.zeros_like.default: _zeros_like,
    aten.as_strided_scatter.default: _as_strided_scatter,
    aten.diagonal_scatter.default: _diagonal_scatter,
    aten.embedding_dense_backward.default: embedding_gradient,
    aten.index_put.default: _index_put,
    aten.scatter_reduce.two: scatter_reduce,
    aten.replication_pad1d_backward.default: replication_pad_backward,
    aten.replication_pad2d_backward.default: replication_pad_backward,
    aten.replication_pad3d_backward.default: replication_pad_backward,
    aten.avg_pool1d.default: average_pool1d,
    aten.avg_pool2d.default: partial(average_pool, 2),
    aten.avg_pool3d.default: partial(average_pool, 3),
    aten._adaptive_avg_pool2d.default: partial(adaptive_average_pool, 2),  # noqa: SLF001 - the name of an operator
    aten._adaptive_avg_pool3d.default: partial(adaptive_average_pool, 3),  # noqa: SLF001
    aten._adaptive_avg_pool2d_backward.default: partial(adaptive_average_pool_backward, 2),  # noqa: SLF001
    aten._adaptive_avg_pool3d_backward.default: partial(adaptive_average_pool_backward, 3),  # noqa: SLF001
}


def stays_whole(overload: Any) -> bool:
    """Whether an operator must reach the solver as one node, as every variant of attention must."""
    operator = operator_name(overload)
    return operator in WHOLE or "scaled_dot_product" in operator or "_attention" in operator


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Overload to its decomposition. The table is built once; take a copy before changing it."""
    table = standard_decompositions()
    for name in DECOMPOSED:
        packet = getattr(aten, name, None)  # an operator that this torch does not have needs no decomposition
        for overload in packet.overloads() if packet is not None else ():
            found = decomposition_of(getattr(packet, overload))
            if found is not None:
                table[getattr(packet, overload)] = found
    return {**{op: rule for op, rule in table.items() if not stays_whole(op)}, **foreach_decompositions(), **OWN}


def exported_decompositions() -> Decompositions:
    """The same for an exported program."""
    return _exported_decompositions(composite_operators())


@lru_cache(maxsize=1)
def _exported_decompositions(_registered: int) -> Decompositions:
    return for_exported(decompositions())
