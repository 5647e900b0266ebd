"""The loop of a batch: capture each source once, solve each graph with each solver, and record every outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from optfuse.batch.child import Outcome
from optfuse.batch.engines import Engine
from optfuse.batch.folders import graph_folder, plan_folder
from optfuse.batch.plan import (
    GRAPHS,
    BatchSolver,
    CaptureTask,
    Limits,
    Mode,
    Size,
    SolveTask,
    Task,
    capture_task,
    solve_tasks,
)
from optfuse.batch.rows import Row, solved_row, uncaptured_row
from optfuse.batch.sources import Source
from optfuse.batch.store import Store

ModeChoice = Literal["both", "inference", "training"]

#: Outcomes that may change under other limits.
LIMITED = ("timeout", "memory", "crash")

#: Seconds after which the loop wakes although no task has ended.
TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What a batch does to each source.

    ``solve`` holds fields of ``SolveOptions`` but for the solver. ``retry``: do again what failed for other reasons
    than being refused.
    """

    solvers: tuple[BatchSolver, ...] = ("greedy", "cpsat")
    mode: ModeChoice = "both"
    size: Size = "full"
    device: str = "h200"
    limits: Limits = field(default_factory=lambda: Limits(900.0, None))
    solve: Mapping[str, Any] = field(default_factory=dict)
    retry: bool = False

    def as_json(self) -> dict[str, Any]:
        """Plain data, for the run's own record."""
        return {**asdict(self), "solvers": list(self.solvers)}


@dataclass(slots=True)
class Progress:
    """Counts of solves: ``total`` of those known, ``done`` of them with ``failed`` and ``kept`` (from before)."""

    total: int = 0
    done: int = 0
    failed: int = 0
    kept: int = 0
    last: str = ""


Watch = Callable[[Progress], None]


def run_batch(
    sources: Iterable[Source], store: Store, engine: Engine, options: BatchOptions, watch: Watch = lambda _: None
) -> Progress:
    """Run the tasks that are missing or stale in a run, and return the counts.

    The result of every task is written before the next task starts. A KeyboardInterrupt kills running tasks and is
    raised again. ``watch`` is called whenever a count changes.
    """
    batch = _Batch(store, options, watch)
    try:
        for source in sources:
            batch.plan(source)
        watch(batch.progress)
        while batch.waiting or batch.running:
            while batch.waiting and batch.running < engine.slots:
                engine.submit(batch.waiting.pop())
                batch.running += 1
            for task, outcome in engine.wait(TICK_S):
                batch.running -= 1
                if outcome.kind != "ok":
                    store.require_room()  # a full disk is an error of the run, not of the task
                batch.finish(task, outcome)
            watch(batch.progress)
    finally:
        engine.close()
    return batch.progress


class _Batch:
    """The tasks to run, as a stack, so that the solves of a graph come right after its capture."""

    def __init__(self, store: Store, options: BatchOptions, watch: Watch) -> None:
        self.store = store
        self.options = options
        self.rows = store.rows()
        self.waiting: list[Task] = []
        self.running = 0
        self.progress = Progress()
        self._watch = watch

    def plan(self, source: Source) -> None:
        """Add the capture of a source, or its solves where a valid capture is on disk."""
        for mode in self._modes(source):
            options = self.options
            capture = capture_task(source, mode, options.size, options.device, self.store.run, options.limits)
            record = self.store.capture(capture.name)
            if record is not None and self._holds(record, capture.key) and self._complete(capture, record):
                self._after_capture(capture, record)
            else:
                self.progress.total += len(GRAPHS[mode]) * len(options.solvers)
                self.waiting.insert(0, capture)

    def finish(self, task: Task, outcome: Outcome) -> None:
        """Store the outcome of a task; after a capture, add the solves of its graphs."""
        match task:
            case CaptureTask():
                record = {**asdict(outcome), "key": task.key, **asdict(task.limits)}
                self.store.add_capture(task.name, record)
                self.progress.total -= len(task.graphs) * len(self.options.solvers)
                self._after_capture(task, record)
            case SolveTask():
                figures = (self.store.capture(task.capture.name) or {})["figures"]["graphs"][task.graph]
                self._add(task, solved_row(task, outcome, figures))

    def _after_capture(self, capture: CaptureTask, record: Mapping[str, Any]) -> None:
        failed = record["kind"] != "ok"
        graphs = () if failed else tuple(record["figures"]["graphs"])
        for task in solve_tasks(capture, self.options.solvers, self.options.solve):
            if not failed and task.graph not in graphs:
                continue  # a model that does not train
            self.progress.total += 1
            before = self.rows.get((task.graph, task.solver))
            if before is not None and self._keeps(task, before):
                self.progress.done += 1
                self.progress.kept += 1
                self.progress.failed += before["outcome"] != "ok"
            elif failed:
                measured = (record["wall_s"], record["cpu_s"], record["peak_rss"])
                self._add(task, uncaptured_row(task, record["reason"], record["kind"], *measured))
            else:
                self.waiting.append(task)

    def _add(self, task: SolveTask, row: Row) -> None:
        self.store.add([row])
        self.progress.done += 1
        self.progress.failed += row["outcome"] != "ok"
        outcome = row["status"] if row["outcome"] == "ok" else f"{row['outcome']}: {row['reason']}"
        self.progress.last = f"{task.label}: {outcome}"
        self._watch(self.progress)

    def _keeps(self, task: SolveTask, row: Row) -> bool:
        """Whether a row is still valid for a task, with its plan on disk."""
        if row["outcome"] == "ok":
            folder = plan_folder(self.store.run, task.graph, task.solver)
            return row["key"] == task.key and folder.is_dir()
        before = Limits(row["task_limit_s"], row["memory_limit_gib"], task.limits.threads)
        return row["key"] == task.key and not self._again(row["outcome"], before)

    def _holds(self, record: Mapping[str, Any], key: str) -> bool:
        """Whether the record of a capture is still valid."""
        before = Limits(record["seconds"], record["gib"], record["threads"])
        return record["key"] == key and (record["kind"] == "ok" or not self._again(record["kind"], before))

    def _again(self, kind: str, before: Limits) -> bool:
        now = self.options.limits
        return kind in LIMITED and (self.options.retry or (before.seconds, before.gib) != (now.seconds, now.gib))

    def _complete(self, capture: CaptureTask, record: Mapping[str, Any]) -> bool:
        graphs = record["figures"].get("graphs", ())
        return all(graph_folder(capture.run, graph).is_dir() for graph in graphs)

    def _modes(self, source: Source) -> tuple[Mode, ...]:
        if source.kind == "instance":
            return ("instance",)
        if self.options.mode == "both":
            return ("inference", "training")
        return (self.options.mode,)
