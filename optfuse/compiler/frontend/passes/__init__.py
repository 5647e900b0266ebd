"""Simplifications of a captured graph, in order. Each takes a Captured and returns a new one that computes the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch.fx import Node

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.passes.cached_attention import split_cached_attention
from optfuse.compiler.frontend.passes.collectives import coalesce_collectives, join_reductions, reduce_in_place
from optfuse.compiler.frontend.passes.complex_numbers import compute_parts
from optfuse.compiler.frontend.passes.constants import fold_constants
from optfuse.compiler.frontend.passes.contractions import contract_products
from optfuse.compiler.frontend.passes.convolutions import ease_convolutions
from optfuse.compiler.frontend.passes.depth_multipliers import separate_depths
from optfuse.compiler.frontend.passes.duplicates import merge_duplicates
from optfuse.compiler.frontend.passes.experts import sum_over_experts
from optfuse.compiler.frontend.passes.few_groups import join_groups
from optfuse.compiler.frontend.passes.groups import widen_groups
from optfuse.compiler.frontend.passes.host_numbers import compute_host_numbers_on_device
from optfuse.compiler.frontend.passes.items import expand_items
from optfuse.compiler.frontend.passes.joint_products import join_products
from optfuse.compiler.frontend.passes.known_places import gather_known_sums
from optfuse.compiler.frontend.passes.lazy_views import materialize_lazy_views
from optfuse.compiler.frontend.passes.matmuls import fuse_matmul_activations
from optfuse.compiler.frontend.passes.noops import drop_assertions, remove_noops
from optfuse.compiler.frontend.passes.opaque import isolate_opaque
from optfuse.compiler.frontend.passes.ragged_channels import pad_channels
from optfuse.compiler.frontend.passes.wide_groups import separate_groups

PASSES: tuple[Callable[[Captured], Captured], ...] = (
    isolate_opaque,
    drop_assertions,
    materialize_lazy_views,
    compute_parts,
    expand_items,
    merge_duplicates,  # first, so that equal constants are folded once
    fold_constants,
    gather_known_sums,
    separate_depths,
    join_groups,
    ease_convolutions,
    pad_channels,
    widen_groups,
    separate_groups,
    remove_noops,
    contract_products,
    fuse_matmul_activations,
    split_cached_attention,
    sum_over_experts,
    merge_duplicates,
    join_products,
    join_reductions,
    coalesce_collectives,
    reduce_in_place,
    compute_host_numbers_on_device,
)


def normalize(captured: Captured) -> Captured:
    """Run ``PASSES`` in order. Unused nodes are removed after each; what the caller sees keeps its strides."""
    promised = _seen_strides(captured)
    for rewrite in PASSES:
        captured = rewrite(captured)
    captured.graph.graph.lint()
    now = _seen_strides(captured)
    changed = {position: stride for position, stride in promised.items() if now.get(position, stride) != stride}
    return replace(captured, strides={**changed, **captured.strides})


def _seen_strides(captured: Captured) -> dict[int, tuple[int, ...]]:
    """The strides of the outputs that the caller sees."""
    outputs = captured.outputs
    visible = range(len(outputs)) if captured.visible is None else captured.visible
    values = {k: outputs[k].meta.get("val") for k in visible if isinstance(outputs[k], Node)}
    return {k: tuple(value.stride()) for k, value in values.items() if isinstance(value, torch.Tensor)}
