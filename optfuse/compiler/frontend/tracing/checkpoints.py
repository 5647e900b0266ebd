"""Regions that a model hands to ``torch.utils.checkpoint``, kept while it is exported.

Export runs a region as if it were not one. Here each of its nodes is marked with the region, and the marks become what
torch's partitioner obeys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch.utils.checkpoint as torch_checkpoint
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode

_MARK = "optfuse_checkpoint"
_RUNS = "_checkpoint_without_reentrant_generator"


@contextmanager
def marked_checkpoints() -> Iterator[list[str]]:
    """Within it, export marks the nodes of each region. Yields the regions with a policy of their own, in words."""
    numbers = count()
    policies: list[str] = []
    own = getattr(torch_checkpoint, _RUNS)

    def region(
        function: Callable[..., Any], _preserve: bool, context: Callable[..., Any], *_: Any, **__: Any
    ) -> Iterator[None]:
        if context is not torch_checkpoint.noop_context_fn:
            policies.append(f"the checkpoint of {getattr(function, '__qualname__', type(function).__name__)}")
        mode = get_proxy_mode()
        before = set(mode.tracer.graph.nodes) if mode is not None else set[Node]()
        yield
        number = next(numbers)  # of a region inside of another one, first
        for node in mode.tracer.graph.nodes if mode is not None else ():
            if node not in before:
                node.meta["custom"] = {_MARK: number, **(node.meta.get("custom") or {})}

    setattr(torch_checkpoint, _RUNS, region)
    try:
        yield policies
    finally:
        setattr(torch_checkpoint, _RUNS, own)


def obey_checkpoints(graph: Graph) -> int:
    """Mark each node of a checkpointed region for torch's partitioner to recompute in the backward graph.

    Returns how many regions there are.
    """
    regions = set()
    for node in graph.nodes:
        region = (node.meta.get("custom") or {}).get(_MARK)
        if region is not None:
            node.meta["recompute"] = torch_checkpoint.CheckpointPolicy.PREFER_RECOMPUTE
            node.meta["ac_graph_id"] = region
            regions.add(region)
    return len(regions)
