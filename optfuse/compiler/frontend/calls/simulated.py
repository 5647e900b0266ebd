"""Run a graph as it was traced in calls that kernels cannot serve: fake or wrapped tensors, and dispatch modes.

Such calls have fake tensors, dual numbers of forward differentiation, or tensors under ``vmap`` (also that of
``autograd.grad(..., is_grads_batched=True)``), or are made in a ``TorchDispatchMode`` (counters of operations,
tracers). They run the graph operator by operator, as AOTAutograd has traced it.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from typing import Any

from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule

from optfuse.compiler.frontend.graph.rewrite import copied
from optfuse.compiler.frontend.torch_internals.function_modes import outside_function_modes
from optfuse.compiler.frontend.torch_internals.torch_bridge import boxed, is_simulated

logger = logging.getLogger("optfuse")

Run = Callable[[list[Any]], Any]


class TracedGraph:
    """A graph as AOTAutograd has traced it, to run operator by operator. For pickle it is text and tensors."""

    def __init__(self, graph: GraphModule, name: str) -> None:
        self.graph: GraphModule | bytes = graph
        self.name = name
        self._said = False

    def __call__(self, arguments: list[Any]) -> Any:
        """Run it; the list of arguments is emptied."""
        if not self._said:
            self._said = True
            logger.info("%s: calls in a mode of torch's run operator by operator, such as under vmap", self.name)
        graph = self.graph = pickle.loads(self.graph) if isinstance(self.graph, bytes) else self.graph
        given = tuple(arguments)
        arguments.clear()
        return graph(*given)

    def __getstate__(self) -> dict[str, Any]:
        """Its text, without what tracing has noted at its nodes."""
        text = self.graph
        if not isinstance(text, bytes):
            bare = copied(text)
            for node in bare.graph.nodes:
                node.meta.clear()
            bare.meta.clear()
            with unset_fake_temporarily():  # torch writes while it traces, when constants cannot leave a GPU
                text = pickle.dumps(bare)
        return {"graph": text, "name": self.name, "_said": False}


def unless_simulated(run: Run, traced: TracedGraph) -> Run:
    """``run``, or the traced graph in calls that kernels cannot serve."""
    alone = outside_function_modes(run)

    def call(arguments: list[Any]) -> Any:
        return traced(arguments) if is_simulated(arguments) else alone(arguments)

    return boxed(call)
