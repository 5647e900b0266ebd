"""Whole programs against eager execution and float64: what a schedule computes, and what it leaves behind.

A result passes when its relative L2 error is at most twice eager's own in the same dtype, plus a quarter of
the dtype's epsilon. Three rules go beyond that:

- The reference is float64 throughout: what a model casts to float32 itself stays float64 there.
- The error of a result of few numbers (a loss) is a sample, and eager's may be near zero by luck; and where a value
  lies at the corner of a ReLU, rounding decides whether a gradient passes. What fails is judged again over up to
  ``DRAWS`` perturbations of weights and inputs, by the medians of both errors: a wrong program is wrong in all of them.
- A result that is zero in exact arithmetic (the gradient of a key's bias, the mean of what has just been normalised) is
  rounding noise in eager too. Its error counts against the scale of the other gradients, buffers or outputs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

import optfuse
from optfuse.runtime.check.verify import FACTOR, InDouble, compare, copy_of

OPTIONS = optfuse.SolveOptions(time_limit=5, workers=1)
GREEDY = optfuse.SolveOptions(solver="greedy", time_limit=5, workers=1)

#: The most perturbations over which a failure is judged again.
DRAWS = 6

#: Eager's CPU kernels accumulate float32 in float64 (batch norm, sums), so that its error says little about a float32
#: program, and float64 results have no better reference: this many units in the last place pass.
ROUNDINGS = {torch.float32: 10.0, torch.float64: 10.0}

#: What is smaller, in float64, than this part of the median among its kind is zero.
ZERO = 1e-9

Results = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A result by name, with its relative errors; ``fault`` is empty when it passes."""

    name: str
    error: float
    eager_error: float
    fault: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.name}: {self.fault or 'passed'} (error {self.error:.2e}, eager's {self.eager_error:.2e})"


class Function(torch.nn.Module):
    """A function as a module without parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result."""
        return self.function(*args, **kwargs)


def judge(
    model: torch.nn.Module | Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    train: bool = False,
    options: optfuse.SolveOptions = OPTIONS,
    draws: int = DRAWS,
) -> list[Row]:
    """Schedule ``model``, run the program, and judge all of its results, gradients and in-place changes."""
    model = model if isinstance(model, torch.nn.Module) else Function(model)
    kwargs = dict(kwargs or {})
    schedule = optfuse.optimize(model, args, kwargs, train=train, options=options, name="case")
    return judge_program(schedule.compile(), model, args, kwargs, train=train, draws=draws)


def judge_program(
    program: Callable[..., Any],
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    train: bool,
    draws: int = DRAWS,
) -> list[Row]:
    """Judge a program that was made from ``model`` and reads its parameters."""
    state, given = copy.deepcopy(model.state_dict()), _copied((args, dict(kwargs)))
    rows: list[Row] = []
    seen: list[dict[str, _Facts]] = []
    for draw in range(draws):
        model.load_state_dict(state)
        inputs = _copied(given)
        if draw:
            _perturb((list(model.parameters()), inputs), draw)
        seen.append(_judge_once(program, model, inputs, train, draw))
        rows = [_pool(name, [facts[name] for facts in seen]) for name in seen[0]]
        if len(seen) != 2 and not any(row.fault for row in rows):  # two draws have no median worth the name
            break
    model.load_state_dict(state)
    return rows


def assert_all_pass(rows: Sequence[Row]) -> None:
    """Name what failed."""
    assert rows, "the program has no results"
    failed = [str(row) for row in rows if row.fault]
    assert not failed, "; ".join(failed)


def check(model: torch.nn.Module | Callable[..., Any], *args: Any, **more: Any) -> None:
    """``judge`` and assert, for positional arguments."""
    assert_all_pass(judge(model, args, **more))


# --- one draw -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Facts:
    """Errors of one draw relative to the exact norm, the dtype's slack, and what is wrong whatever the draw."""

    error: float
    eager_error: float
    slack: float
    floor: float
    fault: str

    def verdict(self) -> str:
        limit = max(FACTOR * self.eager_error + self.slack, self.floor)
        return self.fault or ("" if self.error <= limit else f"error above {limit:.2e}")


def _judge_once(
    program: Callable[..., Any], model: torch.nn.Module, inputs: Any, train: bool, draw: int
) -> dict[str, _Facts]:
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    eager_inputs, exact_inputs = _copied(inputs), _copied(inputs, wide=True)
    found = _outcome(program, model, inputs, train, draw)
    expected = _outcome(eager, eager, eager_inputs, train, draw)
    reference = _outcome(in_double(exact), exact, exact_inputs, train, draw)
    assert found.keys() == expected.keys() == reference.keys(), found.keys() ^ expected.keys()
    return {
        name: _facts(name, found[name], expected[name], reference[name], _scale(reference, name)) for name in expected
    }


def _facts(name: str, got: Any, eager: Any, exact: Any, scale: float) -> _Facts:
    if name.startswith("input") and _untouched(got, eager):
        return _Facts(0.0, 0.0, 0.0, 0.0, "")
    (check,) = compare([got], [eager], [exact], names=[name])
    hard = "" if check.passed or check.fault.startswith("error above") else check.fault
    if not isinstance(got, torch.Tensor) or not got.is_floating_point():
        return _Facts(0.0, 0.0, 0.0, 0.0, hard)
    eps = torch.finfo(got.dtype).eps
    error, eager_error = check.error, check.eager_error
    if not hard and got.numel() and exact.isfinite().all() and _rms(exact) < ZERO * scale:
        unit = scale * math.sqrt(got.numel())
        error, eager_error = (float((x.double() - exact.double()).norm()) / unit for x in (got, eager))
    return _Facts(error, eager_error, eps / 4, ROUNDINGS.get(got.dtype, 0.0) * eps, hard)


def _untouched(got: torch.Tensor, eager: torch.Tensor) -> bool:
    """Whether two inputs are bit for bit what they were, nan included."""
    return torch.equal(got.nan_to_num(), eager.nan_to_num()) and torch.equal(got.isnan(), eager.isnan())


def _pool(name: str, facts: Sequence[_Facts]) -> Row:
    """All draws of a result as one."""
    fault = next((f.fault for f in facts if f.fault), "")
    error, eager_error = median(f.error for f in facts), median(f.eager_error for f in facts)
    return Row(name, error, eager_error, _Facts(error, eager_error, facts[0].slack, facts[0].floor, fault).verdict())


def _outcome(call: Callable[..., Any], owner: torch.nn.Module, inputs: Any, train: bool, draw: int) -> Results:
    """What a call leaves behind: outputs, gradients, the owner's buffers, and the inputs themselves."""
    args, kwargs = inputs
    owner.zero_grad(set_to_none=True)
    with torch.set_grad_enabled(train):
        result = call(*args, **kwargs)
    leaves = pytree.tree_leaves(result)
    found: Results = {f"output {k}": _detached(value) for k, value in enumerate(leaves)}
    if train:
        _backward(leaves, draw)
        found |= {f"gradient of {n}": p.grad.clone() for n, p in owner.named_parameters() if p.grad is not None}
    for k, leaf in enumerate(pytree.tree_leaves(inputs)):
        if isinstance(leaf, torch.Tensor):
            found[f"input {k}"] = _detached(leaf)
            if leaf.requires_grad and leaf.is_leaf and leaf.grad is not None:
                found[f"gradient of input {k}"] = leaf.grad.clone()
    return found | {f"buffer {name}": value.clone() for name, value in owner.named_buffers()}


def _backward(leaves: Sequence[Any], draw: int) -> None:
    """Gradients of the first output if that is a loss, else of a fixed random combination of all of them."""
    outputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if outputs[0].ndim == 0:
        outputs[0].backward()
        return
    generator = torch.Generator().manual_seed(draw)
    directions = [torch.randn(out.shape, generator=generator, dtype=torch.float32).to(out.dtype) for out in outputs]
    torch.autograd.backward(outputs, directions)


def _scale(reference: Results, name: str) -> float:
    """The median size of a result's kind: the first word of its name."""
    kind = name.split()[0]
    alike = [value for other, value in reference.items() if other.split()[0] == kind]
    return median(
        [_rms(x) for x in alike if isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel()] or [0]
    )


def _rms(x: torch.Tensor) -> float:
    finite = x[torch.isfinite(x)].double()
    return float(torch.linalg.vector_norm(finite)) / math.sqrt(max(1, finite.numel()))


def _detached(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


# --- inputs, and the reference's precision ------------------------------------------------------------------------


def _copied(tree: Any, wide: bool = False) -> Any:
    """Independent copies with their strides; one tensor at two places stays one."""
    made: dict[int, torch.Tensor] = {}

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in made:
            dtype = torch.float64 if wide and value.is_floating_point() else None
            made[id(value)] = copy_of(value, dtype).requires_grad_(value.requires_grad)
        return made[id(value)]

    return pytree.tree_map(copied, tree)


@torch.no_grad()
def _perturb(tree: Any, draw: int) -> None:
    """Move every floating-point tensor by a few percent; zeros, infinities and what is expanded stay what they are."""
    generator = torch.Generator().manual_seed(draw)
    for leaf in {id(leaf): leaf for leaf in pytree.tree_leaves(tree)}.values():
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and 0 not in leaf.stride():
            noise = torch.randn(leaf.shape, generator=generator, dtype=torch.float32).to(leaf.dtype)
            leaf.mul_(1 + noise / 16)


class _Wide(TorchFunctionMode):
    """float32 and smaller become float64 wherever a function names them."""

    NARROW = (torch.float32, torch.bfloat16, torch.float16)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func`` with float64 in place of narrower dtypes."""
        if func in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
            return args[0].double()
        args, kwargs = pytree.tree_map_only(
            torch.dtype, lambda dtype: torch.float64 if dtype in self.NARROW else dtype, (args, kwargs or {})
        )
        return func(*args, **kwargs)


def in_double(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` without a narrow dtype inside."""

    def run(*args: Any, **kwargs: Any) -> Any:
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with InDouble(), _Wide():
                return function(*args, **kwargs)
        finally:
            torch.set_default_dtype(default)

    return run
