"""Attention in one call, with all gradients, which ``scaled_dot_product_attention`` has in eager execution only.

When traced, ATen decomposes attention if the kernel it chose has no gradient for a mask or no dropout. The
functions here stay whole: at run time each picks the best library kernel of its device for the call, or computes by
matrix products where there is none.

Shapes: query (B, H, L, D), key (B, G, S, D), value (B, G, S, E) where G divides H, mask (B or 1, H, L, S). Results are
laid out the same on every device: the output and the gradients of query, key and value as (B, L, H, E) in memory, the
log-sum-exp with rows padded to 32, the mask's gradient with rows padded to 16, as the GPU kernels write them.
"""

# ruff: noqa: SLF001  (the kernels of scaled_dot_product_attention have no public name)

from __future__ import annotations

from typing import Any

import torch

from optfuse.compiler.ops.attention_cudnn import ATTENTION_SHORT, attention_backward_cudnn, attention_by_cudnn
from optfuse.compiler.ops.attention_memory import (
    attention_apart,
    attention_bias,
    attention_dtype,
    attention_everywhere,
    attention_groups,
    attention_heads,
    attention_host,
    attention_padded,
    attention_padded_rows,
    attention_rows,
)

aten = torch.ops.aten

#: The kernel that serves calls of one kind, decided once: forward and backward must agree.
ATTENTION_KERNELS: dict[tuple[object, ...], str] = {}


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
    keep: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return softmax(query @ key^T * scale + mask) @ value, and the log-sum-exp of every row, for the backward.

    Args:
        mask: Added to the scores; any strides, of the query's dtype or float32. A causal call has none.
        keep: Whether a backward follows. If not, the second result is void.
    """
    return attention_drawn(query, key, value, mask, 0.0, is_causal, scale, keep)[:2]


def attention_dropout(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
    keep: bool,
    draw: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """``attention`` with dropout, which returns also what draws it again.

    Args:
        dropout_p: The probability with which a weight is dropped; torch's generator decides which.
        draw: Tells calls apart that are otherwise equal; not used.

    Returns:
        The output, the log-sum-exp, and the seed and offset of dropout: int64 scalars, on the CPU except while a CUDA
            graph is captured.
    """
    out, lse, seed, offset = attention_drawn(query, key, value, mask, dropout_p, is_causal, scale, keep)
    void = torch.zeros((), dtype=torch.int64)
    return out, lse, void if seed is None else seed, void.clone() if offset is None else offset


def attention_drawn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
    keep: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """The results of ``attention_dropout``; None where a kernel has no seed or no offset."""
    seed: torch.Tensor | None = None
    offset: torch.Tensor | None = None
    mask = attention_everywhere(mask, query)
    query, key, value = attention_apart(query), attention_apart(key), attention_apart(value)
    if not keep:
        out = attention_alone(query, key, value, mask, dropout_p, is_causal, scale)
        return attention_rows(out), query.new_empty((*query.shape[:2], 0), dtype=attention_dtype(query)), seed, offset
    kernel = attention_kernel(query, key, value, mask, dropout_p, is_causal)
    length = query.shape[2]
    if kernel == "math":
        seed = torch.randint(2**63 - 1, ()) if dropout_p > 0 else None
        weights, lse = attention_weights(query, key, mask, is_causal, scale)
        out = attention_dropped(weights, dropout_p, seed) @ attention_heads(value.to(weights.dtype), query.shape[1])
        out = out.to(query.dtype)
    elif kernel == "cpu":
        key, value = attention_heads(key, query.shape[1]), attention_heads(value, query.shape[1])
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale
        )
    else:
        out, lse, *drawn = attention_cuda(kernel, query, key, value, mask, dropout_p, is_causal, scale)
        seed, offset = drawn if dropout_p > 0 else (None, None)
    if lse.shape[-1] == length:
        lse = torch.nn.functional.pad(lse, (0, -length % 32)) if length % 32 else lse.contiguous()
    return attention_rows(out), lse, seed, offset


def attention_alone(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> torch.Tensor:
    """The output where no backward follows: by the kernel that torch chooses, but for short calls."""
    half = query.is_cuda and query.element_size() == 2
    short = half and max(query.shape[2], key.shape[2]) <= ATTENTION_SHORT
    if short and attention_kernel(query, key, value, mask, dropout_p, is_causal) == "efficient":
        return attention_cuda("efficient", query, key, value, mask, dropout_p, is_causal, scale, False)[0]
    # with a mask of another dtype torch takes the call apart, in float32
    bias = attention_bias(mask, query) if half else mask
    grouped = query.shape[1] != key.shape[1]
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, bias, dropout_p, is_causal, scale=scale, enable_gqa=grouped
    )


def attention_cuda(
    kernel: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
    keep: bool = True,
) -> list[torch.Tensor]:
    """The output and log-sum-exp by a GPU kernel, and, from the one that has dropout, seed and offset.

    With a mask and without dropout, cuDNN's kernel may serve where another one does the backward.
    """
    heads, width = query.shape[1], value.shape[-1]
    query, key, value = attention_padded(query), attention_padded(key), attention_padded(value)
    if kernel == "flash":
        found = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal, scale=scale)[:2]
        return [found[0].narrow(-1, 0, width), found[1]]
    key, value, bias = attention_heads(key, heads), attention_heads(value, heads), attention_bias(mask, query)
    if keep and mask is not None and dropout_p == 0 and attention_by_cudnn(query, key, value):
        found = aten._scaled_dot_product_cudnn_attention(
            *(query, key, value, bias, True, 0.0, is_causal, False), scale=scale
        )
        # of a row without keys the others say 0, which their backward expects
        lse = torch.nan_to_num(found[1].reshape(query.shape[:3]), torch.nan, torch.inf, 0.0)
        return [found[0].narrow(-1, 0, width), lse]
    found = aten._scaled_dot_product_efficient_attention(
        *(query, key, value, bias, keep, dropout_p, is_causal), scale=scale
    )
    return [found[0].narrow(-1, 0, width), *found[1:]]


def attention_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    seed: torch.Tensor | None,
    offset: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
    mask_grad: bool,
) -> list[torch.Tensor]:
    """Gradients of query, key and value, and of the mask if ``mask_grad``.

    ``out``, ``lse``, ``seed`` and ``offset`` are the forward call's; the last two are None without dropout.
    """
    kernel = attention_kernel(query, key, value, mask, dropout_p, is_causal)
    if kernel in ("flash", "efficient"):
        found = attention_backward_cuda(
            kernel, grad, query, key, value, mask, out, lse, seed, offset, dropout_p, is_causal, scale, mask_grad
        )
    else:
        found = attention_backward_math(grad, query, key, value, mask, lse, seed, dropout_p, is_causal, scale)
    results = [attention_rows(x.to(y.dtype)) for x, y in zip(found[:3], (query, key, value), strict=True)]
    if mask_grad:
        assert mask is not None, "only a mask has a gradient"
        whole = found[3] if len(found[3]) == len(mask) else found[3].sum(0, keepdim=True)
        results.append(attention_padded_rows(whole.to(mask.dtype)))
    return results


def attention_backward_cuda(
    kernel: str,
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    seed: torch.Tensor | None,
    offset: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
    mask_grad: bool,
) -> list[torch.Tensor]:
    """The gradients by a GPU kernel. Head sizes are padded to what it takes."""
    heads, groups, length = query.shape[1], key.shape[1], query.shape[2]
    widths = (query.shape[-1], key.shape[-1], value.shape[-1])
    grad, query, key, value, out = (attention_padded(x) for x in (grad, query, key, value, out))
    if kernel == "flash":
        rng = torch.zeros(2, dtype=torch.uint64, device=query.device)  # of dropout, which there is none of
        found = aten._scaled_dot_product_flash_attention_backward(
            *(grad, query, key, value, out, lse.narrow(-1, 0, length).contiguous(), None, None, length, key.shape[2]),
            *(0.0, is_causal, rng, rng.narrow(0, 0, 1)),
            scale=scale,
        )
        return [x.narrow(-1, 0, width) for x, width in zip(found, widths, strict=True)]
    key, value = attention_heads(key, heads), attention_heads(value, heads)
    bias = attention_bias(attention_everywhere(mask, query), query)
    even = {query.shape[-1], value.shape[-1]} <= {16, 32, 64, 128}
    alone = mask is None or len(mask) > 1 or not even  # whose gradient the other kernel has, or has faster
    if bias is not None and dropout_p == 0 and not (mask_grad and alone) and attention_by_cudnn(query, key, value):
        found = attention_backward_cudnn(grad, query, key, value, bias, out, lse, is_causal, scale, mask_grad)
    else:
        void = torch.zeros((), dtype=torch.int64)
        seed, offset = (void if x is None else attention_host(x, query.device) for x in (seed, offset))
        found = aten._scaled_dot_product_efficient_attention_backward(
            *(grad, query, key, value, bias, out, lse, seed, offset, dropout_p),
            *([True, True, True, mask_grad], is_causal),
            scale=scale,
        )
    narrow = [x.narrow(-1, 0, width) for x, width in zip(found[:3], widths, strict=True)]
    return [narrow[0], attention_groups(narrow[1], groups), attention_groups(narrow[2], groups), *found[3:]]


def attention_backward_math(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    lse: torch.Tensor,
    seed: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> list[torch.Tensor]:
    """The gradients by matrix products, in float32 or wider."""
    heads, groups = query.shape[1], key.shape[1]
    weights, _ = attention_weights(query, key, mask, is_causal, scale, lse.narrow(-1, 0, query.shape[2]))
    dtype = weights.dtype
    grad, query = grad.to(dtype), query.to(dtype)
    key, value = attention_heads(key.to(dtype), heads), attention_heads(value.to(dtype), heads)
    grad_value = attention_dropped(weights, dropout_p, seed).mT @ grad
    grad_weights = attention_dropped(grad @ value.mT, dropout_p, seed)
    grad_scores = weights * (grad_weights - (weights * grad_weights).sum(-1, keepdim=True))
    return [
        grad_scores @ key * scale,
        attention_groups(grad_scores.mT @ query * scale, groups),
        attention_groups(grad_value, groups),
        grad_scores,
    ]


def attention_weights(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
    lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax of the scores, and their log-sum-exp, in float32 or wider. A row that is masked out has weights of 0."""
    dtype = attention_dtype(query)
    scores = query.to(dtype) @ attention_heads(key.to(dtype), query.shape[1]).mT * scale
    if mask is not None:
        scores = scores + mask
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -torch.inf)
    if lse is None:
        lse = torch.logsumexp(scores, -1)
        lse = lse.masked_fill(lse == -torch.inf, 0.0)
    return torch.exp(scores - lse.unsqueeze(-1)), lse


