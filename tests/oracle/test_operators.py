"""Operators of every kind through the whole pipeline, with their gradients: by loops, or by calls of the library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from optfuse.runtime.environment import mode
from tests.oracle.judging import assert_all_pass, judge

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


@dataclass(frozen=True)
class Case:
    """A function or module, makers of its inputs, and whether it is judged with its gradients."""

    function: Any
    inputs: tuple[Any, ...]
    train: bool = True


def normal(*shape: int, grad: bool = True, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + 3)
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_(grad)


def positive(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(5)).add(0.1).requires_grad_()


def whole(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(7))


def rewritten(x: Tensor) -> Tensor:
    y = x.clone()
    y[1:3] = 0
    y[:, 2] *= 2
    y[0, ::2] += 1
    y[y > 1] = 1
    y.t()[1].exp_()
    y.clamp_(min=-1)
    y[[0, 2]] = y[[2, 0]]
    return y


class First(nn.Module):
    """The first result of a module that has several, called with its input once or thrice."""

    def __init__(self, module: nn.Module, times: int = 1) -> None:
        super().__init__()
        self.module = module
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        """The first result."""
        return self.module(*[x] * self.times)[0]


class Checkpointed(nn.Module):
    """A layer that is computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(7, 7)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's result."""
        return checkpoint(lambda y: F.gelu(self.linear(y)), x, use_reentrant=False)


def recurrent(kind: type[nn.Module]) -> nn.Module:
    return First(kind(4, 6, num_layers=2, batch_first=True, bidirectional=True))


def transformer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


X, Y, ROW = normal(5, 7), normal(5, 7).flip(0).detach().requires_grad_(), normal(7)
LABELS = torch.tensor([0, 2, 6, 2, 1])
POSITIONS = torch.tensor([0, 3, 1])
NAN = torch.tensor([1.0, math.nan, math.inf, -math.inf])
MATRIX = normal(4, 4)


def _definite(a: Tensor) -> Tensor:
    return a @ a.mT + torch.eye(4)


