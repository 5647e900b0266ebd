"""One model in each system: compiled cold, as a function of no arguments that makes one run."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch._inductor.utils import fresh_inductor_cache
from torch.utils import _pytree as pytree

from optfuse.bench.meter import Meter
from optfuse.bench.records import Record, Settings, System, Task
from optfuse.frontend.zoo import known_size, load_model_file
from optfuse.pipeline import optimize
from optfuse.runtime.graphs import GraphStatistics
from optfuse.schedule import Schedule
from optfuse.solve.options import SolveOptions

if TYPE_CHECKING:
    from optfuse.schedule import TrainingSchedule

#: Calls after which both graphs of a training step are recorded.
RUNS_TO_RECORD = 6
#: Settings of Inductor that decide what is fused, and how.
FUSION_FLAGS = re.compile(
    r"fus|loop_order|combo|mix_order|persistent|split_red|reorder|epilogue|prologue|coordinate|max_autotune|cudagraph"
    r"|tiling|layout_opt|multi_kernel|cooperative|inplace|permute|force_disable_caches|freezing"
)


@dataclass(frozen=True, slots=True)
class Case:
    """A model on the device with its inputs, and how one run of it is made."""

    task: Task
    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Callable[[Any], torch.Tensor]

    def run(self, call: Callable[..., Any]) -> Any:
        """One forward call, or one training step: gradients dropped, forward, backward. Returns the outputs."""
        if not self.task.train:
            with torch.no_grad():
                return call(*self.args, **self.kwargs)
        self.model.zero_grad(set_to_none=True)
        outputs = call(*self.args, **self.kwargs)
        self.loss(outputs).backward()
        return outputs


@dataclass(slots=True)
class Prepared:
    """A system that is ready to run. ``step`` makes one run and returns the outputs; gradients are in the model.

    ``compile_s`` is everything from the model to the end of the first run, ``phases`` its parts in seconds; ``cold``
    tells whether every cache was empty. ``note`` says what was not as asked.
    """

    step: Callable[[], Any]
    compile_s: float = 0.0
    cold: bool = True
    phases: dict[str, float] = field(default_factory=dict)
    schedules: tuple[Schedule, ...] = ()
    note: str = ""


def load_case(task: Task, settings: Settings, device: torch.device) -> Case:
    """Build the model once for all systems of a row."""
    entry, size = load_model_file(task.path), known_size(settings.size)
    model = entry.model(size).to(device).train(task.train)
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda x: x.to(device), entry.inputs(size, train=task.train))
    return Case(task, model, args, dict(kwargs), loss_of)


def loss_of(outputs: Any) -> torch.Tensor:
    """A result's loss: the attribute or item of that name, or the mean of the first tensor."""
    loss = outputs.get("loss") if hasattr(outputs, "get") else getattr(outputs, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    return next(x for x in pytree.tree_leaves(outputs) if isinstance(x, torch.Tensor)).float().mean()


class Systems:
    """Prepares the systems of one row; those that share a compilation share it here."""

    def __init__(self, case: Case, settings: Settings, meter: Meter) -> None:
        self.case = case
        self.settings = settings
        self.meter = meter
        self._schedule: Schedule | TrainingSchedule | None = None
        self._ours: Prepared | None = None

    def prepare(self, system: System) -> Prepared:
        """Compile and run once."""
        match system:
            case "eager":
                return self._timed(lambda: self.case.run(self.case.model), {}, compiled=False)
            case "inductor" | "inductor-graphs" | "inductor-max-autotune":
                modes = {"inductor-graphs": "reduce-overhead", "inductor-max-autotune": "max-autotune"}
                return self._inductor(modes.get(system))
            case "optfuse":
                return self._optfuse()
            case "optfuse-graphs":
                return self._optfuse_graphs()
            case "optfuse-greedy":
                return self._optfuse_greedy()

    def _timed(self, step: Callable[[], Any], phases: dict[str, float], *, compiled: bool = True) -> Prepared:
        start = time.perf_counter()
        step()
        self.meter.synchronize()
        phases["first run"] = time.perf_counter() - start
        return Prepared(step, sum(phases.values()) if compiled else 0.0, phases=phases)

    def _inductor(self, mode: str | None) -> Prepared:
        torch._dynamo.reset()  # noqa: SLF001 - torch's name for it
        compiled = torch.compile(self.case.model, mode=mode)

        def step() -> Any:
            torch.compiler.cudagraph_mark_step_begin()
            return self.case.run(compiled)

        with fresh_inductor_cache():
            prepared = self._timed(step, {})
        if mode is not None:  # graphs are recorded in the second and third run
            step()
            step()
        return prepared

    def _optfuse(self) -> Prepared:
        if self._ours is None:
            self._ours, self._schedule = self._compile("cpsat")
        return self._ours

    def _optfuse_greedy(self) -> Prepared:
        return self._compile("greedy")[0]

    def _compile(self, solver: str) -> tuple[Prepared, Schedule | TrainingSchedule]:
        case, chosen = self.case, {"solver": solver, "time_limit": self.settings.time_limit}
        if self.settings.workers:
            chosen["workers"] = self.settings.workers
        options = SolveOptions.from_mapping(chosen)
        name = case.task.name
        phases: dict[str, float] = {}
        with fresh_triton_cache():
            start = time.perf_counter()
            found = optimize(
                case.model, case.args, case.kwargs, train=case.task.train, device=self.settings.device, options=options,
                name=name,
            )  # fmt: skip
            phases["capture, solve, emit"] = time.perf_counter() - start
            start = time.perf_counter()
            program = found.compile(cudagraphs=False)
            phases["load"] = time.perf_counter() - start
            prepared = self._timed(lambda: case.run(program), phases)
        prepared.schedules = (found,) if isinstance(found, Schedule) else tuple(found)
        phases["of it, solve"] = sum(schedule.result.statistics.wall_s for schedule in prepared.schedules)
        return prepared, found

    def _optfuse_graphs(self) -> Prepared:
        plain = self._optfuse()
        assert self._schedule is not None, "the plain program was made from it"
        if self.meter.device.type != "cuda":
            raise RuntimeError("CUDA graphs need a GPU")
        start = time.perf_counter()
        program = self._schedule.compile(cudagraphs=True)
        for _ in range(RUNS_TO_RECORD):
            self.case.run(program)
        self.meter.synchronize()
        seconds = time.perf_counter() - start
        found: tuple[GraphStatistics, ...] = program.graphs  # type: ignore[attr-defined]
        plainly = [graph.reason for graph in found if not graph.replays]
        return Prepared(
            lambda: self.case.run(program),
            plain.compile_s + seconds,
            phases={**plain.phases, "load and record": seconds},
            schedules=plain.schedules,
            note="; ".join(
                [*(f"without a graph: {reason}" for reason in plainly)]
                + [f"copied inputs: {', '.join(graph.copied)}" for graph in found if graph.copied]
            ),
        )

    def release(self) -> None:
        """Let go of everything compiled."""
        self._schedule = self._ours = None
        forget(self.case)


def forget(case: Case) -> None:
    """Drop gradients, torch.compile's caches and the memory of its graphs."""
    case.model.zero_grad(set_to_none=True)
    torch._dynamo.reset()  # noqa: SLF001 - torch's name for it
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


@contextlib.contextmanager
def fresh_triton_cache() -> Iterator[None]:
    """An empty cache of compiled kernels while a program is compiled cold."""
    name = "TRITON_CACHE_DIR"
    before = os.environ.get(name)
    with tempfile.TemporaryDirectory(prefix="optfuse-bench-", ignore_cleanup_errors=True) as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before


def versions() -> Record:
    """What ran: packages, the device, and what Inductor decides by."""
    import platform

    import triton

    import optfuse

    found: Record = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "optfuse": optfuse.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }
    if torch.cuda.is_available():
        found["device_memory"] = torch.cuda.get_device_properties(0).total_memory
        found["cudnn"] = torch.backends.cudnn.version()
    return found


def inductor_flags() -> Record:
    """Every flag of Inductor that has to do with fusion, with its value."""
    import torch._inductor.config as config

    flags = config.get_config_copy() if hasattr(config, "get_config_copy") else config.shallow_copy_dict()
    return {key: _plain(value) for key, value in sorted(flags.items()) if FUSION_FLAGS.search(key)}


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)


def snapshot(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers' values (statistics of batch norms), to put back later."""
    return {name: value.detach().clone() for name, value in model.named_buffers()}


@torch.no_grad()
def restore(model: torch.nn.Module, values: dict[str, torch.Tensor]) -> None:
    """Put the buffers back, in place."""
    for name, value in model.named_buffers():
        value.copy_(values[name])


def widened(case: Case) -> torch.nn.Module:
    """A copy of the model in float64."""
    return copy.deepcopy(case.model).double()
