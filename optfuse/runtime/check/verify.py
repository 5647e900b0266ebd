"""Verify a program's results against float64; eager execution's own error sets the limit.

A fused program rounds at other places than eager execution, so the two never agree bit for bit, and a fixed tolerance
is either too loose for one output or too tight for another. An output passes when its relative L2 error against a
float64 reference is at most twice eager's. Two things temper that, and nothing else:

- Where eager is exact, or nearly, the limit is a quarter of the dtype's epsilon: what rounding the exact result once to
  the dtype may make.
- Both errors are estimates from n elements, and their ratio scatters by about 1/sqrt(n) of itself. For n below
  ``ENOUGH`` the limit is widened by three such deviations, a factor of 1 + 3/sqrt(n): 4 for a single number.
  Measured on results, gradients and statistics of GPT-2, BERT, Llama, T5, ViT, ResNet and an MLP, small, in both
  dtypes, with three settings of weights and inputs: of 642 of 100 elements and more the ratio was at most 1.4, but for
  eight gradients of T5 in bfloat16 at one setting (up to 3.7; below 2 at the others); of 804 smaller ones 11 were
  above 2.

Integers and bools must be equal to eager's. A nan never passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Value = torch.Tensor | bool | int | float | None
Flat = Callable[[list[torch.Tensor]], Sequence[Value]]

FACTOR = 2.0

#: From so many elements on, an error is known well enough to be held to the factor itself.
ENOUGH = 100


class InDouble(TorchFunctionMode):
    """Within it, operators that take no float64 are computed by others that do: for references."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func``, or what stands in for it."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "").lstrip("_") == "grouped_mm" and args[0].dtype is torch.float64:
            return _grouped_mm(*args, **kwargs)
        return func(*args, **kwargs)


def _grouped_mm(rows: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor, **_: Any) -> torch.Tensor:
    """Rows in groups that end at ``offs``, each times its group's matrix; what is left over is zero."""
    ends = [0, *offs.tolist()]
    parts = [rows[a:b] @ weight for a, b, weight in zip(ends, ends[1:], weights, strict=False)]
    left = rows.new_zeros(rows.shape[0] - ends[-1], weights.shape[-1])
    return torch.cat([*parts, left])


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """One output. Errors are relative L2 norms, 0 for what must be exact. ``fault`` is empty when it passes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    error: float
    eager_error: float
    fault: str = ""

    @property
    def passed(self) -> bool:
        """Whether the output is right."""
        return not self.fault


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The verdict on every output, and on every input that eager execution changes."""

    outputs: tuple[OutputCheck, ...]

    @property
    def passed(self) -> bool:
        """Whether all outputs are right."""
        return all(check.passed for check in self.outputs)

    @property
    def worst(self) -> OutputCheck | None:
        """The first failure, or the output whose error is largest compared to eager's."""
        failed = [check for check in self.outputs if not check.passed]
        if failed:
            return failed[0]
        return max(self.outputs, key=lambda c: c.error / max(c.eager_error, 1e-30) if c.error else 0.0, default=None)

    def __str__(self) -> str:
        """One line: how many pass, and the worst one."""
        good = sum(check.passed for check in self.outputs)
        line = f"{good} of {len(self.outputs)} outputs agree with float64"
        worst = self.worst
        if worst is None:
            return line
        line += f"; worst: {worst.name} with error {worst.error:.2e}, eager's {worst.eager_error:.2e}"
        return f"{line} ({worst.fault})" if worst.fault else line


def verify(program: Flat, eager: Flat, reference: Flat, inputs: Sequence[torch.Tensor]) -> VerifyReport:
    """Run all three on copies of ``inputs`` and compare their outputs and what they did to their inputs.

    Args:
        program, eager: Functions of a flat list of tensors: the one to judge, and the model in the same dtypes.
        reference: The model in float64: it is given floating-point inputs as float64.
        inputs: Tensors of the program's dtypes and strides. They are left as they are.
    """
    given = [copy_of(x) for x in inputs]
    eager_inputs = [copy_of(x) for x in inputs]
    wide_inputs = [copy_of(x, torch.float64 if x.is_floating_point() else None) for x in inputs]
    with torch.no_grad():
        got = list(program(list(given)))
        expected = list(eager(list(eager_inputs)))
        exact = list(reference(list(wide_inputs)))
    checks = compare(got, expected, exact)
    changed = [
        k for k, (before, after) in enumerate(zip(inputs, eager_inputs, strict=True)) if not _identical(before, after)
    ]
    untouched = [k for k in range(len(inputs)) if k not in changed and not _identical(inputs[k], given[k])]
    mutated = compare(
        [given[k] for k in changed],
        [eager_inputs[k] for k in changed],
        [wide_inputs[k] for k in changed],
        names=[f"input {k}" for k in changed],
    )
    spoilt = tuple(
        OutputCheck(f"input {k}", _dtype(inputs[k]), tuple(inputs[k].shape), 0.0, 0.0, "changed, and eager leaves it")
        for k in untouched
    )
    return VerifyReport((*checks, *mutated, *spoilt))


