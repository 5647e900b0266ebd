"""Save no seed for the gradient of attention that drops nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule

from optfuse.compiler.frontend.graph.rewrite import fake, insert

aten = torch.ops.aten

#: Of the gradients' operators, the positions of the dropout's rate, and of the seed and what is counted from it.
_PLACES: dict[Any, tuple[int, tuple[int, int]]] = {
    aten._scaled_dot_product_flash_attention_backward.default: (10, (12, 13)),  # noqa: SLF001 - the operator's name
    aten._scaled_dot_product_efficient_attention_backward.default: (9, (7, 8)),  # noqa: SLF001
    aten._scaled_dot_product_cudnn_attention_backward.default: (13, (6, 7)),  # noqa: SLF001
}


def save_no_seeds(joint: GraphModule) -> None:
    """Give the gradients of attention without dropout zeros for seeds that they do not read. Changes ``joint``.

    Before: ``.._attention_backward(grad, .., getitem(.._attention(q, k, v), 2), getitem(.., 3), 0.0, ..)``.
    After: ``.._attention_backward(grad, .., full([], 0), full([], 0), 0.0, ..)``.

    Torch returns them in the host's memory, but on the GPU while a CUDA graph is recorded: they would be copied in each
    step, and a checkpoint that finds them elsewhere when it computes a region again is an error.
    """
    for target, (rate, places) in _PLACES.items():
        for node in joint.graph.find_nodes(op="call_function", target=target):
            seeds = [fake(node.args[place]) for place in places]
            if node.args[rate] != 0.0:
                continue
            for place, seed in zip(places, seeds, strict=True):
                if seed is not None:
                    given = {"dtype": seed.dtype, "device": seed.device}
                    node.update_arg(place, insert(joint.graph, node, aten.full.default, (list(seed.shape), 0), given))
    joint.recompile()
