"""Whether a compiled program of ``fuzzed`` does what eager does: results, gradients, writes, strides and aliasing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.oracle.judging import in_double
from tests.torch_compile.fuzzed import Program, overlaps

#: An error passes up to so many times eager's own, and so many units in the last place of the largest value.
FACTOR, ROUNDINGS = 3.0, 8.0


@dataclass(frozen=True, slots=True)
class Ran:
    """What a call leaves behind: its results, the arguments after it, and the leaves' gradients."""

    results: tuple[Any, ...]
    arguments: tuple[Tensor, ...]
    before: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]

    def values(self) -> dict[str, Any]:
        """By name, all that has numbers. How gradients lie in memory is not promised: ``.grad`` has its own way."""
        found = {f"result {k}": x for k, x in enumerate(self.results)}
        found |= {f"argument {k}": x for k, x in enumerate(self.arguments)}
        return found | {f"gradient {k}": x if x is None else x.contiguous() for k, x in enumerate(self.gradients)}


def ran(function: Callable[..., Any], program: Program, seed: int, wide: bool = False) -> Ran:
    """Call a function on the program's inputs of a seed, and take a loss's gradients outside of it."""
    leaves, arguments = program.inputs(seed, wide)
    before = tuple(arguments)
    results = function(*arguments)
    given = [x for x in (*results, *arguments) if isinstance(x, Tensor) and x.requires_grad and not x.is_leaf]
    gradients: Sequence[Tensor | None] = [None] * len(leaves)
    if leaves and given:
        loss = torch.stack([(x * directions(x)).sum().double() for x in given]).sum()
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return Ran(tuple(results), tuple(arguments), before, tuple(gradients))


def directions(x: Tensor) -> Tensor:
    """Weights of a loss: small, of either sign, exact in every dtype."""
    return (torch.arange(x.numel()).reshape(x.shape) % 5 - 1.5).to(x.dtype)


def faults(program: Program, backend: Any, seeds: Sequence[int] = (1, 2), **options: Any) -> list[str]:
    """What differs from eager when the program is compiled, over calls with several values."""
    return faults_of_calls([(program, seed) for seed in seeds], backend, **options)


def faults_of_calls(calls: Sequence[tuple[Program, int]], backend: Any, **options: Any) -> list[str]:
    """What differs from eager when programs of one text are compiled once and called, each with a seed's values."""
    torch.compiler.reset()
    function = calls[0][0].function()
    compiled = torch.compile(function, backend=backend, **options)
    for program, seed in calls:
        try:
            wanted = ran(function, program, seed)
            exact = ran(in_double(function), program, seed, wide=True)
        except (RuntimeError, IndexError, TypeError, ValueError, ZeroDivisionError):
            return []  # other values may not be eager's
        got = ran(compiled, program, seed)
        found = disagreements(got, wanted, exact, coarsest(program), largest(program, seed))
        if found:
            return [f"values {seed} of {[a.shape for a in program.arguments]}: {fault}" for fault in found]
    return []


def coarsest(program: Program) -> float:
    """The unit of rounding of the program's narrowest dtype: a wide result may come of narrow values."""
    found = (name for name in ("bfloat16", "float16") if name in str(program).replace("half", "float16"))
    return torch.finfo(getattr(torch, next(found, "float64"))).eps


def largest(program: Program, seed: int) -> float:
    """The largest magnitude among the inputs and the values that the lines name, in float64."""
    scope: dict[str, Any] = {f"a{k}": x for k, x in enumerate(program.inputs(seed, wide=True)[1])}
    scope |= {"torch": torch, "F": F}
    in_double(lambda: exec("\n".join(program.lines), scope))()
    values = [x.detach() for x in scope.values() if isinstance(x, Tensor) and x.dtype == torch.float64]
    return max((float(x[x.isfinite()].abs().max()) for x in values if x.isfinite().any()), default=0.0)


def disagreements(got: Ran, wanted: Ran, exact: Ran, within: float = 0.0, largest_double: float = 0.0) -> list[str]:
    """Every difference, a line each.

    ``within``: the relative error of values on the way to the results. ``largest_double``: what the roundings of a
    float64 result are counted against. No wider dtype tells eager's own error in it, and where large values cancel
    that one may be the larger.
    """
    ours, theirs, wide = got.values(), wanted.values(), exact.values()
    if ours.keys() != theirs.keys():
        return [f"{len(ours)} values where eager has {len(theirs)}"]
    found = [
        f"{name}: {fault}"
        for name in theirs
        if (fault := _differs(ours[name], theirs[name], wide.get(name), within, largest_double))
    ]
    return found + _memory(got, wanted)


