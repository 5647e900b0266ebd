"""What is kept of a scheduled graph between processes: its module, constants, and what was proved of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from optfuse.compiler.frontend.aot_autograd.kept_code import Keeping
from optfuse.compiler.frontend.graph.captured import InputSource
from optfuse.compiler.ir.collectives import communicates
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, Op
from optfuse.compiler.ops.opaque_operators import NAMESPACE
from optfuse.problem.device_files import load_device
from optfuse.runtime import environment
from optfuse.runtime.graph_choice import Interest
from optfuse.torch_compile.compiled import CompiledGraph
from optfuse.version import code_digest

logger = logging.getLogger("optfuse")

#: Makes the function that runs a graph, of its name and product.
Revive = Callable[[str, Any], Callable[[list[torch.Tensor]], Sequence[Any]]]

#: Notes and says that a graph is not scheduled: its name, and the reason.
Leave = Callable[[str, str], None]

#: Bytes of constants up to which a graph is kept.
MOST_CONSTANTS = 16 << 20


@dataclass(frozen=True, slots=True)
class Product:
    """A scheduled graph without its schedule: the data needed to run it and to report on it."""

    source: str
    constants: Mapping[str, torch.Tensor]
    interest: Interest
    facts: CompiledGraph

    def is_kept(self, graph: LoopGraph) -> bool:
        """Whether it is kept: not with large constants, with collectives, or with opaque operators.

        Ranks compare their orders of collectives when they compile: one that does not would keep the others waiting.
        An opaque operator is known to its own process alone.
        """
        large = sum(value.nbytes for value in self.constants.values()) > MOST_CONSTANTS
        return not large and not any(communicates(op) or is_opaque(op) for op in graph.ops)


class Revival:
    """Revives the graphs of one call of the backend in a process that has not made that call; can be pickled.

    ``make``: a function of no arguments, that can be pickled; it is called once for all graphs. It returns two
    functions: one makes a graph's function of its name and product, the other one says why a graph is not scheduled.
    """

    def __init__(self, name: str, device: str, make: Callable[[], tuple[Revive, Leave]]) -> None:
        self.name = name
        self.device = device
        self.stamp = stamp_of(device)
        self.make = make
        self._made: tuple[Revive, Leave] | None = None

    def __call__(self, kind: str, product: Product) -> Callable[[list[torch.Tensor]], Sequence[Any]] | None:
        """The function that runs a graph; None, which is said, if another version made it, or for another device."""
        name = f"{self.name}.{kind}"
        revive, leave = self._made = self._made or self.make()
        if self.stamp != stamp_of(self.device):
            leave(name, f"it was kept by another version, or for another device; empty {cache_dir()}")
            return None
        logger.info("%s is taken from the cache: %s", name, product.facts.status)
        return revive(name, product)

    def __getstate__(self) -> dict[str, Any]:
        """All but what was made in this process."""
        return {**self.__dict__, "_made": None}


def stamp_of(device: str) -> str:
    """A text that changes with this package, with the way in which kernels run, and with the device's description."""
    return sha256(repr((code_digest(), environment.mode(), load_device(device))).encode()).hexdigest()


def is_opaque(op: Op) -> bool:
    """Whether an op calls an operator that was made for one node of this process."""
    return isinstance(op, LibraryCall) and op.target.partition(".")[0] == NAMESPACE


def keeping_of(
    name: str,
    feeds: Sequence[Any],
    device: str,
    options: str,
    revive: Revive,
    make: Callable[[], tuple[Revive, Leave]],
    products: dict[str, Product | None],
) -> Keeping | None:
    """How the graphs of ``name`` are kept; None where an input is a constant's value.

    ``options``: a text that tells all that was asked for. ``revive`` makes the function that runs a graph, of its name
    and product, and ``make`` what ``Revival`` asks for. ``products`` is filled, by name, when graphs are compiled.
    """
    if not all(isinstance(feed, InputSource) for feed in feeds):
        return None
    kinds = [feed.kind for feed in feeds]
    key = repr((stamp_of(device), kinds, options))

    def again(kind: str, product: Product) -> Callable[[list[torch.Tensor]], Sequence[Any]]:
        logger.info("%s.%s is taken from the cache: %s", name, kind, product.facts.status)
        return revive(f"{name}.{kind}", product)

    return Keeping(sha256(key.encode()).hexdigest(), again, Revival(name, device, make), products)
