"""Put operators of ours into a graph of torch.compile's for what AOTAutograd would take apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from optfuse.compiler.frontend.aot_autograd.adapt import Feed
from optfuse.compiler.frontend.operators.mask_writes import choose_by_masks
from optfuse.compiler.frontend.operators.product_gradients import scan_product_gradients
from optfuse.compiler.frontend.passes.attention import keep_attention_whole, simplify_attention_masks
from optfuse.compiler.frontend.passes.attention_weights import drop_attention_weights
from optfuse.compiler.frontend.passes.bags import sum_bags
from optfuse.compiler.frontend.passes.epilogues import fuse_activations
from optfuse.compiler.frontend.passes.inference_regions import leave_inference_mode
from optfuse.compiler.frontend.passes.instances import norm_channels
from optfuse.compiler.frontend.passes.interpolation import interpolate_by_dimensions
from optfuse.compiler.frontend.passes.written_attention import recognize_attention
from optfuse.compiler.frontend.torch_internals.torch_bridge import records_gradients, tree_leaves

#: What needs nothing but the graph, in this order.
_REWRITES = (
    drop_attention_weights,
    sum_bags,
    choose_by_masks,
    norm_channels,
    interpolate_by_dimensions,
    scan_product_gradients,
)


def recognized(graph: GraphModule, inputs: Sequence[Any], feeds: Sequence[Feed]) -> GraphModule:
    """The graph with attention, bags, norms, interpolation, writes by masks and cumulative products rewritten.

    Without gradients, so are activations of convolutions. Inference mode within it becomes a mode without gradients.
    """
    known = {
        node.name: feed
        for node, feed in zip(graph.graph.find_nodes(op="placeholder"), feeds, strict=False)
        if isinstance(feed, torch.Tensor)
    }
    graph = leave_inference_mode(graph, enabled=torch.is_grad_enabled())
    for rewrite in _REWRITES:
        graph = rewrite(graph)
    graph = keep_attention_whole(simplify_attention_masks(recognize_attention(graph), known))
    return graph if _needs_gradients(graph, tree_leaves(inputs)) else fuse_activations(graph)


def _needs_gradients(graph: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether gradients may be wanted of a call with such inputs."""
    return records_gradients(graph) and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