def _differs(got: Any, wanted: Any, exact: Any, within: float, largest_double: float) -> str:
    if not isinstance(got, Tensor) or not isinstance(wanted, Tensor):
        return "" if got is None and wanted is None else f"{got} where eager has {wanted}"
    facts = [(x.dtype, tuple(x.shape), x.requires_grad, [] if overlaps(wanted) else _strides(x)) for x in (got, wanted)]
    if facts[0] != facts[1]:
        return f"{facts[0]} where eager has {facts[1]}"
    if not isinstance(exact, Tensor) or exact.shape != wanted.shape:
        exact = wanted
    if not wanted.dtype.is_floating_point:
        same = torch.equal(got, wanted) or not torch.equal(wanted.double(), exact.double())
        return "" if same else f"{got.tolist()} where eager has {wanted.tolist()}"
    error = max(ROUNDINGS * torch.finfo(wanted.dtype).eps, within)
    scale = largest_double if wanted.dtype == torch.float64 else 0.0
    return _far(got.detach().double(), wanted.detach().double(), exact.detach().double(), error, scale)


def _far(got: Tensor, wanted: Tensor, exact: Tensor, relative: float, scale: float) -> str:
    for special in (torch.isnan, torch.isposinf, torch.isneginf):
        if not (torch.equal(special(got), special(wanted)) or torch.equal(special(got), special(exact))):
            return f"{got.tolist()} where eager has {wanted.tolist()}: nan or infinite"
    finite = got.isfinite() & wanted.isfinite() & exact.isfinite()
    if not finite.any():
        return ""
    error, eager = ((x - exact)[finite].abs() for x in (got, wanted))
    limit = FACTOR * float(eager.max()) + relative * max(float(exact[finite].abs().max()), scale, 1e-3)
    if float(error.max()) <= limit:
        return ""
    return f"{got.tolist()} where eager has {wanted.tolist()}, exact {exact.tolist()}"


def _strides(x: Tensor) -> list[int]:
    """The strides that mean something: those of dimensions of more than one element, where there are elements."""
    return [step for step, size in zip(x.stride(), x.shape, strict=True) if size > 1 and x.numel()]


def _memory(got: Ran, wanted: Ran) -> list[str]:
    """Which results and arguments share elements, and which are one object, unlike in eager."""
    found = []
    every = [[x for x in (*run.results, *run.arguments) if isinstance(x, Tensor)] for run in (got, wanted)]
    places = [[_places(x) for x in values] for values in every]
    first = len(wanted.results)
    for a in range(len(every[1])):
        for b in range(a):
            shared = [_shared(p[b], p[a]) for p in places]
            if shared[0] != shared[1]:
                found.append(f"{_name(b, first)} and {_name(a, first)} share {shared[0]}, in eager {shared[1]}")
            if (every[0][a] is every[0][b]) != (every[1][a] is every[1][b]):
                found.append(f"{_name(b, first)} and {_name(a, first)} are one object here or in eager alone")
    return found


def _name(k: int, results: int) -> str:
    return f"result {k}" if k < results else f"argument {k - results}"


def _places(x: Tensor) -> list[int]:
    """The address of each element."""
    if not x.numel():
        return []
    places = torch.zeros((), dtype=torch.int64)
    for size, step in zip(x.shape, x.stride(), strict=True):
        places = places[..., None] + torch.arange(size) * step
    return (places * x.element_size() + x.data_ptr()).flatten().tolist()


def _shared(one: list[int], other: list[int]) -> list[tuple[int, int]]:
    """Pairs of element numbers that lie at one address."""
    where: dict[int, int] = {}
    for k, place in enumerate(other):
        where.setdefault(place, k)
    return [(k, where[place]) for k, place in enumerate(one) if place in where][:4]


def smaller(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A program that fails too and from which no line, result or argument's memory can be taken."""
    shrunk = True
    while shrunk:
        shrunk = False
        candidates = [replace(program, returned=_without(program.returned, k)) for k in range(len(program.returned))]
        candidates += [replace(program, lines=_without(program.lines, k)) for k in range(len(program.lines))]
        for candidate in candidates:
            if candidate.returned and fails(candidate):
                program, shrunk = candidate, True
                break
    return program


def _without(items: tuple[str, ...], k: int) -> tuple[str, ...]:
    return items[:k] + items[k + 1 :]
