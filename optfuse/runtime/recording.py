"""A recorded call: its graphs, the memory that inputs are copied into, and the memory of its results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from operator import gt
from typing import Any

import torch

from optfuse.compiler.frontend.torch_internals.torch_bridge import copy_all, storage_handle, storage_users
from optfuse.runtime.program import Value
from optfuse.runtime.recorder import Step, like, once


@dataclass(frozen=True, slots=True)
class Result:
    """A result: a value, memory of the graph, or a window of an input, ``offset`` elements after that one's first.

    Of a window ``value`` has the form alone.

    ``is_left``: a tensor that the caller gets where it lies, in the graph's memory. ``is_given``: the input itself.
    """

    value: Any
    source: int | None = None
    offset: int = 0
    is_left: bool = False
    is_given: bool = False


@dataclass(frozen=True, slots=True)
class Copies:
    """Memory of a graph's own for some inputs, by position. Found once, for a call must not look at each tensor."""

    memory: dict[int, torch.Tensor]
    # positions and targets of a dtype, those on the host first; both without the repeats of expanded dimensions
    groups: tuple[tuple[tuple[int, ...], list[torch.Tensor]], ...]
    expanded: frozenset[int]

    @staticmethod
    def of(memory: dict[int, torch.Tensor]) -> Copies:
        targets = {k: once(x) for k, x in memory.items()}
        kinds = dict.fromkeys((x.device.type != "cpu", str(x.dtype)) for x in memory.values())
        alike = [
            [k for k, x in memory.items() if (x.device.type != "cpu", str(x.dtype)) == kind] for kind in sorted(kinds)
        ]
        groups = tuple((tuple(chosen), [targets[k] for k in chosen]) for chosen in alike)
        return Copies(memory, groups, frozenset(k for k, x in targets.items() if x.shape != memory[k].shape))

    def feed(self, given: Sequence[torch.Tensor]) -> None:
        """Copy the inputs there. Called where autograd records nothing."""
        for positions, targets in self.groups:
            copy_all(targets, [once(given[k]) if k in self.expanded else given[k] for k in positions])


@dataclass(slots=True)
class Recording:
    """What replays a call. ``static``: the addresses of the inputs that are read where they lie, by position.

    ``guarded``: by result, memory that a replay must not overwrite while a caller uses it, with its users while none
    does.
    """

    steps: list[Step]
    copies: Copies
    static: dict[int, int]
    results: list[Result]
    guarded: dict[int, tuple[torch.UntypedStorage, int]]
    # the same in forms that all tensors are looked at in one go: each costs every call
    _watched: tuple[int, ...] = field(init=False)
    _addresses: tuple[int, ...] = field(init=False)
    _storages: tuple[int, ...] = field(init=False)
    _users: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._watched, self._addresses = tuple(self.static), tuple(self.static.values())
        self._storages = tuple(storage_handle(storage) for storage, _ in self.guarded.values())
        self._users = tuple(users for _, users in self.guarded.values())

    def in_use(self) -> bool:
        """Whether a replay would overwrite results that a caller may still read."""
        return any(map(gt, storage_users(self._storages), self._users))

    def held(self) -> list[int]:
        """The results that a caller may still read."""
        return list(compress(self.guarded, map(gt, storage_users(self._storages), self._users)))

    def hand_out_copies(self, positions: Collection[int]) -> None:
        """From now on callers get copies of some results."""
        self.results = [replace(x, is_left=False) if k in positions else x for k, x in enumerate(self.results)]

    def moved(self, pointers: Sequence[int]) -> list[int]:
        """Inputs that are not where they were; ``pointers`` are the addresses of all."""
        if tuple(map(pointers.__getitem__, self._watched)) == self._addresses:
            return []
        return [k for k, pointer in self.static.items() if pointers[k] != pointer]

    def replay(self, given: Sequence[torch.Tensor]) -> list[Value]:
        """Run the graphs with these inputs: the results, each a tensor of the caller's own, so that users count."""
        self.copies.feed(given)
        for step in self.steps:
            step.run()
        return [
            r.value.data if r.is_left else given[r.source] if r.is_given else _handed_out(r, given)  # pyright: ignore
            for r in self.results
        ]


