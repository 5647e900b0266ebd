"""Graphs of nested tensors: AOTAutograd's graphs of the dense tensors that these are made of, each compiled by itself.

A jagged tensor is its values and offsets. Its ragged size is a symbol even where all other sizes are known, so that
AOTAutograd looks at such a graph as Dynamo has traced it. What that makes of it has dense tensors and ordinary sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import getitem
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from optfuse.compiler.frontend.torch_internals.torch_bridge import aot_compile, boxed, is_random, min_cut_partition
from optfuse.compiler.frontend.torch_internals.torch_sizes import is_ragged_size

#: Compiles a graph, given what to call it and its arguments.
CompileDense = Callable[[GraphModule, str, Sequence[Any]], Callable[..., Any]]
#: Told a graph's name and the reason for which it runs as it was traced.
Leave = Callable[[str, str], None]


def has_nested(inputs: Sequence[Any]) -> bool:
    """Whether a nested tensor is among the arguments of a graph."""
    return any(isinstance(value, torch.Tensor) and value.is_nested for value in inputs)


def of_dense_tensors(
    graph: GraphModule, name: str, inputs: Sequence[Any], compile_dense: CompileDense, leave: Leave | None
) -> Callable[..., Any]:
    """A graph with nested tensors among its arguments, compiled as graphs of dense ones without gradients.

    The halves of a training step are called ``compiled0.forward`` and ``compiled0.backward``, an inference graph is
    called ``name``. What the forward graph saves is decided by torch's minimum cut.
    """

    def compiler(half: str) -> Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]:
        return lambda module, _: boxed(_compiled_dense(module, f"{name}{half}", compile_dense, leave))

    return aot_compile(
        graph,
        inputs,
        forward=compiler(".forward"),
        backward=compiler(".backward"),
        inference=compiler(""),
        partition=_partition,
        decompositions=dict,
    )


def _partition(joint: GraphModule, inputs: Sequence[Any], **options: Any) -> tuple[GraphModule, GraphModule]:
    """Torch's minimum cut that saves what a checkpointed region has drawn.

    To draw it again, torch would add nodes that restore its generator, which cannot be traced once more.
    """
    for node in joint.graph.nodes:
        if "recompute" in node.meta and is_random(node.target):
            for saved in (node, *(user for user in node.users if user.target is getitem)):
                saved.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return min_cut_partition(joint, inputs, **options)


def _compiled_dense(
    module: GraphModule, name: str, compile_dense: CompileDense, leave: Leave | None
) -> Callable[[list[Any]], Any]:
    """One of AOTAutograd's graphs compiled like one of Dynamo's, whose traced values have another name."""
    for node in module.graph.nodes:
        node.meta["example_value"] = node.meta.get("val")
    placeholders = module.graph.find_nodes(op="placeholder")
    ragged = {node: k for k, node in enumerate(placeholders) if is_ragged_size(node.meta["val"])}
    computed = [user.name for node in ragged for user in node.users if user.op != "output"]
    if computed:
        if leave is not None:
            leave(name, f"{computed[0]} computes with a ragged size, which is no number")
        return lambda arguments: module(*arguments)
    results = _without(module, ragged)
    kept = [k for k, node in enumerate(placeholders) if node not in ragged]
    run = compile_dense(module, name, [placeholders[k].meta["val"] for k in kept])
    return partial(_run_dense, run, kept, results)


def _without(module: GraphModule, ragged: dict[Node, int]) -> list[int | None]:
    """Take ragged sizes out of a graph's arguments and results; per result the argument that it is, None for others."""
    output = module.graph.output_node()
    values = list(output.args[0])
    output.args = ([value for value in values if value not in ragged],)
    for node in ragged:
        module.graph.erase_node(node)
    module.recompile()
    return [ragged.get(value) if isinstance(value, Node) else None for value in values]


def _run_dense(
    run: Callable[..., Any], kept: Sequence[int], results: Sequence[int | None], arguments: list[Any]
) -> list[Any]:
    """The results of a graph without ragged sizes, and those among the arguments that are results."""
    computed = iter(run(*(arguments[k] for k in kept)))
    return [next(computed) if place is None else arguments[place] for place in results]