def attention_dropped(weights: torch.Tensor, dropout_p: float, seed: torch.Tensor | None) -> torch.Tensor:
    """The weights after dropout: a function of the seed, so that the backward drops what the forward dropped."""
    if dropout_p == 0 or seed is None:
        return weights
    generator = torch.Generator(weights.device)
    generator.manual_seed(int(seed))
    kept = torch.rand(weights.shape, generator=generator, device=weights.device) >= dropout_p
    return weights * kept * (0.0 if dropout_p == 1 else 1 / (1 - dropout_p))


def attention_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
) -> str:
    """Which kernel has the gradients of such a call: "flash", "efficient", "cpu" (forward alone) or "math"."""
    if 0 in (query.numel(), key.numel(), value.numel()):
        return "math"
    if not query.is_cuda:
        fits = query.device.type == "cpu" and dropout_p == 0 and query.shape[-1] == value.shape[-1]
        return "cpu" if fits else "math"
    shapes = (query.shape, key.shape, value.shape)
    kind = (query.device, query.dtype, *shapes, mask is None, dropout_p > 0, is_causal)
    if kind not in ATTENTION_KERNELS:
        ATTENTION_KERNELS[kind] = attention_kernel_cuda(query, shapes, mask is None, dropout_p, is_causal)
    return ATTENTION_KERNELS[kind]


