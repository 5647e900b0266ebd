"""What records a program as CUDA graphs: one, or several with the steps between them that no graph can hold.

A program calls such steps through the function ``apart`` of its module (``codegen.uncaptured_steps``). ``Partition``
replaces it: in the first call to note what the steps return, in a recording to end a graph before such a step and to
begin another behind it. A recording runs nothing. So the step's results are memory of the form noted, into which every
replay copies what the step then returns: later graphs read them there.

All graphs of a recording share one pool. A buffer that is freed in one may be taken by a later one, which is replayed
behind it; what a step outside reads is kept as long as the recording. No two recordings share a pool: one that is made
later could get results where an earlier one has temporaries, and the earlier one may be replayed while they are in use.
What must not change between replays, as a table of addresses, lies outside of the pool.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from optfuse.compiler.frontend.torch_internals.torch_bridge import copy_all, tree_leaves
from optfuse.errors import PlanError
from optfuse.runtime.clocks import Mark
from optfuse.runtime.program import Apart, Value


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a replay: a graph's launch, or what runs between graphs. ``keeps`` is held as long as the step."""

    run: Callable[[], None]
    launches_graph: bool = False
    keeps: object = None


class Recorder(Protocol):
    """What records: the device, or a stand-in for tests."""

    def warm(self, call: Callable[[], list[Value]]) -> list[Value]:
        """Run ``call`` for real in a way that leaves nothing to be set up during a recording."""
        ...

    def record(self, call: Callable[[], list[Value]]) -> tuple[list[Step], list[Value]]:
        """Record ``call`` without running it: the steps of a replay in order, and the results' memory."""
        ...

    def interrupt(self, step: Step) -> None:
        """Inside of ``record``: end the graph here; each replay runs ``step``, and then the graph of what follows."""
        ...

    def table(self, addresses: Sequence[int], device: torch.device) -> torch.Tensor:
        """Inside of ``record``: memory that holds some addresses when the recording is replayed."""
        ...

    def place(self) -> Hashable:
        """Where work is queued now: replays of one program must all be queued in one place."""
        ...

    def mark(self) -> Mark:
        """The end of all work queued until now."""
        ...

    def has_room(self) -> bool:
        """Whether calls without graphs find memory beside that of the graphs."""
        ...


@dataclass(frozen=True, slots=True)
class CudaMark:
    """An event on a stream."""

    event: torch.cuda.Event
    device: torch.device

    def reached(self) -> bool:
        """Whether the device has come there."""
        return self.event.query()

    def wait(self) -> None:
        """Keep the host waiting until then."""
        self.event.synchronize()

    def us_since(self, earlier: Mark) -> float | None:
        """Microseconds on the device's clock."""
        if not isinstance(earlier, CudaMark) or earlier.device != self.device:
            return None
        return 1e3 * earlier.event.elapsed_time(self.event)


def is_capturing() -> bool:
    """Whether a capture is under way on the current stream."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def keep_for_stream(tensors: Sequence[torch.Tensor], main: torch.device) -> None:
    """Let no memory of tensors on GPUs be used anew before the device's current stream has come to this point."""
    stream = torch.cuda.current_stream(main) if main.type == "cuda" else None
    for x in tensors:
        if stream is not None and x.is_cuda:
            x.record_stream(stream)