POINTWISE: dict[str, Case] = {
    "rounding": Case(lambda x: (x.abs(), x.sign(), x.floor(), x.ceil(), x.round(), x.trunc(), x.frac(), -x), (X,)),
    "trigonometry": Case(
        lambda x: (x.sin(), x.cos(), x.tan(), x.atan(), x.sinh(), x.cosh(), x.asinh(), x.erf(), x.erfc(), x.expm1()),
        (X,),
    ),
    "logarithms": Case(
        lambda x: (x.log(), x.log2(), x.log10(), x.log1p(), x.sqrt(), x.rsqrt(), x.reciprocal(), x.exp2()),
        (positive(5, 7),),
    ),
    "powers": Case(
        lambda x: (x**2, x**0, x**1, x**0.5, x**2.5, x**-1, (-x) ** 3, torch.pow(2, x), x ** torch.arange(7)),
        (positive(5, 7),),
    ),
    "inverses": Case(
        lambda x: ((x * 0.9).asin(), (x * 0.9).acos(), (x * 0.9).atanh(), x.lgamma(), x.digamma(), x.i0()),
        (positive(3, 4).detach().clamp(max=1).requires_grad_(),),
    ),
    "of two": Case(
        lambda x, y: (
            *(torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y), torch.atan2(x, y), torch.hypot(x, y)),
            *(torch.logaddexp(x, y), torch.fmod(x, y), torch.remainder(x, y), torch.copysign(x, y)),
        ),
        (X, ROW),
    ),
    "fused": Case(
        lambda x, y: (
            *(torch.addcmul(x, x, y, value=0.5), torch.addcdiv(x, x, y.abs() + 1), torch.lerp(x, y, 0.3)),
            *(torch.add(x, y, alpha=2), torch.sub(1, x), torch.rsub(x, 2), x.addr(x[:, 0], y[0])),
        ),
        (X, Y),
    ),
    "comparisons": Case(
        lambda x, y: (x == y, x != y, x < y, x >= y, x.isclose(y), x.logical_and(y), x.logical_not(), x.signbit()),
        (X.detach(), ROW.detach()),
        train=False,
    ),
    "integers": Case(
        lambda a, b: (
            *(a // b, a % b, torch.fmod(a, b), torch.div(a, b, rounding_mode="trunc"), a / b),
            *(a & b, a | b, a ^ b, ~a, a << 2, a >> 1, a == b, torch.gcd(a, b)),
        ),
        (whole(-50, 50, 6, 5), torch.tensor([-7, -3, 2, 5, 9])),
        train=False,
    ),
    "floor of floats": Case(
        lambda x: (torch.div(x, 0.3, rounding_mode="floor"), x // -0.7, x % -0.7, x.fmod(-0.3)),
        (X.detach(),),
        train=False,
    ),
    "int8 wraps": Case(
        lambda a: (a + a, a * a, a.sum(), a.abs(), -a),
        (torch.tensor([100, 127, -128, -1], dtype=torch.int8),),
        train=False,
    ),
    "uint8 wraps": Case(
        lambda a: (a + a, a * 3, a.sum(), a - 1, a / 2, a.float() - 200),
        (torch.tensor([100, 255, 0, 1], dtype=torch.uint8),),
        train=False,
    ),
    "casts": Case(
        lambda x: ((x * 100).int(), (x * 10).to(torch.int8), (x * 3).long(), x.bool(), x.half(), x.double(), x > 0),
        (X.detach(),),
        train=False,
    ),
    "not a number": Case(
        lambda x: (x.nan_to_num(1.0, 2.0, 3.0), x.isfinite(), x.isnan(), x.isinf()), (NAN,), train=False
    ),
    "choices": Case(lambda x: torch.where(x > 0, torch.where(x > 1, x * 2, x * 3), -x).clamp(-2, 3), (X,)),
    "masked softmax": Case(
        lambda x: x.masked_fill(torch.ones(5, 7, dtype=torch.bool).triu(1), -math.inf).softmax(-1), (X,)
    ),
    "activations": Case(
        lambda x: (
            *(F.elu(x), F.selu(x), F.celu(x), F.leaky_relu(x), F.relu6(x * 4), F.hardswish(x * 2), F.mish(x)),
            *(F.hardsigmoid(x * 2), F.hardtanh(x * 2), F.logsigmoid(x), F.softsign(x), F.hardshrink(x)),
            *(F.softshrink(x), F.threshold(x, 0.1, 0.2), F.glu(x, 0), F.prelu(x, torch.tensor([0.2]))),
        ),
        (normal(6, 7),),
    ),
}

REDUCTIONS: dict[str, Case] = {
    "sums": Case(
        lambda x: (
            *(x.sum((0, 2)), x.mean((1, 2), keepdim=True), x.std(-1), x.var((0, 1)), x.norm(), x.norm(dim=1)),
            *(x.norm(1, dim=0), x.prod(1), x.logsumexp((0, 1)), x.sum((0, 1, 2), dtype=torch.float64)),
        ),
        (normal(4, 5, 6),),
    ),
    "extremes": Case(
        lambda x: (x.max(), x.min(), x.max(1), x.min(0), x.amax((0, 1)), x.argmax(), x.argmin(1, keepdim=True)),
        (normal(4, 5),),
    ),
    "of integers": Case(
        lambda a: (a.sum(), a.prod(1), a.max(1), a.argmax(0), a.any(1), a.all(0), a.float().mean(), a.count_nonzero(1)),
        (whole(-9, 9, 4, 5),),
        train=False,
    ),
    "of half types": Case(
        lambda x: (x.sum(), x.float().sum(0), x.mean(1), x.softmax(-1, dtype=torch.float32), x.var(1), x.norm(dim=1)),
        (normal(9, 17, dtype=torch.bfloat16),),
    ),
    "looped": Case(lambda x: (x.softmax(-1), x.sum(-1), x.argmax(-1), x.var(-1)), (normal(2, 5000),)),
    "many dimensions": Case(
        lambda x: (x.permute(4, 2, 0, 3, 1).contiguous(), x.sum((1, 3)), x.softmax(2), x.mean((0, 4))),
        (normal(2, 3, 4, 3, 2),),
    ),
    "norms": Case(
        lambda x, w: (F.layer_norm(x, (6,)), F.layer_norm(x, (4, 6)), F.group_norm(x, 2), F.rms_norm(x, (6,), w)),
        (normal(3, 4, 6), normal(6)),
    ),
    "batch norms": Case(nn.Sequential(nn.BatchNorm1d(7), nn.BatchNorm1d(7).eval()), (X,)),
    "losses": Case(
        lambda x, y: (
            *(F.mse_loss(x, y), F.l1_loss(x, y), F.smooth_l1_loss(x, y), F.huber_loss(x, y)),
            *(F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"), F.cosine_similarity(x, y)),
            F.cross_entropy(x, y.softmax(1)),
        ),
        (X, Y),
    ),
    "cross entropies": Case(
        lambda x, t: (
            *(F.cross_entropy(x, t), F.cross_entropy(x, t, label_smoothing=0.1), F.nll_loss(x.log_softmax(1), t)),
            *(F.cross_entropy(x, t, torch.arange(1.0, 8.0)), F.cross_entropy(x, t, reduction="none", ignore_index=2)),
            F.binary_cross_entropy_with_logits(x, F.one_hot(t, 7).float(), pos_weight=torch.ones(7) * 2),
        ),
        (X, LABELS),
    ),
    "cross entropy of images": Case(
        lambda x, t: F.cross_entropy(x, t, torch.arange(1.0, 5.0), ignore_index=1),
        (normal(2, 4, 3, 5), whole(0, 4, 2, 3, 5)),
    ),
}

MOVEMENT: dict[str, Case] = {
    "views": Case(
        lambda x: (
            *(x.unfold(1, 3, 2), x.diagonal(), x.as_strided((2, 3), (1, 2)), x.movedim(0, 1), x.swapaxes(0, 1)),
            *(x.chunk(3, 1)[1], x.split([2, 5], 1)[1], x.view(7, 5), x.narrow(1, 1, 3), x.unflatten(0, (5, 1))),
            *(x.tile(2, 1), x.repeat_interleave(2, 0), x.broadcast_to(2, 5, 7), x.select(1, -1), x.t().reshape(-1)),
        ),
        (X,),
    ),
    "joins": Case(
        lambda x, y: (
            *(torch.stack([x, y], 1), torch.hstack([x, y]), torch.dstack([x, y]), torch.block_diag(x, y)),
            *(torch.meshgrid(x[0], y[1], indexing="ij")[0] + 1, torch.cat([x, y.bfloat16()])),
        ),
        (X, Y),
    ),
    "gathers": Case(
        lambda x, i: (
            *(x[i], x[:, i], x[i, i], x[i][:, i], x.index_select(0, i), x.gather(0, i[None].expand(2, 3))),
            *(x.take(i), x[..., None, i], x[-1], x[[0, 2]], x[-i - 1], x[:, torch.tensor([0, 0, 1])]),
        ),
        (X, POSITIONS),
    ),
    "scatters": Case(
        lambda x, s, i: (
            *(x.scatter(0, i, s), x.scatter_add(0, i, s), x.index_add(0, i[:, 0], s), x.index_fill(0, i[:, 0], 2.0)),
            *(x.index_copy(0, torch.tensor([0, 4, 2]), s), x.scatter_reduce(0, i, s, "amax")),
            x.index_put((i[:, 0],), s, accumulate=True),
        ),
        (X, normal(3, 7), whole(0, 5, 3, 1).expand(3, 7).contiguous()),
    ),
    "slices written": Case(
        lambda x, y: (
            *(torch.slice_scatter(x, y, 1, 1, 6, 2), torch.select_scatter(x, y[:, 0], 1, 3)),
            torch.diagonal_scatter(x, y[:, 1]),
        ),
        (X, normal(5, 3)),
    ),
    "in place": Case(rewritten, (X.detach(),), train=False),
    "embeddings": Case(
        lambda t, i: (F.embedding(i, t, padding_idx=1), F.embedding_bag(i, t, mode="mean"), F.one_hot(i, 6) @ t.long()),
        (normal(6, 4), whole(0, 6, 3, 5)),
    ),
    "pads": Case(
        lambda x: (
            *(F.pad(x, (1, 2), mode="reflect"), F.pad(x, (2, 1), mode="replicate"), F.pad(x, (2, 3), mode="circular")),
            *(F.pad(x, (1, -1, 2, 0)), F.pad(x, (-1, -2))),
        ),
        (normal(2, 3, 6),),
    ),
    "shuffles": Case(
        lambda x: (F.pixel_shuffle(x, 2), F.unfold(x, 2), F.fold(F.unfold(x, 2), (3, 5), 2), F.channel_shuffle(x, 2)),
        (normal(2, 4, 3, 5),),
    ),
    "scans and orders": Case(
        lambda x: (
            *(x.cumsum(0), x.cumprod(1), x.cummax(1).values, x.logcumsumexp(0), x.diff(dim=1), x.flip(0), x.rot90()),
            *(x.sort(1).values, x.topk(3).values, x.kthvalue(2, 1).values, x.argsort(1), x.median(), x.roll(2)),
        ),
        (X,),
    ),
    "creation": Case(
        lambda x: (
            *(x + torch.arange(7), torch.linspace(0, 1, 7) + x, torch.eye(5) @ x, torch.zeros_like(x) + x),
            *(torch.full((5, 7), 2.0) * x, torch.ones(7, dtype=torch.int64) + x, x.tril() - x.triu(1)),
        ),
        (X,),
    ),
    "linear interpolation": Case(lambda x: F.interpolate(x, size=(5, 9), mode="bilinear"), (normal(1, 2, 4, 6),)),
    "nearest interpolation": Case(
        lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, size=(4, 4), mode="nearest-exact")),
        (normal(1, 2, 4, 6),),
    ),
    "cubic interpolation": Case(
        lambda x: F.interpolate(x, size=(7, 7), mode="bicubic", align_corners=True), (normal(1, 1, 4, 6),)
    ),
    "sampling": Case(
        lambda x, theta: F.grid_sample(x, F.affine_grid(theta, [1, 2, 3, 4], align_corners=False), align_corners=False),
        (normal(1, 2, 4, 5), normal(1, 2, 3)),
    ),
}

