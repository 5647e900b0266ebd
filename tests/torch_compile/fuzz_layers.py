"""Statements of random programs that call what layers are made of: products, convolutions, pools, norms, losses."""

from __future__ import annotations

import math

from tests.torch_compile.fuzz_statements import State, Template, floating, index, size


def weight(x: str, *shape: int) -> str:
    """Small whole numbers in x's dtype."""
    return f"(torch.arange({math.prod(shape)}).view({list(shape)}) % 5 - 2).to({x}.dtype)"


def product(s: State) -> str:
    """A product of matrices with x, in one of its forms."""
    x, r = s.pick(), s.rng
    n, k = size(s, x, -1), s.rng.choice([1, 2, 5])
    rows, bias = f"{x}.reshape(-1, {n})", r.choice(["None", weight(x, k)])
    scales = f"beta={r.choice([0, 1, 0.5])}, alpha={r.choice([1, 2])}"
    forms = [
        f"F.linear({x}, {weight(x, k, n)}, {bias})",
        f"F.linear({rows}.t().contiguous().t(), {weight(x, n, k)}.t(), {bias})",
        f"{x} @ {weight(x, n, k)}",
        f"torch.einsum('...i,ij->...j', {x}, {weight(x, n, k)})",
        f"torch.einsum('ai,bi->ab', {rows}, {rows})",
        f"torch.addmm({weight(x, k)}, {rows}, {weight(x, n, k)}, {scales})",
        f"torch.baddbmm({weight(x, 1, 1, k)}, {rows}[None], {weight(x, 1, n, k)})",
        f"torch.bmm({rows}[None].expand(2, -1, -1), {weight(x, 2, n, k)})",
        f"torch.mv({rows}, {weight(x, n)})",
        f"torch.tensordot({x}, {weight(x, n, k)}, 1)",
        f"torch.kron({rows}[:2], {weight(x, 2, 1)})",
        f"torch.inner({x}, {weight(x, n)})",
        f"F.bilinear({rows}, {rows}, {weight(x, k, n, n)})",
    ]
    return r.choice(forms)


