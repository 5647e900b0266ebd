"""Derive the random tensors of a training step from one seed, so that the backward graph can recompute them."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from optfuse.compiler.frontend.graph.rewrite import fake, insert, swap
from optfuse.compiler.frontend.torch_internals.torch_bridge import is_tangent
from optfuse.compiler.frontend.torch_internals.torch_sizes import is_symbolic
from optfuse.compiler.ops import registered  # noqa: F401 - registers the operators

aten = torch.ops.aten
STEP_SEED, SEEDED = torch.ops.optfuse.step_seed.default, torch.ops.optfuse.seeded_random.default

#: What torch notes at nodes of checkpointed regions, and at those for which it is asked for a budget.
CHOSEN = frozenset({"recompute", "ac_graph_id", "memory_budget"})
#: Operators that draw uniform numbers in [0, 1), and those that draw normal ones.
_UNIFORM = frozenset({aten.rand.default, aten.rand_like.default})
_NORMAL = frozenset({aten.randn.default, aten.randn_like.default})


def seed_draws(joint: GraphModule) -> None:
    """Let uniform and normal tensors follow from one seed a device, which the forward graph draws; in place.

    Each is then a function of the seed and of its number among the graph's draws, as kernels compute it in any case, so
    that the backward graph may compute it again instead of reading it. Others are left as they are.
    """
    given: dict[torch.device, Node] = {}
    for node in joint.graph.find_nodes(op="placeholder"):
        value = fake(node)
        if value is not None and not is_tangent(node):
            given.setdefault(value.device, node)
    drawing = [node for node in joint.graph.nodes if node.target in _UNIFORM | _NORMAL]
    seeds: dict[torch.device, Node] = {}
    for number, node in enumerate(drawing):
        value = fake(node)
        if value is None or not value.dtype.is_floating_point or value.device not in given:
            continue
        if any(is_symbolic(size) for size in (*value.shape, *value.stride())):
            continue
        if value.device not in seeds:
            seeds[value.device] = seed = insert(joint.graph, node, STEP_SEED, (given[value.device],))
            for mark in CHOSEN:
                seed.meta.pop(mark, None)
        facts = (list(value.shape), list(value.stride()), value.dtype)
        swap(node, insert(joint.graph, node, SEEDED, (seeds[value.device], number, node.target in _NORMAL, *facts)))
