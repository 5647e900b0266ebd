"""The memory that recorded programs share for temporaries, and the addresses of results that they pass to each other.

Replays that are queued on one stream follow each other, and what is temporary in one is dead when the next begins. So
recordings share that memory, those of other programs included: a model in many graphs holds the temporaries of one.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass(slots=True, eq=False, weakref_slot=True)
class Block:
    """Memory that recordings refer to. It is freed with the last of them."""

    memory: torch.Tensor


_BLOCKS: dict[Hashable, WeakSet[Block]] = {}
_LOCK = threading.Lock()


@dataclass(slots=True)
class Results:
    """Addresses of results that programs hand to each other: saved values, and what passes between a model's graphs.

    ``recorded``: by program, those in the memory of its recordings, where they stay. ``passing``: by caller of a
    program, those of a call that ran without a graph but soon will with one, as long as they are in use: they will lie
    elsewhere. ``is_noted`` False: the program hands results to no other, and nothing is noted.
    """

    recorded: WeakKeyDictionary[object, frozenset[int]] = field(default_factory=WeakKeyDictionary)
    passing: WeakKeyDictionary[object, dict[int, StorageWeakRef]] = field(default_factory=WeakKeyDictionary)
    is_noted: bool = True

    def note_recorded(self, program: object, pointers: Iterable[int]) -> None:
        """Let the programs that read results know which lie in the memory of a program's recordings."""
        if self.is_noted:
            self.recorded[program] = frozenset(pointers)

    def note_passing(self, caller: object, results: Iterable[torch.Tensor]) -> None:
        """Let the programs that read results know that they will lie elsewhere with a graph."""
        if self.is_noted:
            self.passing[caller] = {x.data_ptr(): StorageWeakRef(x.untyped_storage()) for x in results}

    def forget_passing(self, caller: object) -> None:
        """Forget that a caller's results will move: it has called again, with its graph or finally without one."""
        self.passing.pop(caller, None)

    def stays(self, pointer: int) -> bool:
        """Whether memory at an address belongs to a recording."""
        return any(pointer in pointers for pointers in list(self.recorded.values()))

    def passes(self, pointers: Collection[int], reader: object) -> bool:
        """Whether some of the memory that a caller reads is a result of another one that will lie elsewhere soon."""
        others = [known for caller, known in list(self.passing.items()) if caller is not reader]
        found = (known[pointer] for known in others for pointer in pointers if pointer in known)
        return any(not storage.expired() for storage in found)


_OF_PROCESS = Results()


def results_of_process() -> Results:
    """Those of all programs in this process."""
    return _OF_PROCESS


@dataclass(slots=True)
class Arena:
    """The temporaries of a training step's programs: the most bytes that one of them needs; and results they read."""

    results: Results = field(default_factory=Results)
    bytes: int = 0

    def probe(self, size: int, device: torch.device) -> torch.Tensor:
        """Memory for one run alone, which measures how much a program needs."""
        self.bytes = max(self.bytes, size)
        return torch.empty(size, dtype=torch.uint8, device=device)

    def take(self, size: int, device: torch.device, place: Hashable, held: list[Block]) -> torch.Tensor:
        """Return ``size`` bytes, shared by the recordings whose replays are queued in one place.

        They stay where they are as long as ``held``, which gains them, is part of a recording.
        """
        self.bytes = max(self.bytes, size)
        with _LOCK:
            blocks = _BLOCKS.setdefault((device, place), WeakSet())
            fitting = [block for block in blocks if block.memory.numel() >= size]
            if fitting:
                block = min(fitting, key=lambda block: block.memory.numel())
            else:
                block = Block(torch.empty(self.bytes, dtype=torch.uint8, device=device))
                blocks.add(block)
        held.append(block)
        return block.memory[:size]