class RecordingStream:
    """The stream that records what is replayed on another one; libraries set up a workspace for each that they see."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.lock = threading.RLock()


#: Addresses for which a recording has memory ready.
ADDRESSES = 1 << 14

_RECORDING_STREAMS: dict[tuple[torch.device, int], RecordingStream] = {}


class CudaRecorder:
    """Records what is replayed on the current stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._replayed_on = torch.cuda.current_stream(device)
        key = device, self._replayed_on.cuda_stream
        self._shared = _RECORDING_STREAMS.get(key) or _RECORDING_STREAMS.setdefault(key, RecordingStream(device))
        self._steps: list[Step] = []
        self._graph: torch.cuda.CUDAGraph | None = None
        self._pool: Any = None
        self._tables: list[tuple[torch.Tensor, Sequence[int]]] = []
        self._space: torch.Tensor | None = None
        self._used = 0

    def place(self) -> Hashable:
        """The current stream."""
        return torch.cuda.current_stream(self.device).cuda_stream

    def mark(self) -> Mark:
        """An event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return CudaMark(event, self.device)

    def has_room(self) -> bool:
        """Whether as much is free as is in use, graphs' memory included: calls without graphs need less."""
        free, used = torch.cuda.mem_get_info(self.device)[0], torch.cuda.memory_allocated(self.device)
        return free + torch.cuda.memory_reserved(self.device) - used >= used

    def warm(self, call: Callable[[], list[Value]]) -> list[Value]:
        """Run on the recording stream, so that libraries set up their workspaces for it. Else, if that is in use."""
        current, is_free = torch.cuda.current_stream(self.device), self._shared.lock.acquire(blocking=False)
        stream = self._shared.stream if is_free else torch.cuda.Stream(self.device)
        try:
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                results = call()
            current.wait_stream(stream)
        finally:
            if is_free:
                self._shared.lock.release()
        return results

    def record(self, call: Callable[[], list[Value]]) -> tuple[list[Step], list[Value]]:
        """Capture. Only what this thread does is looked at: others may use the GPU meanwhile."""
        self._steps, self._tables = [], []
        self._pool = torch.cuda.graph_pool_handle()
        # taken now: within a capture CUDA gives no memory but to the pool
        self._space, self._used = torch.empty(ADDRESSES, dtype=torch.int64, device=self.device), 0
        torch.cuda.synchronize(self.device)
        if torch.cuda.mem_get_info(self.device)[0] < torch.cuda.memory_reserved(self.device):
            torch.cuda.empty_cache()  # a recording cannot take what plain calls have left there
        try:
            with self._shared.lock, without_collection(), torch.cuda.stream(self._shared.stream):
                self._begin()
                try:
                    results = call()
                finally:  # a capture that failed must be ended, too: that says so once more
                    self._end()
            for table, addresses in self._tables:
                table.copy_(torch.tensor(addresses, dtype=torch.int64))
            if self._tables:
                self._steps.append(Step(lambda: None, keeps=self._tables))
            return self._steps, results
        finally:  # graphs belong to who has asked for them; those of a capture that failed go
            self._steps, self._pool, self._tables, self._space = [], None, [], None

    def table(self, addresses: Sequence[int], device: torch.device) -> torch.Tensor:
        """Memory that is filled when the recording has ended: in one, nothing runs.

        In the pool it could lie where an earlier step of the recording has a temporary.
        """
        end = self._used + len(addresses)
        if self._space is not None and self._space.device == device and end <= ADDRESSES:
            table = self._space[self._used : end]
            self._used = end + end % 2  # kernels expect multiples of 16 bytes
        else:
            with torch.cuda.stream(self._replayed_on):  # which is not captured: what torch has at hand for it
                table = torch.empty(len(addresses), dtype=torch.int64, device=device)
        self._tables.append((table, addresses))
        return table

    def interrupt(self, step: Step) -> None:
        """End one capture and begin the next."""
        self._end()
        self._steps.append(step)
        self._begin()

    def _begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def _end(self) -> None:
        graph, self._graph = self._graph, None
        if graph is None:
            return
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                graph.capture_end()
            except RuntimeError:
                _clean_up_failed_capture(self.device, self._pool)
                raise
        empty = any("graph is empty" in str(warning.message).lower() for warning in said)
        if empty:  # it is kept, for its pool, and not launched
            self._steps.append(Step(lambda: None, keeps=graph))
        else:
            self._steps.append(Step(graph.replay, launches_graph=True))


def _clean_up_failed_capture(device: torch.device, pool: Any) -> None:
    """End what torch leaves open when it cannot end a capture: the pool takes part in allocation, and torch's generator
    counts on being captured, so that every random number drawn later is an error.

    A capture of nothing that succeeds ends the second.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    with suppress(RuntimeError):  # says that it is ended, of a torch that ends it by itself
        torch._C._cuda_endAllocateToPool(index, pool)  # noqa: SLF001 - no public name
    nothing = torch.cuda.CUDAGraph()
    nothing.capture_begin(capture_error_mode="thread_local")
    nothing.capture_end()  # warns that it is empty: who has called records warnings


_RECORDING = threading.Lock()


@contextmanager
def without_collection() -> Iterator[None]:
    """Keep the garbage collector from ending objects during a capture; captures take turns.

    A CUDA graph, an event or a library's handle that ends in a capture calls what it must not. Only objects in cycles
    end at any time; the rest end where the program drops them, and tensors may: the allocator knows of the capture.
    To collect first would not do, since new cycles can be made meanwhile, and takes longer than a capture.
    """
    with _RECORDING:
        was_on = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_on:
                gc.enable()


@dataclass(frozen=True, slots=True)
class _Form:
    """The layout of a tensor that a step returns; in an argument's memory if ``source`` is that one's position."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    source: int | None = None
    offset: int = 0

    def memory(self, arguments: Sequence[torch.Tensor]) -> torch.Tensor:
        if self.source is not None:
            given = arguments[self.source]
            return given.as_strided(self.shape, self.stride, given.storage_offset() + self.offset)
        return like(self.shape, self.stride, self.dtype, self.device)


