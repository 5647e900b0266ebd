"""One model in each system: compiled cold, as a function of no arguments that makes one run."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch._inductor.utils import fresh_inductor_cache
from torch.utils import _pytree as pytree

from optfuse.api import Schedule, optimize
from optfuse.compiler.frontend.zoo import known_size, load_model_file
from optfuse.lab.bench.decode import DecodeStep, in_int8
from optfuse.lab.bench.inductors import Choose, compile_on_our_graph
from optfuse.lab.bench.meter import Meter
from optfuse.lab.bench.records import Record, Settings, System, Task
from optfuse.runtime.graph_statistics import GraphStatistics
from optfuse.solver.control.options import SolveOptions
from optfuse.torch_compile.backend import backend
from optfuse.torch_compile.compilation import Record as Compiled
from optfuse.torch_compile.compiled import CompiledGraph, compiled_graphs

if TYPE_CHECKING:
    from optfuse.api import TrainingSchedule

#: How a model is planned: by the solver, or by greedy alone.
Way = Literal["cpsat", "greedy"]

#: Calls after which both graphs of a training step are recorded, and kept or dropped.
RUNS_TO_RECORD = 24
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
    tells whether every cache was empty. ``on_our_graph`` has what ``lab.bench.inductors`` tells of each graph,
    ``compiled`` what ``torch.compile(backend="optfuse")`` made. ``note`` says what was not as asked.
    """

    step: Callable[[], Any]
    compile_s: float = 0.0
    cold: bool = True
    phases: dict[str, float] = field(default_factory=dict)
    schedules: tuple[Schedule, ...] = ()
    on_our_graph: tuple[Record, ...] = ()
    compiled: tuple[CompiledGraph, ...] = ()
    note: str = ""


