"""``--verify``: does the emitted program compute what the model computes, and does every kernel compile for the GPU?

Results are compared at the model's small size, under Triton's interpreter where there is no GPU. Kernels are compiled
ahead of time at the size that was asked for.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from optfuse.api import optimize
from optfuse.cli.output import say
from optfuse.compiler.frontend.zoo import load_model_file
from optfuse.errors import VerificationError
from optfuse.runtime.aot import compile_kernels, table
from optfuse.runtime.check.check import check_replays, check_steps
from optfuse.runtime.check.verify import InDouble, VerifyReport, compare
from optfuse.runtime.environment import mode

if TYPE_CHECKING:
    from optfuse.api import Schedule
    from optfuse.solver.control.options import SolveOptions

#: A single number's error (a loss) is a sample of one, and eager's is sometimes near zero by luck. Such an output is
#: judged as the vector of its values at this many different weights.
DRAWS = 12


def verify_model(path: Path, train: bool, device: str, options: SolveOptions) -> VerifyReport:
    """Schedule a model at its small size, run the program, and hold it against eager in float64.

    Raises:
        VerificationError: When a result is further from the float64 reference than eager's own error allows.
    """
    entry = load_model_file(path)
    model, (args, kwargs) = entry.model("small"), entry.inputs("small", train=train)
    if train:
        _train_norms(model)
    found = optimize(model, args, kwargs, train=train, device=device, options=options, name=entry.name)
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    program = found.compile()
    given = (args, kwargs)
    runs = (
        (program, model, given),
        (eager, eager, given),
        (_in_double(exact), exact, pytree.tree_map(_widened, given)),
    )
    got, expected, reference = (_outcome(call, owner, inputs, train) for call, owner, inputs in runs)
    single = [name for name, value in expected.items() if name.startswith("output") and _is_single(value)]
    for draw in range(1, DRAWS if single else 1):
        _perturb(model, (eager, exact), draw)
        for values, (call, _, inputs) in zip((got, expected, reference), runs, strict=True):
            again = _outputs(call, inputs, train)
            values.update({name: torch.cat([values[name].reshape(-1), again[name].reshape(1)]) for name in single})
    report = VerifyReport(compare(*map(_values, (got, expected, reference)), names=list(expected)))
    if not report.passed:
        raise VerificationError(f"{path}: the emitted program and the model disagree: {report}")
    say(f"{path}: {'training step' if train else 'inference'} at the small size: {report}")
    return report


def check_model(path: Path, train: bool, device: str, options: SolveOptions) -> None:
    """Check a model at its small size launch by launch and through CUDA graphs, on the GPU if there is one.

    Raises:
        VerificationError: When a step, or a replay, is out of tolerance.
    """
    entry = load_model_file(path)
    place = torch.device("cuda" if mode() == "compile" else "cpu")
    model = entry.model("small").train(train).to(place)
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda x: x.to(place), entry.inputs("small", train=train))
    found = optimize(model, args, kwargs, train=train, device=device, options=options, name=entry.name)
    wrong = []
    for placement in ("apart", "planned"):
        report = check_steps(found, args, kwargs, placement=placement)
        say(f"{path}: values {placement}, on {place}: {report}")
        if not report.passed:
            say(report.table())
            wrong.append(str(report))
    replays = check_replays(found, args, kwargs)
    for check in replays:
        if not check.passed:
            wrong.append(f"{check.name}, call {check.call} through a CUDA graph: {'; '.join(check.faults)}")
    say(f"{path}: {sum(check.passed for check in replays)} of {len(replays)} calls through CUDA graphs are right")
    if wrong:
        raise VerificationError(f"{path}: {wrong[0]}")


def compile_schedules(schedules: Iterable[Schedule]) -> None:
    """Compile every kernel for sm_90 ahead of time and print registers, spills and shared memory.

    Raises:
        VerificationError: When a kernel does not compile.
    """
    for schedule in schedules:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "kernels.py"
            source.write_text(schedule.source, encoding="utf-8")
            reports = compile_kernels(source)
        say(f"{schedule.name}: kernels compiled for sm_90\n{table(reports)}")
        failed = [report for report in reports if report.error is not None]
        if failed:
            raise VerificationError(f"{schedule.name}: kernel {failed[0].name} does not compile: {failed[0].error}")


def _train_norms(model: torch.nn.Module) -> None:
    """Let batch norms use and update statistics, with dropout left off: draws differ between dtypes."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):  # noqa: SLF001 - the one name for all of them
            module.train()


def _outcome(call: Any, owner: torch.nn.Module, given: tuple[Any, Any], train: bool) -> dict[str, Any]:
    """What a call leaves behind, by name: outputs, gradients of the parameters, and the owner's buffers."""
    found = _outputs(call, given, train)
    gradients = _gradients(list(found.values()), owner) if train else {}
    buffers = {f"buffer {name}": value.clone() for name, value in owner.named_buffers()}
    return {**{name: _detached(value) for name, value in found.items()}, **gradients, **buffers}


def _outputs(call: Any, given: tuple[Any, Any], train: bool) -> dict[str, Any]:
    args, kwargs = given
    with torch.set_grad_enabled(train):
        return {f"output {k}": value for k, value in enumerate(pytree.tree_leaves(call(*args, **kwargs)))}


def _is_single(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 0 and value.is_floating_point()


@torch.no_grad()
def _perturb(model: torch.nn.Module, others: Sequence[torch.nn.Module], draw: int) -> None:
    """Move the weights of ``model`` by about 3%, differently for each draw, and give the others the same state."""
    generator = torch.Generator().manual_seed(draw)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator).to(parameter.device, parameter.dtype)
        parameter.mul_(1 + noise / 32)
    for other in others:
        other.load_state_dict(model.state_dict())


def _values(outcome: dict[str, Any]) -> list[Any]:
    return list(outcome.values())


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _gradients(outputs: Sequence[Any], owner: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Gradients of a fixed random combination of the outputs; a parameter that none of them uses is left out."""
    differentiable = [value for value in outputs if isinstance(value, torch.Tensor) and value.requires_grad]
    generator = torch.Generator().manual_seed(0)
    directions = [
        torch.randn(value.shape, generator=generator).to(value.device, value.dtype) for value in differentiable
    ]
    parameters = {name: value for name, value in owner.named_parameters() if value.requires_grad}
    gradients = torch.autograd.grad(differentiable, list(parameters.values()), directions, allow_unused=True)
    return {
        f"gradient of {name}": value for name, value in zip(parameters, gradients, strict=True) if value is not None
    }


def _in_double(model: torch.nn.Module) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with InDouble():
            return model(*args, **kwargs)

    return call


def _widened(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
