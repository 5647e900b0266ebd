"""Where the processes of tasks run: on this machine, or on the workers of a Dask or Ray cluster.

Whatever the engine, a task has a process of its own below the worker that was given it. On a cluster the run's folder
and the sources must be on a file system that all workers share.
"""

from __future__ import annotations

import importlib
import time
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from optfuse.batch.child import Child, Outcome, kill_all, run_task
from optfuse.batch.plan import Task
from optfuse.errors import BatchError, InvalidOptionError

if TYPE_CHECKING:
    from types import ModuleType

EngineName = Literal["local", "dask", "ray"]

#: Retries of a task whose worker is lost.
RETRIES = 3


class Engine(Protocol):
    """Runs tasks. ``slots``: how many it can run at a time."""

    slots: int

    def submit(self, task: Task) -> None:
        """Start a task."""
        ...

    def wait(self, seconds: float) -> list[tuple[Task, Outcome]]:
        """Return the tasks that ended, as soon as there is one, or none after ``seconds``."""
        ...

    def close(self) -> None:
        """Kill running tasks and release the workers."""
        ...


def make_engine(name: EngineName, jobs: int, address: str | None) -> Engine:
    """An engine with ``jobs`` workers on this machine, or on the cluster at ``address``.

    Raises:
        InvalidOptionError: If the engine is unknown, or has no address.
        BatchError: If its library is not installed, or the cluster does not answer.
    """
    match name:
        case "local":
            if address is not None:
                raise InvalidOptionError("--address is of a cluster: add --engine dask or --engine ray")
            return LocalEngine(jobs)
        case "dask":
            return DaskEngine(jobs, address)
        case "ray":
            return RayEngine(jobs, address)
        case _:
            raise InvalidOptionError(f"engine must be one of {', '.join(get_args(EngineName))}, not {name!r}")


class LocalEngine:
    """Processes of this machine."""

    def __init__(self, jobs: int) -> None:
        self.slots = jobs
        self._running: list[Child] = []

    def submit(self, task: Task) -> None:
        """Start a process."""
        self._running.append(Child(task))

    def wait(self, seconds: float) -> list[tuple[Task, Outcome]]:
        """Wait for the end of a task, or the next deadline."""
        if not self._running:
            return []
        until = min(child.deadline for child in self._running) - time.monotonic()
        connection.wait([sign for child in self._running for sign in child.signs], max(0.0, min(seconds, until)))
        ended: list[tuple[Task, Outcome]] = []
        for child in list(self._running):
            outcome = child.poll()
            if outcome is not None:
                self._running.remove(child)
                ended.append((child.task, outcome))
        return ended

    def close(self) -> None:
        """Kill all running tasks."""
        kill_all(self._running)
        self._running.clear()


class DaskEngine:
    """Workers of a Dask cluster: ``address`` of its scheduler, or a cluster of this machine's."""

    def __init__(self, jobs: int, address: str | None) -> None:
        distributed = _required("distributed", "dask")
        dask: Any = importlib.import_module("dask")

        # A task's process is a child of the worker, which a daemonic one may not have.
        dask.config.set({"distributed.worker.daemon": False})
        self._distributed = distributed
        self._cluster: Any = None
        try:
            if address is None:
                self._cluster = distributed.LocalCluster(
                    n_workers=jobs, threads_per_worker=1, processes=True, dashboard_address=None
                )
            self._client: Any = distributed.Client(address if self._cluster is None else self._cluster, timeout=30)
        except (OSError, ValueError) as error:  # the latter for what is no address
            raise BatchError(f"no Dask scheduler answers at {address}: {error}") from error
        self.slots = sum(self._client.nthreads().values()) if address is not None else jobs
        self._running: dict[Any, Task] = {}

    def submit(self, task: Task) -> None:
        """Hand a task to the scheduler, which gives it to another worker when the first is lost."""
        future = self._client.submit(run_task, task, pure=False, retries=RETRIES)
        self._running[future] = task

    def wait(self, seconds: float) -> list[tuple[Task, Outcome]]:
        """Wait for the end of a task."""
        if not self._running:
            return []
        try:
            done = self._distributed.wait(list(self._running), timeout=seconds, return_when="FIRST_COMPLETED").done
        except TimeoutError:
            return []
        return [(self._running.pop(future), self._outcome(future)) for future in done]

    def close(self) -> None:
        """Cancel what runs; stop the cluster if it is ours."""
        if self._running:
            self._client.cancel(list(self._running), force=True)
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()

    def _outcome(self, future: Any) -> Outcome:
        error = future.exception()
        return future.result() if error is None else _lost(error)


class RayEngine:
    """Workers of a Ray cluster: its ``address``, or a cluster of this machine's."""

    def __init__(self, jobs: int, address: str | None) -> None:
        self._ray: Any = _required("ray", "ray")
        local = {"num_cpus": jobs, "include_dashboard": False, "object_store_memory": 100 << 20}
        try:
            self._ray.init(address=address, log_to_driver=False, **(local if address is None else {}))
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise BatchError(f"no Ray cluster answers at {address}: {error}") from error
        self.slots = max(1, int(self._ray.cluster_resources().get("CPU", jobs)))
        self._run: Any = self._ray.remote(num_cpus=1, max_retries=RETRIES)(run_task)
        self._running: dict[Any, Task] = {}

    def submit(self, task: Task) -> None:
        """Hand a task to Ray, which gives it to another worker when the first is lost."""
        self._running[self._run.remote(task)] = task

    def wait(self, seconds: float) -> list[tuple[Task, Outcome]]:
        """Wait for the end of a task."""
        if not self._running:
            return []
        done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        return [(self._running.pop(reference), self._outcome(reference)) for reference in done]

    def close(self) -> None:
        """Cancel what runs and leave the cluster, which ends if it is ours."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()

    def _outcome(self, reference: Any) -> Outcome:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return _lost(error)


def _required(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BatchError(
            f"--engine {extra} needs {module}, which is not installed: pip install optfuse[{extra}]"
        ) from error


def _lost(error: BaseException) -> Outcome:
    return Outcome(
        "crash", f"its worker was lost: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"
    )
