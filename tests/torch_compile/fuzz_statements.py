"""Statements of random programs: each template draws the text of one, given the values so far."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.torch_compile.fuzz_inputs import DTYPES, FLOATS, SHAPES, extent, strides


@dataclass
class State:
    """The values so far, in their own dtypes and in float64."""

    rng: random.Random
    values: dict[str, Tensor] = field(default_factory=dict)
    wide: dict[str, Tensor] = field(default_factory=dict)

    def pick(self, accept: Callable[[Tensor], bool] = lambda x: True) -> str:
        """The name of a value, rather a late one."""
        names = [name for name, x in self.values.items() if accept(x)]
        if not names:
            raise LookupError
        return self.rng.choice(names[-3:]) if self.rng.random() < 0.5 else self.rng.choice(names)

    def exact(self, name: str) -> bool:
        """Whether a value is the same in float64."""
        x, y = self.values[name], self.wide[name]
        return x.shape == y.shape and torch.equal(x.double().nan_to_num(7.5), y.double().nan_to_num(7.5))


Template = Callable[[State], str]


def dim(s: State, x: str) -> int:
    n = s.values[x].dim()
    return s.rng.randrange(-n, n) if n else s.rng.choice([0, -1])


def size(s: State, x: str, d: int) -> int:
    value = s.values[x]
    return value.shape[d] if value.dim() else 1


def scalar(s: State) -> str:
    return s.rng.choice("True False 0 1 2 3 -1 -2 7 0.5 -1.5 2.0 0.25 1.0 -0.0 0.3 -0.7".split())


def dtype(s: State) -> str:
    return f"torch.{s.rng.choice(DTYPES)}"


def slices(s: State, x: str) -> str:
    """An index of slices, numbers, None and an ellipsis."""
    parts = []
    for n in s.values[x].shape:
        kind = s.rng.random()
        if kind < 0.3 or not n:
            parts.append(":")
        elif kind < 0.5:
            parts.append(str(s.rng.randrange(-n, n)))
        else:
            low, high = s.rng.randrange(-n, n), s.rng.choice(["", s.rng.randrange(-n, n + 1)])
            parts.append(f"{s.rng.choice(['', low])}:{high}:{s.rng.choice(['', '', 2, 3])}")
    if s.rng.random() < 0.1:
        parts.insert(s.rng.randrange(len(parts) + 1), "None")
    if s.rng.random() < 0.15 and parts:
        parts[s.rng.randrange(len(parts))] = "..."
    return ", ".join(parts) or "..."


def operand(s: State, x: str) -> str:
    """A scalar, or a value that broadcasts with x."""
    if s.rng.random() < 0.4:
        return scalar(s)
    shape = s.values[x].shape

    def fits(y: Tensor) -> bool:
        return all(m == n or 1 in (m, n) for m, n in zip(shape[::-1], y.shape[::-1], strict=False))

    return s.pick(fits)


def index(s: State, x: str, d: int, count: int | None = None) -> str:
    n = max(size(s, x, d), 1)
    count = s.rng.randrange(0, 4) if count is None else count
    low = 0 if s.rng.random() < 0.7 else -n
    return f"torch.tensor({[s.rng.randrange(low, n) for _ in range(count)]}, dtype=torch.int64)"


def like_index(s: State, x: str, d: int, other: bool = True) -> str:
    """Places along d, in the shape of x, or of less."""
    shape = list(s.values[x].shape)
    n = max(size(s, x, d), 1)
    if not shape:
        return "torch.tensor(0)"
    text = f"(torch.arange({s.values[x].numel()}).view({shape}) * {s.rng.choice([1, 3, 5])} % {n})"
    return text + (f".narrow({d}, 0, {max(1, shape[d] - 1)})" if other and shape[d] and s.rng.random() < 0.4 else "")


def floating(x: Tensor) -> bool:
    return x.is_floating_point()


def window(s: State, x: str) -> str:
    """Size, stride and offset of a window of x's storage.

    A place in it is asked for where x begins at 0: of what else lies in a storage, torch's own traces keep no record.
    """
    value = s.values[x]
    total = value.untyped_storage().nbytes() // value.element_size()
    for _ in range(20):
        shape = s.rng.choice(SHAPES)
        stride = strides(s.rng, shape)
        offset = None if value.storage_offset() else s.rng.choice([None, 0, 1, 2])
        if extent(shape, stride) + (value.storage_offset() if offset is None else offset) <= total:
            return f"{shape}, {stride}" + ("" if offset is None else f", {offset}")
    raise LookupError


def view(s: State) -> str:
    """A view of a value."""
    x = s.pick()
    shape, r = list(s.values[x].shape), s.rng
    d, e = dim(s, x), dim(s, x)
    n = size(s, x, d)
    k = r.randrange(1, max(n, 1) + 1)
    order = r.sample(range(len(shape)), len(shape))
    forms = [
        f"{x}[{slices(s, x)}]",
        f"{x}[{slices(s, x)}]",
        f"{x}.transpose({d}, {e})",
        f"{x}.permute({order})",
        f"{x}.unfold({d}, {k}, {r.choice([1, 1, 2])})",
        f"{x}.diagonal({r.choice([0, 0, 1, -1])}, {d}, {e})",
        f"{x}.unsqueeze({d})",
        f"{x}.squeeze()",
        f"{x}.squeeze({d})",
        f"{x}.expand({r.choice([2, 1, 3])}, {', '.join(str(r.choice([-1, n])) for n in shape)})",
        f"{x}.view(-1)",
        f"{x}.reshape(-1)",
        f"{x}.flatten()",
        f"{x}.narrow({d}, {n - k}, {k})",
        f"{x}.select({d}, {k - 1})",
        f"{x}.chunk(2, {d})[{r.choice([0, -1])}]",
        f"{x}.split({k}, {d})[-1]",
        f"{x}.unbind({d})[0]",
        f"{x}.detach()",
        f"{x}.movedim({d}, {e})",
        f"{x}.T",
        f"{x}.view({x}.shape)",
        f"{x}.expand_as(torch.empty(2, *{shape}))",
        f"{x}.contiguous()",
        f"{x}.to({x}.dtype)",
        f"{x}.reshape({shape[::-1]})",
    ]
    return r.choice(forms)


def strided(s: State) -> str:
    x = s.pick()
    return f"{x}.as_strided({window(s, x)})"


def as_complex(s: State) -> str:
    x = s.pick(lambda x: x.dtype in (torch.float32, torch.float64))
    r = s.rng.choice(["", ".conj()", ".t()", "[..., :1]", " * 2", ".flatten()", "[..., ::2]"])
    made = f"torch.complex({x}, {x}){r}" if s.rng.random() < 0.6 else f"torch.view_as_complex({x}){r}"
    return s.rng.choice(
        [f"torch.view_as_real(({made}).resolve_conj())", f"({made}).real", f"({made}).imag", f"({made}).abs()"]
    )


def in_place(s: State) -> str:
    """A statement that writes into a value or a window of it."""
    x = s.pick()
    r = s.rng
    base = x if r.random() < 0.6 else f"{x}[{slices(s, x)}]"
    y, d = operand(s, x), dim(s, x)
    t = y if y in s.values else f"torch.tensor({y})"
    forms = [
        f"{base}.{r.choice(['add_', 'mul_', 'sub_', 'div_', 'pow_', 'floor_divide_', 'remainder_'])}({y})",
        f"{base}.{r.choice(['add_', 'mul_', 'sub_'])}({y})",
        f"{base}.add_({y}, alpha={r.choice([2, -1, 0.5])})",
        f"{base}.copy_({t})",
        f"{base}.masked_fill_({r.choice([x, base])} > 0, {scalar(s)})",
        f"{base}.zero_()",
        f"{base}.fill_({y})",
        f"{base}.{r.choice('neg_ abs_ relu_ exp_ floor_ tanh_ square_ logical_not_ sigmoid_'.split())}()",
        f"{base}.{r.choice(['lt_', 'eq_', 'logical_and_', 'bitwise_xor_', 'bitwise_and_', 'ge_', 'fmod_'])}({y})",
        f"{base}.clamp_({scalar(s)}, {scalar(s)})",
        f"{x}[{slices(s, x)}] = {y}",
        f"{x}[{slices(s, x)}] = {y}",
        f"{x}[{slices(s, x)}] += {y}",
        f"{x} *= {y}",
        f"{x}[{x} > 0] = {scalar(s)}",
        f"{x}.index_put_(({index(s, x, 0, 3)},), {t}.to({x}.dtype), {r.choice([True, False])})",
        f"{x}[{index(s, x, 0)}] = {y}",
        f"{x}[{index(s, x, 0)}] += {scalar(s)}",
        f"{x}.index_fill_({d}, {index(s, x, d)}, {scalar(s)})",
        f"{x}.index_add_({d}, {index(s, x, d, 2)}, {x}.narrow({d}, 0, 2))",
        f"{x}.index_copy_({d}, torch.tensor([1, 0]), {x}.narrow({d}, 0, 2))",
        f"{x}.scatter_({d}, {like_index(s, x, d)}, {r.choice([scalar(s), x + ' * 2'])})",
        f"{x}.scatter_add_({d}, {like_index(s, x, d)}, {x})",
        f"{base}.cumsum_({d})",
        f"{x}.fill_diagonal_({scalar(s)})",
        f"{base}.tril_()",
        f"{x}.transpose_({d}, {dim(s, x)})" if r.random() < 0.2 else f"{base}.t().add_({y})",
        f"{x}.diagonal(0, {d}, {dim(s, x)}).{r.choice(['add_', 'copy_', 'mul_'])}({t})",
        f"{x}.as_strided({window(s, x)}).{r.choice(['add_', 'fill_', 'mul_'])}({scalar(s)})",
        f"{x}.unfold({d}, 2, 2).mul_({scalar(s)})",
        f"{base}.addcmul_({x}, {t}, value={r.choice([1, 2, 0.5])})",
        f"{base}.lerp_({t}, 0.25)",
        f"{base}.where({x} > 0, {t})",
        f"torch.add({x}, {y}, out={x})",
    ]
    return r.choice(forms)


def binary(s: State) -> str:
    x = s.pick()
    y = operand(s, x)
    r = s.rng
    op = r.choice("+ - * / // % ** < <= == != > >= & | ^ << >>".split())
    forms = [
        *[f"{x} {op} {y}" if r.random() < 0.7 else f"{y} {op} {x}"] * 6,
        f"torch.{r.choice('minimum maximum fmin fmax logical_and logical_or logical_xor'.split())}({x}, {y})",
        f"torch.{r.choice('atan2 hypot copysign remainder fmod floor_divide float_power'.split())}({x}, {y})",
        f"torch.{r.choice('eq ne lt ge bitwise_and bitwise_or xlogy heaviside gcd nextafter ldexp'.split())}({x}, {y})",
        f"torch.div({x}, {y}, rounding_mode={r.choice(['None', repr('floor'), repr('trunc')])})",
        f"torch.{r.choice(['add', 'sub', 'rsub'])}({x}, {y}, alpha={r.choice([2, -1, 0.5, True])})",
        f"torch.where({x} > {r.choice([0, 1, 0.5])}, {x}, {y})",
        f"torch.where({x} > {r.choice([0, 1, 0.5])}, {scalar(s)}, {y})",
        f"torch.clamp({x}, {y}, {scalar(s)})"
        if y not in s.values
        else f"torch.clamp({x}, {r.choice(['None', y])}, {y})",
        f"{x}.clamp({r.choice(['min', 'max'])}={y})",
        f"{x}.masked_fill({x} < 1, {scalar(s)})",
        f"torch.lerp({x}, {y}, {r.choice(['0.25', x])})",
        f"torch.addcmul({x}, {y}, {x}, value={r.choice([1, 2, 0.5, -1])})",
        f"torch.addcdiv({x}, {y}, {x} * {x} + 1, value={r.choice([1, 2, 0.5])})",
    ]
    return r.choice(forms)


UNARY = (
    "abs neg sign floor ceil round trunc frac exp tanh sigmoid sin cos erf square relu positive logical_not "
    "bitwise_not isnan isinf isfinite signbit reciprocal atan exp2 expm1 sgn nan_to_num deg2rad softplus gelu silu "
    "leaky_relu elu "
    "hardtanh hardswish relu6 mish celu selu softsign tanhshrink softshrink hardshrink threshold"
).split()
CONVERTING = ("bool", "long", "int", "short", "byte", "char", "half", "bfloat16", "float", "double")


def unary(s: State) -> str:
    x = s.pick()
    r = s.rng
    name = r.choice(UNARY)
    if name == "threshold":
        return f"F.threshold({x}, 0.5, -1.0)"
    if not hasattr(torch, name) or name in ("relu", "selu", "celu"):
        return f"F.{name}({x})"
    return f"torch.{name}({x})"


def converted(s: State) -> str:
    x = s.pick()
    r = s.rng
    forms = [
        f"{x}.to({dtype(s)})",
        f"{x}.{r.choice(CONVERTING)}()",
        f"{x}.type_as({s.pick()})",
        f"{x}.{r.choice(['clone', 'contiguous'])}()",
        f"({x}.abs() + 0.5).{r.choice(['sqrt', 'rsqrt', 'log', 'log1p', 'log2'])}()",
        f"torch.{r.choice(['zeros', 'ones', 'empty'])}_like({x}, dtype={dtype(s)}).fill_({scalar(s)})",
        f"torch.full_like({x}, {scalar(s)})",
        f"{x}.new_full({list(s.values[x].shape)}, {scalar(s)})",
        f"{x}.new_zeros(2, 3)",
        f"torch.arange({r.choice([0, 3, 5])}, {r.choice([6, 7])}, {r.choice([1, 2, 0.5])}, dtype={dtype(s)})",
        f"torch.tensor({r.choice(['1', '2.5', 'True', '[1, 2, 3]', '[0.5, -1.0]', '[]'])})",
        f"torch.eye(3, {r.choice([3, 4])})",
        f"torch.linspace(0, 1, {r.choice([1, 5, 0])})",
    ]
    return r.choice(forms)


def reduced(s: State) -> str:
    x = s.pick()
    r = s.rng
    d, keep = dim(s, x), r.choice(["", ", keepdim=True"])
    name = r.choice("sum mean amax amin prod any all argmax argmin logsumexp count_nonzero nansum sum sum".split())
    others = f"({d}, {dim(s, x)})" if r.random() < 0.3 else str(d)
    y = s.pick(floating)
    e = dim(s, y)
    forms = [
        f"{x}.{name}({d}{'' if name == 'count_nonzero' else keep})",
        f"{x}.{name}({d}{'' if name == 'count_nonzero' else keep})",
        f"{x}.{r.choice('sum mean prod any all max min argmax argmin amax norm var'.split())}()",
        f"{x}.{r.choice(['sum', 'mean', 'amax', 'amin'])}({others}{keep})",
        f"{x}.{r.choice(['sum', 'prod', 'mean', 'cumsum'])}({d}, dtype={dtype(s)})",
        f"{x}.{r.choice(['cumsum', 'cumprod'])}({d})",
        f"{y}.{r.choice(['logcumsumexp', 'softmax', 'log_softmax'])}({e})",
        f"F.softmax({y}, {e}, dtype=torch.{s.rng.choice(FLOATS)})",
        f"F.{r.choice(['softmax', 'softmin', 'log_softmax', 'normalize'])}({y}, dim={e})",
        f"{x}.{r.choice(['max', 'min', 'cummax', 'cummin', 'median', 'mode'])}({d})[{r.choice([0, 1, 0])}]",
        f"{x}.{r.choice(['var', 'std'])}({d}, correction={r.choice([0, 1, 2])}{keep})",
        f"torch.linalg.vector_norm({x}, {r.choice([2, 1, 0, 3, float('inf')])!r}, {d})".replace("inf", "float('inf')"),
        f"{x}.sort({d}, descending={r.choice([True, False])}, stable=True)[{r.choice([0, 1])}]"
        if r.random() < 0.5
        else f"torch.sort({x}, {d})[0]",
        f"{x}.detach().topk({r.choice([1, 2])}, {d}, largest={r.choice([True, False])})[0]",  # of equals any one
        f"{x}.argsort({d}, stable=True)",
        f"F.layer_norm({x}, [{size(s, x, -1)}])",
        f"{x}.aminmax()[{r.choice([0, 1])}]",
        f"{x}.diff(dim={d})",
    ]
    return r.choice(forms)


def moved(s: State) -> str:
    x = s.pick()
    r = s.rng
    d, n = dim(s, x), size(s, x, dim(s, x))
    rest = s.values[x].shape

    def beside(y: Tensor) -> bool:
        return y.dim() == len(rest) and all(
            m == k or j == d % max(len(rest), 1) for j, (m, k) in enumerate(zip(rest, y.shape, strict=True))
        )

    y = s.pick(beside)
    folds, both = ["sum", "amax", "amin", "mean", "prod"], [True, False]
    pads = [r.choice([0, 1, 2, -1]) for _ in range(2 * r.randrange(1, max(2, len(rest) + 1)))]
    forms = [
        f"torch.cat([{x}, {y}], {d})",
        f"torch.cat([{y}, {x}, {x}], {d})",
        f"torch.stack([{x}, {x}], {d})",
        f"F.pad({x}, {pads}, value={scalar(s)})",
        f"F.pad({x}, {pads})",
        f"F.pad({x}, {[abs(p) for p in pads[:2]]}, mode={r.choice(['reflect', 'replicate', 'circular'])!r})",
        f"{x}.roll({r.choice([1, -1, 5])}, {d})",
        f"{x}.roll({r.choice([1, -1, 5])})",
        f"{x}.flip({d})",
        f"{x}.flip({list(range(len(rest)))})",
        f"{x}.gather({d}, {like_index(s, x, d)})",
        f"{x}.scatter({d}, {like_index(s, x, d, False)}, {r.choice([scalar(s), y])})",
        f"{x}.scatter_add({d}, {like_index(s, x, d)}, {x})",
        f"{x}.scatter_reduce({d}, {like_index(s, x, d)}, {x}, {r.choice(folds)!r}, include_self={r.choice(both)})",
        f"{x}.index_select({d}, {index(s, x, d).replace('-', '')})",
        f"{x}.take_along_dim({like_index(s, x, d)}, {d})",
        f"{x}[{index(s, x, 0)}]",
        f"{x}[..., {index(s, x, -1)}]",
        f"{x}[{index(s, x, 0, 2)}, {index(s, x, 1, 2) if len(rest) > 1 else 'None'}]",
        f"{x}.{r.choice(['tril', 'triu'])}({r.choice([0, 1, -1])})",
        f"{x}.repeat({', '.join(str(r.choice([1, 2])) for _ in rest) or '2'})",
        f"{x}.repeat_interleave(2, {d})",
        f"torch.slice_scatter({x}, {x}.narrow({d}, 0, 1) * 2, {d}, 0, 1)",
        f"torch.select_scatter({x}, {x}.select({d}, 0) + 1, {d}, 0)",
        f"torch.diag_embed({x})",
        f"torch.rot90({x}, 1, (0, -1))",
        f"F.one_hot(({x}.long() % 3).abs(), 3)",
        f"torch.bucketize({x}, torch.tensor([-1.0, 0.5, 2.0]))",
        f"{x}.unflatten({d}, (-1, 1))",
        f"{x} @ {x}.mT" if len(rest) > 1 else f"torch.outer({x}, {x})",
        f"{x}.take({index(s, x, 0)})",
        f"torch.masked.sum({x}, {d}, mask={x} > 0)" if r.random() < 0.2 else f"torch.nn.functional.glu({x}, {d})",
        f"torch.as_strided_scatter({x}, {x}.flatten()[:2] * 2, (2,), (1,), 0)"
        if not s.values[x].storage_offset()
        else x,
        f"{x}.cross({x} + 1, dim={d})" if n == 3 else f"{x}.logical_not().cumsum({d})",
    ]
    return r.choice(forms)


#: (how often, template, whether it defines a value)
TEMPLATES: list[tuple[int, Template, bool]] = [
    (22, view, True),
    (4, strided, True),
    (2, as_complex, True),
    (20, in_place, False),
    (18, binary, True),
    (8, unary, True),
    (8, converted, True),
    (10, reduced, True),
    (12, moved, True),
]

#: Text of operators that take no approximate values: near a jump any two programs differ.
JUMPS = (
    "floor ceil round trunc frac sign sgn // % > < == != long int short byte char bool half arg max min sort topk "
    "median mode where clamp fmod remainder logical any( all( one_hot bucketize count_nonzero heaviside relu hard "
    "shrink threshold .to( type_as nextafter copysign elu gcd & | ^ << >> uint8 norm( isfinite isnan isinf ldexp lerp "
    "prod "
    "cumprod var std atan2 abs ** pow reciprocal lt_ eq_ ge_ new_ / div"
).split()