LIBRARY: dict[str, Case] = {
    "products": Case(
        lambda a, b, v: (
            *(a @ b, a.matmul(v[0]), torch.einsum("bij,bjk->ik", a, b), torch.addmm(v, a[0], b[0])),
            *(torch.outer(v[0], v[1]), torch.dot(v[0], v[0]), torch.mv(a[0], v[0]), torch.kron(v[:2, :2], v[:2, :2])),
        ),
        (normal(2, 5, 5), normal(2, 5, 5), normal(5, 5)),
    ),
    "convolutions": Case(
        nn.Sequential(
            nn.Conv2d(3, 4, 3, 2, 1), nn.GELU(), nn.ConvTranspose2d(4, 3, 2, 2), nn.Conv2d(3, 6, 1, groups=3)
        ),
        (normal(2, 3, 8, 9),),
    ),
    "convolutions of one and three dimensions": Case(
        lambda x, w, y, v: (F.conv1d(x, w, padding="same").relu(), F.conv3d(y, v).tanh()),
        (normal(2, 3, 9), normal(4, 3, 3), normal(1, 2, 4, 4, 4), normal(3, 2, 2, 2, 2)),
    ),
    "pools": Case(
        lambda x, y: (
            *(F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1)),
            *(F.adaptive_max_pool2d(x, 2), F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False)),
            *(F.max_pool1d(x[0], 2), F.max_pool3d(y, 3, 2, 1), F.avg_pool3d(y[0], 2, 1), F.adaptive_avg_pool3d(y, 2)),
        ),
        (normal(2, 3, 7, 8), normal(2, 3, 4, 6, 4)),
    ),
    "attention": Case(
        lambda q, k, v: (
            *(F.scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True)),
            F.scaled_dot_product_attention(q, k, v, torch.ones(5, 5, dtype=torch.bool).tril(), scale=0.3),
            F.scaled_dot_product_attention(q, k, v, torch.arange(25.0).view(5, 5) / 25),
        ),
        (normal(2, 3, 5, 8), normal(2, 3, 5, 8).flip(2).detach().requires_grad_(), normal(2, 3, 5, 8)),
    ),
    "multi-head attention": Case(First(nn.MultiheadAttention(8, 2, batch_first=True), 3), (normal(2, 5, 8),)),
    "encoder layer": Case(transformer(), (normal(2, 5, 8),)),
    "encoder layer in evaluation": Case(transformer().eval(), (normal(2, 5, 8, grad=False),), train=False),
    "gru": Case(recurrent(nn.GRU), (normal(2, 3, 4),)),
    "lstm in inference": Case(recurrent(nn.LSTM), (normal(2, 3, 4, grad=False),), train=False),
    "linear algebra": Case(
        lambda a: (
            *(torch.linalg.det(_definite(a)), torch.linalg.inv(_definite(a)), torch.linalg.cholesky(_definite(a))),
            *(torch.linalg.solve(_definite(a), a), torch.linalg.norm(a), torch.linalg.eigvalsh(_definite(a))),
        ),
        (MATRIX,),
    ),
    "distances": Case(lambda x, y: (torch.cdist(x, y), F.pairwise_distance(x, y), torch.cdist(x, y, p=1)), (X, Y)),
    "fourier": Case(lambda x: (torch.fft.rfft(x).abs(), torch.fft.irfft(torch.fft.rfft(x), n=7)), (X,)),
    "complex": Case(
        lambda x: (
            torch.view_as_real(torch.view_as_complex(x) * torch.polar(torch.ones(5), torch.ones(5))),
            *(torch.complex(x[:, 0], x[:, 1]).abs(), torch.complex(x[:, 0], x[:, 1]).angle()),
            (torch.complex(x[:, 0], x[:, 1]) * (2 - 1j)).real.exp(),
        ),
        (normal(5, 2),),
    ),
    "float8": Case(lambda x: x.to(torch.float8_e4m3fn).to(torch.float32) * 2, (X.detach(),), train=False),
    "weight norm": Case(nn.utils.parametrizations.weight_norm(nn.Linear(7, 4)), (X,)),
    "spectral norm": Case(nn.utils.parametrizations.spectral_norm(nn.Linear(7, 4)), (X,)),
    "checkpoint": Case(Checkpointed(), (X,)),
    "detached": Case(lambda x: (x * x.detach(), x.detach().exp()), (X,)),
}


#: What takes the interpreter long, though it differs little from others: activations, sums and norms are in the odd
#: sizes too, layers and attention in the models.
SLOW = {
    *("activations", "sums", "norms", "batch norms", "losses", "cross entropies", "cubic interpolation"),
    *("gru", "lstm in inference", "encoder layer", "encoder layer in evaluation", "multi-head attention"),
}


@pytest.mark.spread(8)
@pytest.mark.filterwarnings("ignore:The tensor attributes? self.module._flat_weights")  # recurrent layers, of torch
@pytest.mark.parametrize(
    ("cases", "name"),
    [
        pytest.param(cases, name, marks=pytest.mark.slow if name in SLOW else ())
        for cases in (POINTWISE, REDUCTIONS, MOVEMENT, LIBRARY)
        for name in cases
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_operators(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    assert_all_pass(judge(case.function, case.inputs, train=case.train))
