"""Bytes of live tensors while something runs on the CPU, rounded as on a GPU: what a footprint claims."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from optfuse.solver.memory.footprint import ROUNDING


class LiveBytes(TorchDispatchMode):
    """A context in which every storage is counted from the operator that returns it until it is freed."""

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()
        self.live: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self.now = self.peak = 0
        for tensor in known:
            self.note(tensor)

    def note(self, tensor: torch.Tensor) -> None:
        """Count a tensor's memory, once."""
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001 - a storage has no public identity
        if key in self.live:
            return

        def gone(_: object) -> None:
            self.now -= self.live.pop(key)[0]

        size = -(-storage.nbytes() // ROUNDING) * ROUNDING
        self.live[key] = size, weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.note(leaf)
        return result