def recorded(
    given: Sequence[torch.Tensor],
    moving: Sequence[int],
    capture: Callable[[list[torch.Tensor]], tuple[list[Step], list[Value]] | None],
    handed_out: Collection[int],
    guards: Callable[[int], bool],
    others: Sequence[Recording] = (),
) -> Recording | None:
    """A recording of a call with such inputs. None if ``capture`` gives none for the inputs at their addresses.

    Args:
        moving: Positions of the inputs that are copied in each replay. The others are read where they lie.
        capture: Records the call: the steps of a replay, and the results' memory.
        handed_out: Positions of results of which the caller gets copies.
        guards: Whether a result, by its position, must be out of use before a replay.
        others: Of the same program, replayed in turn with this one. Layers that are alike copy inputs to one place.
    """
    memory = {k: _memory_like(given[k], [one.copies.memory.get(k) for one in others]) for k in moving}
    copies = Copies.of(memory)
    with torch.no_grad():
        copies.feed(given)  # a stand-in for the GPU's recorder runs what it records
    fed = [memory.get(k, x) for k, x in enumerate(given)]
    found = capture(list(fed))
    if found is None:
        return None
    steps, values = found
    results = [result_of(value, fed, k in handed_out) for k, value in enumerate(values)]
    own = {k: x.value.untyped_storage() for k, x in enumerate(results) if is_own(x) and guards(k)}
    users = storage_users(map(storage_handle, own.values()))
    counted = {k: (storage, count) for (k, storage), count in zip(own.items(), users, strict=True)}
    static = {k: x.data_ptr() for k, x in enumerate(given) if k not in memory}
    return Recording(steps, copies, static, results, counted)


def _memory_like(x: torch.Tensor, known: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Memory of a tensor's layout: one that is known, or new."""
    form = x.shape, x.stride(), x.dtype, x.device
    fitting = (y for y in known if y is not None and (y.shape, y.stride(), y.dtype, y.device) == form)
    found = next(fitting, None)
    return like(*form) if found is None else found


def _handed_out(result: Result, given: Sequence[torch.Tensor]) -> Value:
    value = result.value
    if not isinstance(value, torch.Tensor):
        return value
    if result.source is not None:
        source = given[result.source]
        return source.as_strided(value.shape, value.stride(), source.storage_offset() + result.offset)
    kept = like(value.shape, value.stride(), value.dtype, value.device)
    once(kept).copy_(once(value))
    return kept


def result_of(value: Value, fed: Sequence[torch.Tensor], is_copied: bool) -> Result:
    """A recorded call's result, given the memory that its inputs were read from, and whether callers get copies."""
    source, offset = handed_on(value, fed)
    is_left = isinstance(value, torch.Tensor) and source is None and not is_copied
    is_given = False
    if isinstance(value, torch.Tensor) and source is not None:  # its form: to hold an input would keep it in use
        form = fed[source].shape, fed[source].stride()
        is_given = not offset and form == (value.shape, value.stride())
        value = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return Result(value, source, offset, is_left, is_given)


def is_own(result: Result) -> bool:
    return isinstance(result.value, torch.Tensor) and result.source is None


def _extent(x: torch.Tensor) -> int:
    """Elements from a tensor's first to its last, both included."""
    return 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))


def handed_on(value: Value, fed: Sequence[torch.Tensor]) -> tuple[int | None, int]:
    """The input in whose memory a result lies, if any, and how many elements after that one's first.

    Several inputs may share a storage: torch's own LSTM keeps all of its weights in one.
    """
    if not isinstance(value, torch.Tensor) or value.numel() == 0:
        return None, 0
    storage = value.untyped_storage().data_ptr()
    for k, x in enumerate(fed):
        if x.numel() and x.untyped_storage().data_ptr() == storage:
            offset = int(value.storage_offset()) - int(x.storage_offset())
            if 0 <= offset <= _extent(x) - _extent(value):
                return k, offset
    return None, 0
