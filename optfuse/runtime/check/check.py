"""Which kernel is wrong? A schedule run step by step, and through CUDA graphs, each beside a reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from optfuse.compiler.codegen.deduplicate import share_kernels
from optfuse.compiler.codegen.host_program import MemoryLayout
from optfuse.compiler.codegen.module import watched_module
from optfuse.compiler.ir.nodes import LibraryCall
from optfuse.errors import InvalidOptionError
from optfuse.runtime.check.replays import ReplayCheck, Replayed
from optfuse.runtime.check.steps import StepCheck, Watch, steps_of
from optfuse.runtime.graph_choice import Interest
from optfuse.runtime.model_program import Make, bind
from optfuse.runtime.program import Program, Value
from optfuse.runtime.training_program import bind_training
from optfuse.schedule.emit import emitted_steps, step_ops
from optfuse.schedule.scheduled import ScheduledGraph, ScheduledStep

#: Memory of a run under watch: every value by itself, or as the program's plan has it (arena, one in place of another).
Placement = Literal["apart", "planned"]


@dataclass(frozen=True, slots=True)
class StepReport:
    """The steps of a schedule's graphs, in the order in which they ran: ``graphs`` has (graph's name, checks)."""

    graphs: tuple[tuple[str, tuple[StepCheck, ...]], ...]

    @property
    def passed(self) -> bool:
        """Whether every step is right."""
        return all(check.passed for _, checks in self.graphs for check in checks)

    @property
    def failed(self) -> tuple[tuple[str, StepCheck], ...]:
        """What is wrong, worst first, with the graph's name."""
        return tuple(row for row in self._rows() if not row[1].passed)

    def table(self, most: int = 20) -> str:
        """The worst steps, worst first: those that fail, and so many of the others that ``most`` are shown."""
        rows = [_cells(name, check) for name, check in self._rows()[: max(most, len(self.failed))]]
        heads = ("graph", "step", "kernel or call", "error", "limit", "roundings", "of", "what is wrong")
        widths = [max(len(row[k]) for row in (heads, *rows)) for k in range(len(heads))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (heads, *rows)
        )

    def __str__(self) -> str:
        """One line: how many steps are right, and the worst one that is not."""
        total = sum(len(checks) for _, checks in self.graphs)
        line = f"{total - len(self.failed)} of {total} steps are right"
        if not self.failed:
            return line
        name, check = self.failed[0]
        return f"{line}; worst: {name}, step {check.number}, {check.name}: {'; '.join(check.faults)}"

    def _rows(self) -> list[tuple[str, StepCheck]]:
        rows = [(name, check) for name, checks in self.graphs for check in checks]
        return sorted(rows, key=lambda row: (row[1].passed, -row[1].judgement.severity, row[1].number))


def check_steps(
    schedule: ScheduledGraph | ScheduledStep,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    placement: Placement = "apart",
) -> StepReport:
    """Run a schedule launch by launch, where its tensors live, and compare what each writes with a reference.

    A kernel's reference is the loop IR interpreter on the CPU in float64, for the inputs that the kernel had; a library
    call's is the operator itself. Also found: memory that a step changes and must not, and elements that none writes.

    Args:
        schedule: Of inference, bound to its model; or of a training step, whose forward and backward graphs both run.
            The kernels are those of its ``source``; the host program is written anew, so that it can be watched.
        args, kwargs: The model's arguments; by default a training schedule's own.
        placement: "apart": every value in memory of its own. "planned": in the program's arena, or in each other's
            place.

    Raises:
        InvalidOptionError: Arguments are missing, or the placement is another word.
        PlanError: The schedule is half of a training step, or has no model and no weights.
    """
    if placement not in ("apart", "planned"):
        raise InvalidOptionError(f'placement must be "apart" or "planned", not {placement!r}')
    watches: list[Watch] = []

    def make(
        half: ScheduledGraph, constants: Mapping[str, torch.Tensor], _: Interest
    ) -> Callable[[list[torch.Tensor]], list[Value]]:
        watch, run = _watched(half, constants, placement)
        watches.append(watch)
        return run

    _call(schedule, make, args, kwargs)
    return StepReport(tuple((watch.graph.name, tuple(watch.checks)) for watch in watches))