def convolved(s: State) -> str:
    """A convolution, a pool or a resized image, of x in one to three dimensions."""
    x, r = s.pick(floating), s.rng
    n = size(s, x, -1)
    flat, plane, deep = f"{x}.reshape(1, 1, -1)", f"{x}.reshape(1, 1, -1, {n})", f"{x}.reshape(1, -1, {n})"
    channels = max(1, s.values[x].numel() // max(n, 1))
    k, stride, pad = r.choice([1, 2, 3]), r.choice([1, 2]), r.choice([0, 1])
    grouped = f"{weight(x, channels, 1, k)}, {weight(x, channels)}"
    pool = f"{k}, {stride}, {min(pad, k // 2)}"
    ceil, mode = r.choice([True, False]), r.choice(["nearest", "linear", "area"])
    after = r.choice(["", ".relu()", ".relu_()", ".sigmoid()", f" + {weight(x, 1)}"])
    forms = [
        f"F.conv1d({flat}, {weight(x, 2, 1, k)}, stride={stride}, padding={pad}, dilation={r.choice([1, 2])}){after}",
        f"F.conv1d({deep}, {grouped}, {stride}, {pad}, groups={channels}){after}",
        f"F.conv2d({plane}, {weight(x, 2, 1, 2, 1)}, {r.choice(['None', weight(x, 2)])}, padding={pad}){after}",
        f"F.conv2d({deep}.mT[..., None], {weight(x, 3, n, 1, 1)}, stride={stride}){after}",
        f"F.conv2d({plane}.to(memory_format=torch.channels_last), {weight(x, 2, 1, 1, 1)}){after}",
        f"F.conv_transpose1d({flat}, {weight(x, 1, 2, k)}, stride={stride}, padding={pad}){after}",
        f"F.avg_pool1d({deep}, {pool}, {ceil}, {r.choice([True, False])})",
        f"F.max_pool1d({deep}, {pool}, ceil_mode={ceil})",
        f"F.avg_pool2d({plane}, 2, {stride}, {pad}, divisor_override={r.choice([None, 3])})",
        f"F.max_pool2d({plane}, 2, {stride}, {pad}, return_indices=True)[{r.choice([0, 1])}]",
        f"F.adaptive_{r.choice(['avg', 'max'])}_pool1d({deep}, {r.choice([1, 2, 3])})",
        f"F.adaptive_avg_pool2d({plane}, ({r.choice([1, 2, None])}, {r.choice([1, 2])}))",
        f"F.interpolate({deep}, scale_factor={r.choice([2, 0.5, 1.5])}, mode={mode!r})",
        f"F.interpolate({plane}, size=(3, 2), mode={r.choice(['nearest', 'bilinear', 'bicubic'])!r})",
        f"F.unfold({plane}, (2, 1), padding={pad}, stride={stride})",
        f"F.fold({deep}, ({n}, 2), (1, 2))",
        f"F.pixel_shuffle({deep}.reshape(-1, 4, 1, {n})[:1], 2)",
        f"F.local_response_norm({deep}, 2)",
    ]
    return r.choice(forms)


def normed(s: State) -> str:
    """A norm, attention, an embedding, or a function that is differentiated or mapped."""
    x, r = s.pick(floating), s.rng
    n = size(s, x, -1)
    rows, deep = f"{x}.reshape(-1, {n})", f"{x}.reshape(1, -1, {n})"
    mask = r.choice(["is_causal=True", f"attn_mask={x}.reshape(-1, {n})[:, :1] > 0", "scale=0.5", "is_causal=False"])
    inside = r.choice(["t.sin() * t", "t * t.sum()", "t.softmax(-1)", "t.exp().cumsum(0)", "t[..., :1] * t"])
    forms = [
        f"F.batch_norm({rows}, None, None, {weight(x, n)}, {weight(x, n)}, training=True)",
        f"F.batch_norm({rows}, {weight(x, n)}, {weight(x, n)}.square() + 1, training=False)",
        f"F.instance_norm({deep})",
        f"F.group_norm({deep}, 1)",
        f"F.rms_norm({x}, [{n}], {weight(x, n)})",
        f"F.layer_norm({x}, [{n}], {weight(x, n)}, {weight(x, n)})",
        f"F.scaled_dot_product_attention({deep}, {deep}, {deep}, {mask})",
        f"F.scaled_dot_product_attention({deep}, {deep}[:, :1], {deep}[:, :1] * 2)",
        f"F.embedding({index(s, x, 0)}.abs(), {rows}, padding_idx={r.choice([None, 0])})",
        f"F.embedding_bag({index(s, x, 0, 3)}.abs()[None], {rows}.float(), mode={r.choice(['sum', 'mean', 'max'])!r})",
        f"F.cosine_similarity({rows}, {rows}.flip(0), dim={r.choice([0, 1])})",
        f"F.pairwise_distance({rows}, {rows} + 1)",
        f"torch.cdist({rows}, {rows} + 1, p={r.choice([1.0, 2.0, 3.0])})",
        f"torch.utils.checkpoint.checkpoint(lambda t: {inside}, {x}, use_reentrant=False)",
        f"torch.vmap(lambda t: {inside.replace('[..., :1]', '.sum()')})({x})",
        f"torch.func.grad(lambda t: ({inside}).sum())({x})",
        f"torch.func.jvp(lambda t: {inside}, ({x},), ({x} * 2,))[{r.choice([0, 1])}]",
        f"torch.cond({x}.sum() > 0, lambda t: {inside}, lambda t: ({inside}) * 2, ({x},))",
    ]
    return r.choice(forms)


def lost(s: State) -> str:
    """A loss of x."""
    x, r = s.pick(floating), s.rng
    n = size(s, x, -1)
    rows, how = f"{x}.reshape(-1, {n})", f"reduction={r.choice(['mean', 'sum', 'none'])!r}"
    chosen = f"torch.arange({s.values[x].numel() // max(n, 1)}) % {max(n, 1)}"
    other = r.choice([f"{x}.detach() * 2", f"{x} * 0.5", f"torch.zeros_like({x})"])
    forms = [
        f"F.cross_entropy({rows}, {chosen}, label_smoothing={r.choice([0.0, 0.1])}, {how})",
        f"F.cross_entropy({rows}, {chosen}, {weight(x, n)}.abs(), ignore_index={r.choice([-100, 0, 1])}, {how})",
        f"F.nll_loss({rows}, {chosen}, {how})",
        f"F.mse_loss({x}, {other}, {how})",
        f"F.{r.choice(['l1_loss', 'smooth_l1_loss', 'huber_loss', 'soft_margin_loss'])}({x}, {other}, {how})",
        f"F.binary_cross_entropy_with_logits({x}, {other}, {how})",
        f"F.kl_div(F.log_softmax({x}, -1), F.softmax({other}, -1), {how})",
        f"F.multi_margin_loss({rows}, {chosen}, {how})",
        f"F.poisson_nll_loss(-F.softplus({x}), {other}, {how})",
        f"F.gaussian_nll_loss({x}, {other}, {x}.detach().square() + 1, {how})",
    ]
    return r.choice(forms)


#: (how often, template, whether it defines a value), as ``fuzz_statements.TEMPLATES``
LAYERS: list[tuple[int, Template, bool]] = [
    (6, product, True),
    (6, convolved, True),
    (6, normed, True),
    (4, lost, True),
]
