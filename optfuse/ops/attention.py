"""Attention in one call, with every gradient: what ``scaled_dot_product_attention`` offers to eager execution only.

ATen takes attention apart where its first choice of kernel has no gradient for a mask or no dropout. The two functions
here stay whole: each picks, when it runs, the best library kernel that its device has for the call, and computes by
matrix products where there is none.

Shapes: query (B, H, L, D), key (B, G, S, D), value (B, G, S, E) where G divides H, mask (B, H, L, S). Results are laid
out the same on every device: the output and the gradients of query, key and value as (B, L, H, E) in memory, the
log-sum-exp with rows padded to 32, the mask's gradient with rows padded to 16, as the GPU kernels write them.
"""

# ruff: noqa: SLF001  (the kernels of scaled_dot_product_attention have no public name)

from __future__ import annotations

import torch

aten = torch.ops.aten

#: The kernel that serves calls of one kind, decided once: forward and backward must agree.
ATTENTION_KERNELS: dict[tuple[object, ...], str] = {}


def attention(
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
    """Return softmax(query @ key^T * scale + mask) @ value, and what its backward needs.

    Parameters
    ----------
    mask
        Added to the scores; any strides, of the query's dtype or float32. A causal call has none.
    dropout_p
        The probability with which a weight is dropped; torch's generator decides which.
    keep
        Whether a backward follows. If not, all results but the first are void.
    draw
        Tells calls with dropout apart that are otherwise equal; not used.

    Returns
    -------
    The output, the log-sum-exp of every row of scores, and the seed and offset of dropout: int64 scalars, on the CPU
    except while a CUDA graph is captured.
    """
    seed, offset = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)
    if not keep:
        grouped = query.shape[1] != key.shape[1]
        # with a mask of another dtype torch takes the call apart, in float32
        bias = attention_bias(mask, query) if query.is_cuda and query.element_size() == 2 else mask
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, bias, dropout_p, is_causal, scale=scale, enable_gqa=grouped
        )
        return attention_rows(out), query.new_empty((*query.shape[:2], 0), dtype=attention_dtype(query)), seed, offset
    kernel = attention_kernel(query, key, value, mask, dropout_p, is_causal)
    length = query.shape[2]
    if kernel == "math":
        seed = torch.randint(2**63 - 1, ()) if dropout_p > 0 else seed
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
        seed, offset = drawn if dropout_p > 0 else (seed, offset)
    if lse.shape[-1] == length:
        lse = torch.nn.functional.pad(lse, (0, -length % 32)) if length % 32 else lse.contiguous()
    return attention_rows(out), lse, seed, offset


def attention_cuda(
    kernel: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> list[torch.Tensor]:
    """The output and log-sum-exp by a GPU kernel, and, from the one that has dropout, seed and offset."""
    heads, width = query.shape[1], value.shape[-1]
    query, key, value = attention_padded(query), attention_padded(key), attention_padded(value)
    if kernel == "flash":
        found = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal, scale=scale)[:2]
    else:
        key, value = attention_heads(key, heads), attention_heads(value, heads)
        found = aten._scaled_dot_product_efficient_attention(
            *(query, key, value, attention_bias(mask, query), True, dropout_p, is_causal), scale=scale
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
        results.append(attention_padded_rows(found[3].to(mask.dtype)))
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
    void = torch.zeros((), dtype=torch.int64)
    seed, offset = (void if x is None else attention_host(x, query.device) for x in (seed, offset))
    key, value = attention_heads(key, heads), attention_heads(value, heads)
    found = aten._scaled_dot_product_efficient_attention_backward(
        *(grad, query, key, value, attention_bias(mask, query), out, lse, seed, offset, dropout_p),
        *([True, True, True, mask_grad], is_causal),
        scale=scale,
    )
    narrow = [x.narrow(-1, 0, width) for x, width in zip(found[:3], widths, strict=True)]
    return [narrow[0], attention_groups(narrow[1], groups), attention_groups(narrow[2], groups), found[3]]


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
            params = cuda.SDPAParams(*examples, None, dropout_p, is_causal, heads != shared)  # type: ignore
            if (flash or name == "efficient") and usable(params):
                return name
    return "math"


def attention_dtype(query: torch.Tensor) -> torch.dtype:
    """The dtype of the log-sum-exp."""
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def attention_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Keys or values with each head repeated for the query heads that share it."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def attention_groups(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Gradients of repeated heads, summed over those that share a head."""
    return x if x.shape[1] == groups else x.unflatten(1, (groups, -1)).sum(2)


def attention_padded(x: torch.Tensor) -> torch.Tensor:
    """A tensor as GPU kernels take it: a last dimension of a multiple of 8, aligned to 16 bytes; itself if it is so.

    A copy lies in memory as (B, L, H, E): the backward kernel takes that of the output for granted.
    """
    width = x.shape[-1]
    if width % 8:
        batch, heads, length, _ = x.shape
        padded = x.new_zeros((batch, length, heads, width + -width % 8)).transpose(1, 2)
        padded.narrow(-1, 0, width).copy_(x)
        return padded
    return x if attention_aligned(x) else x.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)


def attention_bias(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """A mask as the GPU kernel takes it: of the query's dtype, rows aligned. What is broadcast stays so."""
    if mask is None:
        return None
    base = mask
    for dim in range(3):
        base = base.narrow(dim, 0, 1) if mask.stride(dim) == 0 else base
    base = base.to(query.dtype)
    if not attention_aligned(base):
        base = attention_mask_memory(base).copy_(base)
    return base.expand(mask.shape)


def attention_aligned(x: torch.Tensor) -> bool:
    """Whether every row is contiguous and starts at a multiple of 16 bytes, for items of 2 bytes or more."""
    rows = [step for size, step in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    return x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(step % 8 == 0 for step in rows)


def attention_host(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A seed where the kernel reads it: on the host, or on the GPU while a CUDA graph is captured."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return x.to(device)
    return x.cpu() if x.is_cuda else x


def attention_rows(x: torch.Tensor) -> torch.Tensor:
    """(B, H, L, E) that lies in memory as (B, L, H, E); itself if it does."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def attention_padded_rows(x: torch.Tensor) -> torch.Tensor:
    """A mask's gradient whose rows are padded to a multiple of 16; itself if they are."""
    _, heads, length, columns = x.shape
    row = columns + -columns % 16
    return x if x.stride() == (heads * length * row, length * row, row, 1) else attention_mask_memory(x).copy_(x)


def attention_mask_memory(mask: torch.Tensor) -> torch.Tensor:
    """Memory for a mask of that shape, or for its gradient: rows are padded to a multiple of 16."""
    columns = mask.shape[-1]
    return mask.new_empty((*mask.shape[:-1], columns + -columns % 16)).narrow(-1, 0, columns)
