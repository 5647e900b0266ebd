"""What is kept of a scheduled graph between processes: its module, constants, and what was proved of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch

from optfuse.compiler.frontend.captured import InputSource
from optfuse.compiler.frontend.kept_code import Keeping
from optfuse.compiler.ir.collectives import communicates
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, Op
from optfuse.compiler.ops.opaque_operators import NAMESPACE
from optfuse.problem.device_files import load_device
from optfuse.runtime import environment
from optfuse.runtime.graph_choice import Interest
from optfuse.torch_compile.compiled import CompiledGraph
from optfuse.version import code_digest

logger = logging.getLogger("optfuse")

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


def is_opaque(op: Op) -> bool:
    """Whether an op calls an operator that was made for one node of this process."""
    return isinstance(op, LibraryCall) and op.target.partition(".")[0] == NAMESPACE


def keeping_of(
    name: str,
    feeds: Sequence[Any],
    device: str,
    options: str,
    revive: Callable[[str, Product], Callable[[list[torch.Tensor]], Sequence[Any]]],
    products: dict[str, Product | None],
) -> Keeping | None:
    """How the graphs of ``name`` are kept; None where an input is a constant's value.

    ``options``: a text that tells all that was asked for. ``revive`` makes the function that runs a graph, of its name
    and product. ``products`` is filled, by name, when graphs are compiled.
    """
    if not all(isinstance(feed, InputSource) for feed in feeds):
        return None
    kinds = [feed.kind for feed in feeds]
    key = repr((code_digest(), environment.mode(), kinds, load_device(device), options))

    def again(kind: str, product: Product) -> Callable[[list[torch.Tensor]], Sequence[Any]]:
        logger.info("%s.%s is taken from the cache: %s", name, kind, product.facts.status)
        return revive(f"{name}.{kind}", product)

    return Keeping(sha256(key.encode()).hexdigest(), again, products)
