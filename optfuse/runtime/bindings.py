"""Identify the layer that calls a program: equal layers share one program, each with parameters of its own.

A recording reads parameters where they lay. So a program has recordings for each of the sets of parameters that it is
called with, found by the parameters' storages. Where half of these are another caller's, this is that caller, and it
has got new storages for the others.

Addresses would not tell callers apart: FSDP2 frees the memory of one layer's parameters, gathers the next one's there,
and gives their storages memory again when the layer is called once more. Such parameters are *borrowed*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import eq

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from optfuse.compiler.frontend.torch_internals.torch_bridge import storage_place
from optfuse.runtime.recording import Recording

#: Callers that are remembered: the layers of a deep model.
MOST = 128
#: So many of the parameters, spread evenly, tell a caller.
TOLD_BY = 8
#: A caller that has not called for so many calls, for each that is known, holds no recordings.
IDLE_CALLS = 4
#: That is looked at once in so many calls.
LOOK_EVERY = 16
#: So many calls may run without a graph because an input has moved, or in a row since results are held; then one is
#: recorded for where things are.
PATIENCE = 3
#: A result that a caller still holds at so many calls is copied.
HELD_OFTEN = 2

#: A storage, and where a tensor begins in it.
_Place = tuple[int, int]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Binding:
    """A program with the parameters of one caller.

    ``pointers``: the inputs' addresses at its last call, ``called`` the number of that. ``moved``: inputs that are
    copied, since they have moved. ``borrowed``: parameters in memory that is lent; ``replaced``: those that have got
    other storages; ``places``: their storages. ``called_before``: the number of the call before.
    ``unsettled``: calls since the
    last recording for which inputs had moved. ``followed``: how often it was recorded since another program was;
    ``behind``: calls that waited for that. ``held``: how often results were still in use at the next call;
    ``handed_out``: those of which the caller gets copies, therefore; ``in_use``: calls in a row for which some were.
    ``recorded``: recordings made.
    """

    pointers: list[int]
    called: int = 0
    called_before: int = 0
    recordings: list[Recording] = field(default_factory=list)
    moved: set[int] = field(default_factory=set)
    borrowed: set[int] = field(default_factory=set)
    replaced: set[int] = field(default_factory=set)
    places: dict[int, _Place] = field(default_factory=dict)
    unsettled: int = 0
    followed: int = 0
    behind: int = 0
    held: Counter[int] = field(default_factory=Counter)
    handed_out: set[int] = field(default_factory=set)
    in_use: int = 0
    recorded: int = 0
    _last: list[tuple[StorageWeakRef, int]] = field(default_factory=list)

    def note_lent(self, given: Sequence[torch.Tensor], moved: Iterable[int]) -> bool:
        """Whether some of the parameters that have moved have the storages that they had: their memory is lent."""
        lent = {k for k in moved if k in self.places and self.places[k] == storage_place(given[k])}
        self.borrowed |= lent
        return bool(lent)

    def still_held(self, results: Sequence[torch.Tensor]) -> int:
        """Bytes of the results of the call before that are held now: a graph would have to copy them."""
        held = sum(size for storage, size in self._last if not storage.expired())
        self._last = [(StorageWeakRef(x.untyped_storage()), x.nbytes) for x in results]
        return held

    def note_held(self, held: Sequence[int], seen: Sequence[int]) -> bool:
        """Whether held results keep the recording from being used so often that it should be recorded again.

        Those of them that the caller sees are copied from now on, if they are held often.
        """
        self.held.update(seen)
        self.handed_out |= {k for k in seen if self.held[k] >= HELD_OFTEN}
        self.in_use += 1
        if self.in_use <= PATIENCE or not self.handed_out.issuperset(held):
            return False
        self.in_use = 0
        return True

    def drop(self) -> None:
        """End the graphs, whatever else refers to the recordings."""
        for recording in self.recordings:
            recording.steps.clear()
        self.recordings.clear()


@dataclass(slots=True)
class Bindings:
    """The callers of a program, by the storages of the inputs ``fixed``: its parameters, and what it writes."""

    fixed: tuple[int, ...] = ()
    _told_by: tuple[int, ...] = field(init=False)
    _found: dict[tuple[_Place, ...], Binding] = field(default_factory=dict)
    _calls: int = 0

    def __post_init__(self) -> None:
        count = min(TOLD_BY, len(self.fixed))
        self._told_by = tuple(self.fixed[k * len(self.fixed) // count] for k in range(count))

    def __iter__(self) -> Iterator[Binding]:
        return iter(self._found.values())

    def of(self, given: Sequence[torch.Tensor], pointers: list[int]) -> tuple[Binding, list[int] | None]:
        """The caller with these inputs at these addresses, and where they lay at its last call; None at its first."""
        self._calls += 1
        key = tuple(storage_place(given[k]) for k in self._told_by)
        binding = self._found.get(key) or self._nearest(key)
        before = None
        if binding is None:
            places = {k: storage_place(given[k]) for k in self.fixed}
            binding = self._found[key] = Binding(pointers, places=places)
            if len(self._found) > MOST:
                self._forget()
        else:
            before = binding.pointers
        binding.pointers, binding.called_before, binding.called = pointers, binding.called, self._calls
        if self._calls % LOOK_EVERY == 0:
            self._drop_idle()
        return binding, before

    def copy(self, moved: Iterable[int], binding: Binding) -> None:
        """Copy a caller's moved inputs from now on. It is no longer told by those that have got other storages."""
        binding.moved.update(moved)
        self.fixed = tuple(k for k in self.fixed if k not in binding.moved)
        kept = [k not in binding.moved & binding.replaced for k in self._told_by]
        self._told_by = tuple(compress(self._told_by, kept))
        self._found = {tuple(compress(key, kept)): one for key, one in self._found.items()}

    def note_borrowed(self, binding: Binding) -> None:
        """Note a caller's parameters that have been where others' were, in other storages, since its call before.

        Where one of them has, all that it shares with no other caller are taken for such.
        """
        others = [one for one in self if one is not binding and one.called > binding.called_before]
        own = [k for k, place in binding.places.items() if all(one.places.get(k) != place for one in others)]
        if any(one.pointers[k] == binding.pointers[k] for k in own for one in others):
            binding.borrowed.update(own)

    def drop(self) -> None:
        """End all graphs."""
        for binding in self:
            binding.drop()

    def _drop_idle(self) -> None:
        """Release the graphs of callers that have stopped calling, as when a model's parameters moved to new memory."""
        oldest = self._calls - IDLE_CALLS * (1 + len(self._found))
        for binding in self:
            if binding.called < oldest:
                binding.drop()

    def recordings(self) -> list[Recording]:
        """Those of all callers."""
        return [recording for binding in self for recording in binding.recordings]

    def _nearest(self, key: Sequence[_Place]) -> Binding | None:
        """The caller that shares at least half of these storages."""
        for known, binding in self._found.items():
            same = list(map(eq, known, key))
            if 2 * sum(same) >= len(key):
                binding.replaced.update(k for k, is_same in zip(self._told_by, same, strict=True) if not is_same)
                return binding
        return None

    def _forget(self) -> None:
        """Forget the least recent caller."""
        key = min(self._found, key=lambda known: self._found[known].called)
        self._found.pop(key).drop()