def compare(
    got: Sequence[Value], eager: Sequence[Value], exact: Sequence[Value], *, names: Sequence[str] | None = None
) -> tuple[OutputCheck, ...]:
    """Judge outputs one by one. ``exact`` holds the float64 results (any dtype where the output is no float)."""
    if not len(got) == len(eager) == len(exact):
        fault = f"{len(got)} outputs where eager has {len(eager)} and float64 {len(exact)}"
        return (OutputCheck("outputs", "", (), 0.0, 0.0, fault),)
    names = [f"output {k}" for k in range(len(got))] if names is None else names
    return tuple(_check(*item) for item in zip(names, got, eager, exact, strict=True))


def copy_of(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The same values with the same strides in memory of their own, in another dtype if wanted."""
    x = x.detach()
    copy = torch.empty_strided(x.shape, x.stride(), dtype=dtype or x.dtype, device=x.device)
    if any(step == 0 and size > 1 for size, step in zip(x.shape, x.stride(), strict=True)):
        # an expanded tensor has fewer elements in memory than it shows, and cannot be written through
        base = x.as_strided(
            [1 if step == 0 else size for size, step in zip(x.shape, x.stride(), strict=True)], x.stride()
        )
        copy.as_strided(base.shape, copy.stride()).copy_(base)
        return copy
    return copy.copy_(x)


def _check(name: str, got: Value, eager: Value, exact: Value) -> OutputCheck:
    if not isinstance(eager, torch.Tensor) or not isinstance(got, torch.Tensor) or not isinstance(exact, torch.Tensor):
        same = type(got) is type(eager) and got == eager
        return OutputCheck(name, type(got).__name__, (), 0.0, 0.0, "" if same else f"{got} where eager has {eager}")

    def verdict(fault: str, error: float = 0.0, eager_error: float = 0.0) -> OutputCheck:
        return OutputCheck(name, _dtype(got), tuple(got.shape), error, eager_error, fault)

    if got.dtype != eager.dtype or got.shape != eager.shape:
        wanted = f"{_dtype(eager)}{list(eager.shape)}"
        return verdict(f"{_dtype(got)}{list(got.shape)} where eager has {wanted}")
    if not (got.is_floating_point() or got.is_complex()):
        wrong = int((got.cpu() != eager.cpu()).sum())
        return verdict(f"{wrong} of {got.numel()} elements differ" if wrong else "")
    a, b, c = (_wide(x) for x in (got, eager, exact))
    if torch.isnan(a).any():
        return verdict(f"{int(torch.isnan(a).sum())} elements are nan", float("nan"))
    if torch.isnan(b).any():
        return verdict(f"{int(torch.isnan(b).sum())} elements of eager are nan: nothing to compare with")
    infinite = torch.isinf(b)
    if not torch.equal(torch.isinf(a), infinite) or not torch.equal(a[infinite], b[infinite]):
        return verdict("infinite at other places than eager", float("inf"))
    finite = torch.isfinite(b) & torch.isfinite(c)
    error, eager_error = relative_l2(a[finite], c[finite]), relative_l2(b[finite], c[finite])
    limit = largest_error(eager_error, got.dtype, a.numel())
    return verdict("" if error <= limit else f"error above {limit:.2e}", error, eager_error)


def largest_error(eager_error: float, dtype: torch.dtype, count: int) -> float:
    """The relative error up to which a result of ``count`` elements passes."""
    limit = max(FACTOR * eager_error, torch.finfo(dtype).eps / 4)
    return limit if count >= ENOUGH else limit * (1 + 3 / max(1, count) ** 0.5)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.detach().cpu().to(torch.complex128 if x.is_complex() else torch.float64)


def relative_l2(x: torch.Tensor, exact: torch.Tensor) -> float:
    """The norm of x - exact over the norm of exact; over the root of the element count where exact is all zero."""
    if x.numel() == 0:
        return 0.0
    scale = float(torch.linalg.vector_norm(exact))
    return float(torch.linalg.vector_norm(x - exact)) / (scale if scale > 0 else x.numel() ** 0.5)


def _identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) if a.is_floating_point() else torch.equal(a, b)


def _dtype(x: torch.Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