def load_case(task: Task, settings: Settings, device: torch.device) -> Case:
    """Build the model once for all systems of a row."""
    entry, size = load_model_file(task.path), known_size(settings.size)
    model = entry.model(size).to(device).train(task.train)
    model = in_int8(model) if task.int8 else model
    if task.batch:
        step = DecodeStep(model, task.batch, settings.cache).requires_grad_(False)
        return Case(task, step, (torch.zeros(task.batch, 1, dtype=torch.int64, device=device),), {}, loss_of)
    inside = task.train and settings.loss == "inside"  # with labels, a model computes its loss itself
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda x: x.to(device), entry.inputs(size, train=inside))
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
        self._planned: dict[Way, Schedule | TrainingSchedule] = {}
        self._compiled: dict[Way, Prepared] = {}

    def prepare(self, system: System) -> Prepared:
        """Compile and run once."""
        match system:
            case "eager":
                return self._timed(lambda: self.case.run(self.case.model), {}, compiled=False)
            case "inductor" | "inductor-graphs" | "inductor-max-autotune":
                modes = {"inductor-graphs": "reduce-overhead", "inductor-max-autotune": "max-autotune"}
                return self._inductor(modes.get(system))
            case "inductor-own":
                return self._on_our_graph(lambda _: None)
            case "inductor-imposed":
                return self._on_our_graph(lambda schedule: schedule.solution)
            case "inductor-imposed-greedy":
                return self._on_our_graph(lambda schedule: schedule.result.greedy_solution)
            case "optfuse":
                return self._optfuse("cpsat")
            case "optfuse-greedy":
                return self._optfuse("greedy")
            case "optfuse-graphs":
                return self._optfuse_graphs("cpsat")
            case "optfuse-greedy-graphs":
                return self._optfuse_graphs("greedy")
            case "optfuse-compile":
                return self._called({})
            case "optfuse-compile-graphs":
                return self._called({"cudagraphs": True})

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

    def _called(self, options: dict[str, Any]) -> Prepared:
        """``torch.compile`` with our backend, as a user calls it; solutions of earlier processes are not taken."""
        torch._dynamo.reset()  # noqa: SLF001 - torch's name for it
        records: list[Compiled] = []
        chosen: dict[str, Any] = {
            "cache": False,
            "time_limit": self.settings.time_limit,
            "device": self.settings.device,
        }
        if self.settings.workers:
            chosen["workers"] = self.settings.workers

        def compiler(graph: Any, inputs: Any) -> Any:
            made = backend(graph, inputs, options={**chosen, **options})
            records.append(made.record)  # type: ignore[attr-defined]
            return made

        compiled = torch.compile(self.case.model, backend=compiler)
        before = len(compiled_graphs())
        with fresh_triton_cache():
            prepared = self._timed(lambda: self.case.run(compiled), {})
        self._record(lambda: self.case.run(compiled))
        prepared.schedules = tuple(schedule for record in records for schedule in record.schedules)
        prepared.compiled = compiled_graphs()[before:]
        prepared.note = "; ".join(f"{name}: {why}" for record in records for name, why in record.unplanned)
        return prepared

    def _on_our_graph(self, choose: Choose) -> Prepared:
        case = self.case
        found = self._plan("cpsat")
        start = time.perf_counter()
        compiled = compile_on_our_graph(
            found, case.model, case.args, case.kwargs, choose, device=self.meter.device, cudagraphs=self._has_graphs()
        )
        phases = {"capture, compile": time.perf_counter() - start}
        with self.meter.alone():  # Inductor tries its configurations in the first run
            prepared = self._timed(lambda: case.run(compiled.call), phases)
        self._record(lambda: case.run(compiled.call))
        prepared.on_our_graph = compiled.facts
        prepared.note = graph_notes(compiled.graphs())
        return prepared

    def _has_graphs(self) -> bool:
        return self.meter.device.type == "cuda"

    def _record(self, run: Callable[[], Any]) -> None:
        """Run until CUDA graphs are recorded, or found to gain nothing: in calls as they are timed later."""
        if self._has_graphs():
            with self.meter.undisturbed():
                for _ in range(RUNS_TO_RECORD):
                    run()
                self.meter.synchronize()

    def _optfuse(self, way: Way) -> Prepared:
        if way not in self._compiled:
            self._compiled[way] = self._compile(way)
            if self.settings.plans and way == "cpsat":
                for schedule in self._compiled[way].schedules:
                    schedule.save(Path(self.settings.plans) / schedule.name, weights=False)
        return self._compiled[way]

    def _plan(self, way: Way) -> Schedule | TrainingSchedule:
        if way not in self._planned:
            case = self.case
            chosen: dict[str, Any] = {"solver": way, "time_limit": self.settings.time_limit}
            if self.settings.workers:
                chosen["workers"] = self.settings.workers
            self._planned[way] = optimize(
                case.model, case.args, case.kwargs, train=case.task.train, device=self.settings.device,
                options=SolveOptions.from_mapping(chosen), name=case.task.name,
            )  # fmt: skip
        return self._planned[way]

    def _compile(self, way: Way) -> Prepared:
        case = self.case
        phases: dict[str, float] = {}
        with fresh_triton_cache():
            cold = way not in self._planned
            start = time.perf_counter()
            found = self._plan(way)
            phases["capture, solve, emit"] = time.perf_counter() - start
            start = time.perf_counter()
            program = found.compile(cudagraphs=False)
            phases["load"] = time.perf_counter() - start
            prepared = self._timed(lambda: case.run(program), phases)
        prepared.cold = cold
        prepared.schedules = (found,) if isinstance(found, Schedule) else tuple(found)
        phases["of it, solve"] = sum(schedule.result.statistics.wall_s for schedule in prepared.schedules)
        return prepared

    def _optfuse_graphs(self, way: Way) -> Prepared:
        plain = self._optfuse(way)
        if not self._has_graphs():
            raise RuntimeError("CUDA graphs need a GPU")
        start = time.perf_counter()
        program = self._planned[way].compile(cudagraphs=True)
        self._record(lambda: self.case.run(program))
        seconds = time.perf_counter() - start
        return Prepared(
            lambda: self.case.run(program),
            plain.compile_s + seconds,
            cold=plain.cold,
            phases={**plain.phases, "load and record": seconds},
            schedules=plain.schedules,
            note=graph_notes(program.graphs),  # type: ignore[attr-defined]
        )

    def release(self) -> None:
        """Let go of everything compiled."""
        self._planned.clear()
        self._compiled.clear()
        forget(self.case)


def graph_notes(graphs: Sequence[GraphStatistics]) -> str:
    """Which programs run without their CUDA graph, and what the others copy."""
    plainly = [f"without a graph: {graph.reason}" for graph in graphs if not graph.replays]
    return "; ".join(plainly + [f"copied inputs: {', '.join(graph.copied)}" for graph in graphs if graph.copied])


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
