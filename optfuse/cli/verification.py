"""``--verify``: does the emitted program compute what the model computes, and does every kernel compile for the GPU?

Results are compared at the model's small size, under Triton's interpreter where there is no GPU. Kernels are compiled
ahead of time at the size that was asked for.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from optfuse.cli.output import say
from optfuse.errors import VerificationError
from optfuse.frontend.zoo import load_model_file
from optfuse.pipeline import optimize
from optfuse.runtime.aot import compile_kernels, table
from optfuse.runtime.verify import VerifyReport, compare

if TYPE_CHECKING:
    from optfuse.schedule import Schedule
    from optfuse.solve.options import SolveOptions


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
    got, names = _outcome(program, model, given, train)
    expected, _ = _outcome(eager, eager, given, train)
    reference, _ = _outcome(exact, exact, pytree.tree_map(_widened, given), train)
    report = VerifyReport(compare(_coarse(got), _coarse(expected), reference, names=names))
    if not report.passed:
        raise VerificationError(f"{path}: the emitted program and the model disagree: {report}")
    say(f"{path}: {'training step' if train else 'inference'} at the small size: {report}")
    return report


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


def _outcome(call: Any, owner: torch.nn.Module, given: tuple[Any, Any], train: bool) -> tuple[list[Any], list[str]]:
    """What a call leaves behind, by name: outputs, gradients of the parameters, and the owner's buffers."""
    args, kwargs = given
    with torch.set_grad_enabled(train):
        outputs = pytree.tree_leaves(call(*args, **kwargs))
    found = {f"output {k}": value for k, value in enumerate(outputs)}
    if train:
        found.update(_gradients(outputs, owner))
    found.update({f"buffer {name}": value for name, value in owner.named_buffers()})
    return list(found.values()), list(found)


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


def _coarse(values: Iterable[Any]) -> list[Any]:
    """Single numbers (a loss) at bfloat16's resolution: their eager error is a sample of one, and zero by luck."""
    return [
        value.bfloat16() if isinstance(value, torch.Tensor) and value.ndim == 0 and value.is_floating_point() else value
        for value in values
    ]


def _widened(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