@dataclass(slots=True)
class Partition:
    """The steps of a program that are called through ``apart``: what they return, and why some cut the graph.

    ``cuts`` has a reason by the number of such a step in the order of calls. ``refused``: why there can be no graphs.
    """

    cuts: dict[int, str] = field(default_factory=dict)
    refused: str = ""
    _forms: list[list[_Form | None] | _Form | None] = field(default_factory=list)

    def note(self, reason: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Run a step for real and note what it returns: the ``apart`` of a program's first call."""
        results = call(*arguments, **named)
        if reason:
            self.cuts[len(self._forms)] = reason
        given = _tensors(arguments, named)
        several = isinstance(results, (tuple, list))
        forms = [self._form(value, given) for value in (results if several else [results])]
        self._forms.append(forms if several else forms[0])
        return results

    def recording(self, recorder: Recorder) -> Apart:
        """The ``apart`` of one recording.

        A step that is tried and fails is a cut from then on; the error is raised, and the recording must begin anew.
        """
        number = -1

        def apart(reason: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            nonlocal number
            number += 1
            if number not in self.cuts:
                try:
                    return call(*arguments, **named)
                except RuntimeError as error:
                    self.cuts[number] = f"{getattr(call, '__name__', call)}: {str(error).splitlines()[0][:200]}"
                    raise
            form, given = self._forms[number], _tensors(arguments, named)
            several = isinstance(form, list)
            kept = [None if one is None else one.memory(given) for one in (form if several else [form])]

            def again() -> None:
                results = call(*arguments, **named)
                _keep(reason, kept, results if several else [results])

            recorder.interrupt(Step(again))
            return kept if several else kept[0]

        return apart

    def _form(self, value: Any, given: Sequence[torch.Tensor]) -> _Form | None:
        if value is None:
            return None
        if not isinstance(value, torch.Tensor):
            self.refused = f"a step outside of CUDA graphs returns {type(value).__name__}, which graphs cannot read"
            return None
        facts = tuple(value.shape), value.stride(), value.dtype, value.device
        storage = value.untyped_storage().data_ptr()
        for k, x in enumerate(given):
            if value.numel() and x.numel() and x.untyped_storage().data_ptr() == storage and x.dtype == value.dtype:
                return _Form(*facts, k, int(value.storage_offset()) - int(x.storage_offset()))
        return _Form(*facts)


def _tensors(arguments: Any, named: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves([arguments, named]) if isinstance(x, torch.Tensor)]


def _keep(reason: str, kept: Sequence[torch.Tensor | None], results: Sequence[Any]) -> None:
    """Copy a step's results to where the graphs read them."""
    moved: list[tuple[torch.Tensor, torch.Tensor]] = []
    for target, value in zip(kept, results, strict=True):
        if target is None or value is None:
            continue
        if value.shape != target.shape or value.dtype is not target.dtype:
            raise PlanError(
                f"a step outside of CUDA graphs ({reason}) returned {list(value.shape)} and not "
                f"{list(target.shape)} as before; call with cudagraphs=False"
            )
        if value.data_ptr() != target.data_ptr() or value.stride() != target.stride():
            moved.append((once(target), once(value)))
    if moved:
        copy_all([target for target, _ in moved], [value for _, value in moved])


def like(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory of a tensor's layout, from its first to its last element."""
    if 0 in shape:
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)
    extent = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    return torch.empty(extent, dtype=dtype, device=device).as_strided(shape, stride)


def once(x: torch.Tensor) -> torch.Tensor:
    """A tensor without the repeats of expanded dimensions, so that each element of memory can be written once."""
    shared = [step == 0 and n > 1 for n, step in zip(x.shape, x.stride(), strict=True)]
    return x[tuple(slice(0, 1) if repeats else slice(None) for repeats in shared)] if any(shared) else x