def attention_kernel_cuda(
    query: torch.Tensor, shapes: tuple[torch.Size, ...], unmasked: bool, dropout_p: float, is_causal: bool
) -> str:
    """Ask torch which of its kernels take tensors of these shapes, padded and aligned."""
    heads, groups = shapes[0][1], shapes[1][1]
    cuda, kernels = torch.backends.cuda, torch.nn.attention.SDPBackend
    # the flash kernel keeps the state of dropout on the GPU, the other one on the host: one of them must do
    flash = unmasked and dropout_p == 0 and shapes[0][3] == shapes[2][3]
    # whatever is switched off just now: the backward may run under other switches
    allowed = torch.nn.attention.sdpa_kernel([kernels.FLASH_ATTENTION, kernels.EFFICIENT_ATTENTION])
    with allowed, torch.enable_grad(), torch.cuda.device(query.device):
        for name, usable, shared in (
            ("flash", cuda.can_use_flash_attention, groups),
            ("efficient", cuda.can_use_efficient_attention, heads),
        ):
            examples = []
            for (batch, _, rows, width), count in zip(shapes, (heads, shared, shared), strict=True):
                row = torch.empty(width + -width % 8, dtype=query.dtype, device=query.device, requires_grad=True)
                examples.append(row.expand(batch, count, rows, -1))
            made: Any = cuda.SDPAParams  # its stub takes no arguments
            params = made(*examples, None, dropout_p, is_causal, heads != shared)
            if (flash or name == "efficient") and usable(params):
                return name
    return "math"
