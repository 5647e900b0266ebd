"""AOTAutograd around a compiler of ours: a graph of fixed sizes, or of a range of them, traced, split and compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from optfuse.compiler.frontend.aot_autograd.adapt import Feed
from optfuse.compiler.frontend.aot_autograd.joint import Chooser
from optfuse.compiler.frontend.aot_autograd.kept_code import Keeping, KeptCode, keepable, keeping, known_as
from optfuse.compiler.frontend.aot_autograd.kept_values import kept_values
from optfuse.compiler.frontend.aot_autograd.recognition import recognized
from optfuse.compiler.frontend.aot_autograd.saved_inputs import save_copies
from optfuse.compiler.frontend.aot_autograd.split_step import Split, output_names
from optfuse.compiler.frontend.calls.convention import Program
from optfuse.compiler.frontend.calls.flat import is_object
from optfuse.compiler.frontend.calls.shared_arguments import (
    Shared,
    require_no_write,
    same_storage,
    shared_memory,
)
from optfuse.compiler.frontend.calls.simulated import TracedGraph, unless_simulated
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.operators.decompositions import decompositions
from optfuse.compiler.frontend.torch_internals.torch_bridge import (
    DEPENDS_ON_DATA,
    aot_compile,
    boxed,
    compile_lock,
    donate_nothing,
    min_cut_partition,
    outside_of_modes,
    tree_leaves,
    written_inputs,
)
from optfuse.compiler.frontend.torch_internals.torch_sizes import has_unbacked_size
from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.problem.garbage_collection import rarely_collecting

CompileGraph = Callable[[Captured], Program]


#: Told a graph's name and the reason for which it runs as it was traced.
Leave = Callable[[str, str], None]
#: Told a graph's name and the error that compiling it raised; raises it again if the graph is not to run as traced.
Survive = Callable[[str, Exception], None]


def compile_flat(
    graph: GraphModule,
    inputs: Sequence[Any],
    feeds: Sequence[Feed],
    name: str,
    compile_graph: CompileGraph,
    *,
    eager_backward: bool = False,
    leave: Leave | None = None,
    survive: Survive | None = None,
    why_not: str | None = None,
    choose: Chooser | None = None,
    decisions: Decisions | None = None,
    keep: Keeping | None = None,
    given: Sequence[Any] | None = None,
) -> Callable[..., Any]:
    """Compile a flat graph (any torch operators, mutation allowed) through AOTAutograd with ``compile_graph``.

    Args:
        graph, inputs: What torch.compile hands to a backend: real or fake tensors, numbers.
        feeds: Per tensor or number among the inputs of ``graph`` (one may be a list of them): where it comes from, or
            the value of a constant.
        name, eager_backward: Graphs are called ``name.inference``, or ``name.forward`` and ``name.backward``. The
            latter is compiled at the first backward pass unless ``eager_backward``; then ``compile_graph`` sees every
            graph, also one that computes nothing and hands its inputs on.
        leave: Called for a graph that runs as it was traced, because it has a size that only its run tells. Without it
            such a graph is an error.
        survive: Called with an error that is raised while a graph is compiled: it raises it again, or the graph runs as
            it was traced. Without it every error is raised.
        why_not: A reason for which none of the graphs is to be scheduled.
        choose: Decides what the forward graph saves for the backward graph. None: the fewest bytes, by torch's minimum
            cut.
        decisions: ``inputs`` have symbolic sizes, which stay what they are.
        keep: How the compiled graphs are kept between processes. None: they are not.
        given: The inputs of the call, if those in ``inputs`` do not tell which share memory: then a write into one that
            does is an error.

    Returns:
        A function of the inputs that returns the graph's outputs, with autograd attached where it trains.
    """
    split = Split(name, feeds, choose, decisions, may_leave=leave is not None)
    compiler = _Compiler(split, compile_graph, eager_backward, leave, survive, why_not, keep, *_memory(inputs, given))
    return aot_compile(
        graph if why_not else known_as(graph, recognized(graph, inputs, feeds)),
        inputs,
        forward=compiler.of("forward"),
        backward=compiler.of("backward"),
        inference=compiler.of("inference"),
        partition=min_cut_partition if why_not else split.partition,
        decompositions=dict if why_not else decompositions,  # ours are for known sizes
        eager_backward=eager_backward,
        around=nullcontext() if keep is None else keeping(keep),
    )


def _memory(inputs: Sequence[Any], given: Sequence[Any] | None) -> tuple[Shared, tuple[tuple[int, ...], ...], int]:
    """The last fields of a ``_Compiler``."""
    leaves = tree_leaves(list(inputs if given is None else given))
    return () if given is None else shared_memory(leaves), same_storage(leaves), len(leaves)


@dataclass(frozen=True, slots=True)
class _Compiler:
    """What ``compile_flat`` makes of each graph that AOTAutograd hands over; the fields are its arguments."""

    split: Split
    compile_graph: CompileGraph
    eager_backward: bool
    leave: Leave | None
    survive: Survive | None
    why_not: str | None
    keep: Keeping | None
    #: inputs that may not be written as another one shares their memory, those of one storage, and how many there are
    shared: Shared
    together: tuple[tuple[int, ...], ...]
    count: int

    def of(self, kind: str) -> Callable[[GraphModule, Sequence[Any]], Callable[[list[Any]], Any]]:
        """The compiler of the "forward", the "backward" or the "inference" graph."""

        def compile_(module: GraphModule, _: Sequence[Any]) -> Callable[[list[Any]], Any]:
            if kind != "backward":
                require_no_write(module, self.shared)
            if kind == "forward":
                donate_nothing()
                save_copies(module, self.split.user_outputs or 0, self._counted_as_written(module))
            name = f"{self.split.name}.{kind}"
            reason = self.why_not or _data_dependent(module) or _uses_objects(module)
            if reason is not None and self.leave is not None:
                self.leave(name, reason)
                return self._as_it_is(module, kind)
            try:
                # torch calls us while tensors are fake
                with compile_lock, outside_of_modes(), rarely_collecting():
                    return self._adapted(module, kind)
            except Exception as error:
                if self.survive is None:
                    raise
                self.survive(name, error)
                self.split.kept = {}
                return self._as_it_is(module, kind)

        return compile_ if self.keep is None else keepable(compile_)

    def _counted_as_written(self, module: GraphModule) -> set[int]:
        """The inputs of a forward graph that are written, or of which autograd thinks so: it counts by storage."""
        written = set(written_inputs())
        if len(module.graph.find_nodes(op="placeholder")) == self.count:  # else torch has made one of several inputs
            written.update(*(group for group in self.together if not written.isdisjoint(group)))
        return written

    def _as_it_is(self, module: GraphModule, kind: str) -> Callable[[list[Any]], Any]:
        run = boxed(lambda arguments: module(*arguments))
        return run if self.keep is None else KeptCode(kind, run=run)

    def _adapted(self, module: GraphModule, kind: str) -> Callable[[list[Any]], Any]:
        adapted = self.split.adapt(module, kind, self.split.kept if kind == "backward" else None)
        captured, convention = adapted.captured, adapted.convention
        if captured.remainder and self.leave is not None and not computes(captured):
            self.leave(captured.name, f"no plan can hold {', '.join(captured.remainder)}")
        traced = TracedGraph(module, captured.name)
        compile_one = (
            self.compile_graph if self.eager_backward else partial(compile_or_pass, compile_graph=self.compile_graph)
        )
        bound = convention.bind(compile_one(captured))
        if self.leave is not None or self.split.decisions is not None:  # what optimize makes is watched in such modes
            bound = unless_simulated(bound, traced)
        if kind == "forward":
            self.split.kept = kept_values(captured, output_names(module))
        if self.keep is None:
            return bound
        product = self.keep.products.pop(captured.name, None)
        product = None if convention.remainder and convention.remainder.is_of_process() else product
        return KeptCode(kind, convention, self.keep.revival, product, traced, bound)


def _data_dependent(module: GraphModule) -> str | None:
    """A line naming the first node with a size or number that depends on the values of tensors; None without one."""
    for node in module.graph.nodes:
        # where torch._check settles a size it is a number here, but a run may fail the check
        settled = node.meta.get("unbacked_bindings")
        if settled or any(has_unbacked_size(value) for value in tree_leaves(node.meta.get("val"))):
            return f"{node.name} ({node.target}) has a size or value that only its run tells"
    return None


def _uses_objects(module: GraphModule) -> str | None:
    """A line naming an operator that takes an object among the graph's arguments; None if none does."""
    for node in module.graph.find_nodes(op="placeholder"):
        users = [user for user in node.users if user.op != "output"] if is_object(node) else []
        if users:
            return f"{users[0].name} ({users[0].target}) takes {node.name}, which is neither a tensor nor a number"
    return None


