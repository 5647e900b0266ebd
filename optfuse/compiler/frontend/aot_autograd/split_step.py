"""Split a training step's joint graph into a forward and a backward graph, and adapt both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule

from optfuse.compiler.frontend.aot_autograd.adapt import Adapted, Feed, adapt
from optfuse.compiler.frontend.aot_autograd.joint import (
    Choice,
    Chooser,
    JointStep,
    cut_as_chosen,
    has_own_choice,
    joint_values,
    name_nodes,
    regions_of,
    without_own_choice,
)
from optfuse.compiler.frontend.aot_autograd.kept_values import Kept, kept_values
from optfuse.compiler.frontend.aot_autograd.saved_inputs import saved_name
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.graph.rewrite import copied
from optfuse.compiler.frontend.passes.attention_seeds import save_no_seeds
from optfuse.compiler.frontend.passes.draws import seed_draws
from optfuse.compiler.frontend.passes.lazy_views import save_no_lazy_views
from optfuse.compiler.frontend.passes.matmuls import take_out_biases
from optfuse.compiler.frontend.passes.max_pooling import keep_offsets, release_pooled
from optfuse.compiler.frontend.passes.noops import drop_copies
from optfuse.compiler.frontend.passes.recompute_expanded import recompute_expanded
from optfuse.compiler.frontend.passes.relu_masks import derive_relu_masks
from optfuse.compiler.frontend.torch_internals.torch_bridge import min_cut_partition, outside_of_modes, without_repeats
from optfuse.compiler.frontend.torch_internals.torch_fakes import mode_of_values
from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.problem.garbage_collection import rarely_collecting


@dataclass(slots=True)
class Split:
    """What the partition found (how many outputs of the forward graph are the user's), and the layouts of the rest."""

    name: str
    feeds: Sequence[Feed]
    choose: Chooser | None = None
    decisions: Decisions | None = None
    user_outputs: int | None = None
    may_leave: bool = False
    #: what the forward graph keeps, by the names of the backward graph's placeholders
    kept: Mapping[str, Kept] = field(default_factory=dict)

    def partition(self, joint: GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        """Torch's partitioner: the two graphs of a joint one."""
        self.user_outputs = options.get("num_fwd_outputs")
        save_no_lazy_views(joint)
        save_no_seeds(joint)
        keep_offsets(joint)
        release_pooled(joint)
        take_out_biases(joint)
        choice, own = None, has_own_choice(joint)
        if not own:
            drop_copies(joint)
        derive_relu_masks(joint)
        if own:
            seed_draws(joint)  # torch would hand generators to both graphs
        if self.choose is not None and self.user_outputs is not None:
            if not own:
                without_repeats(joint)
                seed_draws(joint)
            with outside_of_modes(), rarely_collecting():
                choice = self.choose(self._step(joint, inputs, options, own=own))
        return self._cut(joint, choice, inputs, options)

    def _step(self, joint: GraphModule, inputs: Sequence[Any], options: Mapping[str, Any], *, own: bool) -> JointStep:
        """The step of a joint graph; ``own``: the user has decided what it saves."""

        def halves(graph: GraphModule, choice: Choice | None) -> tuple[Captured, Captured]:
            with mode_of_values(graph) if own else nullcontext():
                forward, backward = self._cut(graph, choice, inputs, options)
            adapted = self.adapt(forward, "forward")
            kept = kept_values(adapted.captured, output_names(forward))
            return adapted.captured, self.adapt(backward, "backward", kept).captured

        def split(choice: Choice | None) -> tuple[Captured, Captured]:
            return halves(copied(joint), choice)

        if own:
            return JointStep(
                self.name, (), {}, split, regions_of(joint), lambda: halves(without_own_choice(joint), None)
            )
        name_nodes(joint)
        return JointStep(self.name, *joint_values(joint, self.user_outputs or 0), split)

    def _cut(self, joint: GraphModule, choice: Choice | None, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
        if choice is not None and self.user_outputs is not None:
            return cut_as_chosen(joint, choice, self.user_outputs)
        forward, backward = min_cut_partition(joint, inputs, **options)
        if self.user_outputs is not None:
            recompute_expanded(forward, backward, self.user_outputs)
        return forward, backward

    def adapt(self, module: GraphModule, kind: str, given: Mapping[str, Kept] | None = None) -> Adapted:
        """One of the two graphs, or the inference graph, as a Captured."""
        visible = range(self.user_outputs) if kind == "forward" and self.user_outputs is not None else None
        return adapt(
            module,
            f"{self.name}.{kind}",
            self.feeds,
            None if visible is None else frozenset(visible),
            given or {},
            self.decisions,
            may_leave=self.may_leave,
        )


def output_names(module: GraphModule) -> list[str | None]:
    """The names of a graph's outputs, as a backward graph has them; None for those that are no nodes."""
    outputs: Sequence[Any] = module.graph.output_node().args[0]  # type: ignore[assignment]
    return [saved_name(node) if isinstance(node, torch.fx.Node) else None for node in outputs]