def check_replays(
    schedule: ScheduledGraph | ScheduledStep,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    calls: int = 4,
) -> tuple[ReplayCheck, ...]:
    """Call a schedule through CUDA graphs and hold every call's results against the same program's without graphs.

    Floating inputs differ from call to call. The first call of each graph is not replayed, later ones are. Without a
    GPU a stand-in replays by running again, so that what is copied, handed on and kept is checked all the same.

    Raises what ``check_steps`` raises.
    """
    made: list[Replayed] = []

    def make(
        half: ScheduledGraph, constants: Mapping[str, torch.Tensor], interest: Interest
    ) -> Callable[[list[torch.Tensor]], list[Value]]:
        draws = any(isinstance(op, LibraryCall) and op.random for op in half.graph.ops)
        made.append(Replayed(half.name, Program(half.source, constants), interest, draws))
        return made[-1].consume

    _call(schedule, make, args, kwargs, calls)
    return tuple(check for one in made for check in one.checks)


def _watched(
    schedule: ScheduledGraph, constants: Mapping[str, torch.Tensor], placement: Placement
) -> tuple[Watch, Callable[[list[torch.Tensor]], list[Value]]]:
    """A schedule's program under watch."""
    steps, layout = emitted_steps(schedule.extraction, schedule.result, tiles=schedule.tiles)
    memory = layout if placement == "planned" else MemoryLayout()
    source = watched_module(schedule.source, schedule.graph, share_kernels(steps), memory)
    watch = Watch(schedule.graph, steps_of(schedule.graph, steps, step_ops(schedule.solution)))
    program = Program(source, constants)

    def run(inputs: list[torch.Tensor]) -> list[Value]:
        given, main = program.accept(inputs)
        watch.start(given, main)
        module = program.module
        module.before, module.after, module.allocator = watch.before, watch.after, watch.allocator
        return program.execute(given, main, watch.arena)

    return watch, run


def _call(
    schedule: ScheduledGraph | ScheduledStep,
    make: Make,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    calls: int = 1,
) -> None:
    """Call a schedule, forward and backward, with its graphs run by the programs that ``make`` returns."""
    if isinstance(schedule, ScheduledStep):
        run: Callable[..., Any] = bind_training(schedule, make=make)
        args, kwargs = (schedule.args, schedule.kwargs) if args is None else (args, kwargs)
    else:
        run = bind(schedule, make=make)
    if args is None:
        raise InvalidOptionError(f"{schedule.name}: give the arguments of a call to check")  # type: ignore[union-attr]
    train = isinstance(schedule, ScheduledStep)
    for number in range(calls):
        given, named = pytree.tree_map(lambda x, k=number: _varied(x, k), (args, dict(kwargs or {})))
        with torch.set_grad_enabled(train):
            leaves = [x for x in pytree.tree_leaves(run(*given, **named)) if isinstance(x, torch.Tensor)]
        if train:
            _backward([x for x in leaves if x.requires_grad], schedule.model)
        del leaves  # or the next call runs without a graph: its results are in use


def _varied(x: Any, number: int) -> Any:
    """An argument, other numbers in each call."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or not number:
        return x
    return (x.detach() * (1 + number / 8)).requires_grad_(x.requires_grad)


def _backward(outputs: Sequence[torch.Tensor], model: torch.nn.Module) -> None:
    """Gradients of a random combination of the outputs; a parameter's own is left as it is."""
    generator = torch.Generator().manual_seed(0)
    directions = [torch.randn(x.shape, generator=generator).to(x.device, x.dtype) for x in outputs]
    parameters = [p for p in model.parameters() if p.requires_grad]
    torch.autograd.grad(outputs, parameters, directions, allow_unused=True)


def _cells(name: str, check: StepCheck) -> tuple[str, ...]:
    verdict = check.judgement
    return (
        name.rsplit(".", 1)[-1],
        str(check.number),
        check.name,
        f"{verdict.error:.1e}",
        f"{verdict.limit:.1e}",
        f"{verdict.roundings:.1f}",
        check.buffer,
        "; ".join(check.faults),
    )