def compile_or_pass(captured: Captured, compile_graph: CompileGraph) -> Program:
    """``compile_graph(captured)``, or the graph itself where it computes nothing: inputs and constants handed on."""
    return compile_graph(captured) if computes(captured) else as_traced(captured)


def computes(captured: Captured) -> bool:
    """Whether a graph does more than to hand on inputs and constants."""
    return any(node.op == "call_function" for node in captured.graph.graph.nodes)


def as_traced(captured: Captured) -> Callable[[Sequence[torch.Tensor]], Sequence[Any]]:
    """Run the graph operator by operator, results laid out and new values of inputs written as a program does it."""
    written = dict(captured.mutations)

    def run(inputs: Sequence[torch.Tensor]) -> Sequence[Any]:
        outputs = captured.graph(*inputs[: len(captured.inputs)])
        with torch.no_grad():
            # one's new value may be another's old one
            fresh = [(inputs[target], outputs[position].clone()) for position, target in written.items()]
            for old, new in fresh:
                old.copy_(new)
        return [_laid_out(value, captured.strides.get(k)) for k, value in enumerate(outputs) if k not in written]

    return run


def _laid_out(value: Any, stride: Sequence[int] | None) -> Any:
    """A result in the strides that are promised of it, of which others may be windows; itself if it has them."""
    if stride is None or not isinstance(value, torch.Tensor) or value.stride() == tuple(stride):
        return value
    if not all(isinstance(step, int) and step > 0 for step in stride):  # of sizes that change, or repeated
        return value
    return torch.empty_strided(value.shape, tuple(stride), dtype=value.dtype, device=value.device).copy_(value)


def compile_unscheduled(compiled: Callable[..., Any], error: Exception) -> Callable[..., Any] | None:
    """The graph compiled with nothing scheduled, after an error; None if AOTAutograd itself raises the same one."""
    try:
        return compiled(why_not=f"{type(error).__name__}: {error}")
    except RuntimeError as again:
        if type(error) is type(again) and type(error) in (RuntimeError, *DEPENDS_ON_DATA):
            return None
        raise error from again
