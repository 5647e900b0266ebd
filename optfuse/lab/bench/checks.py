"""Does a system compute what the model computes? Against float64 where that fits, with eager's own error as measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch.utils import _pytree as pytree

from optfuse.lab.bench.records import Record
from optfuse.lab.bench.systems import Case, restore, snapshot, widened
from optfuse.runtime.check.verify import FACTOR

#: Items of the batch that float64 computes for inference.
ITEMS = 2
#: Runs that are averaged where a model draws random numbers.
DRAWS = 4
#: A gradient smaller than this part of the largest is not judged by itself.
SMALL = 1e-4

Values = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Reference:
    """Float64 results by name on the CPU, and of how many items (None: the whole batch). ``reason``: why none."""

    values: Values
    items: int | None
    reason: str = ""


def reference(case: Case) -> Reference:
    """Run the model in float64: a slice of the batch for inference, a whole training step or decode step."""
    if case.task.train and is_random(case.model):
        return Reference({}, None, "the model draws random numbers")
    items = None if case.task.train or case.task.batch else ITEMS
    model = widened(case)
    try:
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda x: _wide(x[:items] if x.dim() else x), (case.args, case.kwargs)
        )
        wide = Case(case.task, model, args, kwargs, case.loss)
        return Reference({k: v.cpu() for k, v in results(wide, lambda: wide.run(model)).items()}, items)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:  # out of memory, or not every input has items
        return Reference({}, None, f"no float64 reference: {type(error).__name__}: {str(error)[:200]}")
    finally:
        model.zero_grad(set_to_none=True)


def check(case: Case, step: Callable[[], Any], exact: Reference) -> Record:
    """Compare a system's run with eager's and with float64.

    ``passed`` by the rule of ``runtime.check.verify``: an error at most twice eager's, for the outputs of inference and
    for the loss and the median gradient of a training step. Random models are compared by the mean gradient of some
    runs, with the distance of two such means of eager's as the measure.
    """
    if case.task.train and is_random(case.model):
        return _by_draws(case, step)
    state = snapshot(case.model)
    ours = _kept(case, step, exact)
    restore(case.model, state)
    eager = _kept(case, lambda: case.run(case.model), exact)
    restore(case.model, state)
    distance = _errors(ours, eager)
    found: Record = {"distance_to_eager": _summary(distance), "against": "eager", "passed": None}
    if exact.values:
        wide = {name: value.to(next(iter(ours.values())).device) for name, value in exact.values.items()}
        mine, theirs = _errors(ours, wide), _errors(eager, wide)
        limit = {name: FACTOR * theirs[name] + _slack(ours[name]) for name in mine}
        worse = [name for name in mine if mine[name] > limit[name]]
        passed = _summary(mine) <= FACTOR * _summary(theirs) + max(map(_slack, ours.values()))
        found |= {"against": "float64", "error": _summary(mine), "eager_error": _summary(theirs), "passed": passed}
        found["worse"] = f"{len(worse)} of {len(mine)}" + (f", such as {worse[0]}" if worse else "")
    else:
        found["note"] = exact.reason
    return found


def results(case: Case, step: Callable[[], Any]) -> Values:
    """What a run leaves: tensors of the result, and gradients of the parameters after a training step."""
    outputs = step()
    if not case.task.train:
        leaves = [x for x in pytree.tree_leaves(outputs) if isinstance(x, torch.Tensor) and x.is_floating_point()]
        return {f"output {k}": value for k, value in enumerate(leaves)}
    gradients = {name: p.grad for name, p in case.model.named_parameters() if p.grad is not None}
    return {"loss": case.loss(outputs).detach(), **gradients}


def is_random(model: torch.nn.Module) -> bool:
    """Whether a training step drops values at random."""
    return any(isinstance(module, torch.nn.Dropout) and module.p > 0 and module.training for module in model.modules())


def _kept(case: Case, step: Callable[[], Any], exact: Reference) -> Values:
    """Results in memory of their own, of as many items as the reference has."""
    items = exact.items
    return {
        name: (value[:items] if items is not None and value.dim() else value).clone()
        for name, value in results(case, step).items()
    }


def _by_draws(case: Case, step: Callable[[], Any]) -> Record:
    state = snapshot(case.model)

    def mean(run: Callable[[], Any]) -> Values:
        total: Values = {}
        for _ in range(DRAWS):
            for name, value in results(case, run).items():
                wide = value.detach().float() / DRAWS
                total[name] = total[name] + wide if name in total else wide.clone()
        restore(case.model, state)
        return total

    def eager() -> Any:
        return case.run(case.model)

    first = mean(eager)
    spread, ours = _errors(mean(eager), first), _errors(mean(step), first)
    passed = _summary(ours) <= 1.5 * _summary(spread) and ours.keys() == spread.keys()
    return {"against": "eager's own spread", "error": _summary(ours), "eager_error": _summary(spread), "passed": passed}


def _errors(values: Values, exact: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Relative L2 distances by name; gradients that vanish beside the others are left out."""
    norms = {name: float(torch.linalg.vector_norm(value.double())) for name, value in exact.items()}
    largest = max((norm for name, norm in norms.items() if name != "loss"), default=0.0)
    return {
        name: float(torch.linalg.vector_norm(values[name].double() - exact[name].double())) / max(norms[name], 1e-30)
        for name in exact
        if name in values and (norms[name] >= SMALL * largest or name == "loss")
    }


def _summary(errors: Mapping[str, float]) -> float:
    """The median over gradients or outputs; nan when there is nothing to compare."""
    return median(errors.values()) if errors else float("nan")


def _slack(value: torch.Tensor) -> float:
    return torch.finfo(value.dtype).eps / 4


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x
