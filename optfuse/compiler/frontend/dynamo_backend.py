"""A torch.compile backend: a graph of Dynamo's is compiled whole, in parts, for a range of sizes or at each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Protocol

import torch
from torch.fx import GraphModule

from optfuse.compiler.frontend.aot_autograd.adapt import Feed
from optfuse.compiler.frontend.aot_autograd.aot import (
    CompileGraph,
    Leave,
    Survive,
    compile_flat,
    compile_or_pass,
    compile_unscheduled,
)
from optfuse.compiler.frontend.aot_autograd.joint import Chooser
from optfuse.compiler.frontend.aot_autograd.kept_code import Keeping
from optfuse.compiler.frontend.calls.convention import Program
from optfuse.compiler.frontend.calls.shared_arguments import reads_offsets, shared_memory
from optfuse.compiler.frontend.graph.captured import Captured, InputSource
from optfuse.compiler.frontend.parts.data_parts import cut_nodes, in_parts
from optfuse.compiler.frontend.parts.nested import has_nested, of_dense_tensors
from optfuse.compiler.frontend.sizes.buckets import BucketSizes, in_buckets_or_not
from optfuse.compiler.frontend.sizes.by_size import at_any_size
from optfuse.compiler.frontend.sizes.size_range import Ranged, checked_range
from optfuse.compiler.frontend.sizes.size_reader import size_reader
from optfuse.compiler.frontend.sizes.tensor_numbers import with_items
from optfuse.compiler.frontend.torch_internals.torch_bridge import RestartAnalysis, tree_leaves
from optfuse.compiler.ir.size_decisions import Decisions
from optfuse.errors import FOR_CALLER, CaptureError


class CompileRange(Protocol):
    """Compiles the graphs of one function for a range of sizes."""

    def __call__(self, captured: Captured) -> Program:
        """The program of one graph."""
        ...

    def check(self, decisions: Decisions) -> None:
        """Raise an error if a graph compiled before has another program at the sizes of ``decisions``."""
        ...


def _survivor(survive: Survive | None, error: Exception) -> Survive:
    """Return ``survive``. Raises the error if that is None, or if the error asks Dynamo to trace the function again."""
    if survive is None or isinstance(error, RestartAnalysis):
        raise error
    return survive


def make_backend(
    compile_graph: CompileGraph,
    *,
    name: str = "compiled",
    leave: Leave | None = None,
    survive: Survive | None = None,
    choose: Chooser | None = None,
    compile_range: Callable[[], CompileRange] | None = None,
    leave_range: Leave | None = None,
    keep: Callable[[str, Sequence[Feed]], Keeping | None] | None = None,
    buckets: BucketSizes | None = None,
    plan_size: Callable[[int], int] | None = None,
) -> Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A backend for ``torch.compile(model, backend=make_backend(compile_graph))``, for inference and training.

    A graph with symbolic sizes is compiled for a range of them, or for each of those that come (``BySize``), and one
    with nodes that read the values of tensors in parts (``in_parts``): torch.compile itself traces and guards it once.
    Graphs are named ``compiled0.forward``, ``compiled1.inference`` and so on, in order of tracing;
    ``compiled0[s77=5].forward`` is one at a size. ``leave``, ``survive``, ``choose``: see ``compile_flat``. ``keep``:
    how graphs without symbolic sizes are kept between processes, by their name and where their inputs come from.
    ``buckets``: see ``frontend.sizes.buckets``; ``plan_size``: see ``BySize``.
    """
    numbers = count()
    backend = _Backend(
        compile_graph, leave, survive, choose, compile_range, leave_range, keep, buckets or {}, plan_size
    )
    return lambda graph, example_inputs: backend.compile(graph, f"{name}{next(numbers)}", example_inputs)


@dataclass(frozen=True, slots=True)
class _Backend:
    """How ``make_backend`` compiles a graph of Dynamo's; the fields are its arguments."""

    compile_graph: CompileGraph
    leave: Leave | None
    survive: Survive | None
    choose: Chooser | None
    compile_range: Callable[[], CompileRange] | None
    leave_range: Leave | None
    keep: Callable[[str, Sequence[Feed]], Keeping | None] | None
    buckets: BucketSizes
    plan_size: Callable[[int], int] | None

    def compile(self, graph: GraphModule, name: str, inputs: Sequence[Any]) -> Callable[..., Any]:
        """``graph`` compiled; in parts or at each of its sizes where these are symbolic."""
        try:
            graph = with_items(graph)
            if has_nested(inputs):
                return of_dense_tensors(graph, name, inputs, replace(self, buckets={}).compile, self.leave)
            ranged = None if self.compile_range is None else self.for_sizes
            if cuts := cut_nodes(graph):
                return in_parts(graph, name, cuts, self.at_size, self.leave, ranged)
            if size_reader(graph, inputs) is None and not reads_offsets(graph):
                return self.at_size(graph, name, inputs, whole=True)
            run = at_any_size(
                graph, name, inputs, self.at_size, self.leave, compile_range=ranged, plan_size=self.plan_size
            )
            return in_buckets_or_not(graph, name, inputs, self.buckets, run)
        except CaptureError as error:
            if self.leave is None:
                raise
            self.leave(name, str(error))
        except Exception as error:
            _survivor(self.survive, error)(name, error)
        return graph

    def at_size(
        self, graph: GraphModule, name: str, inputs: Sequence[Any], *, whole: bool = False
    ) -> Callable[..., Any]:
        """``graph``, without symbolic sizes, compiled. ``whole``: it is as Dynamo has traced it."""
        feeds = _feeds(graph, inputs)
        compiled = partial(
            compile_flat, graph, inputs, feeds, name, self.compile_graph, leave=self.leave, choose=self.choose
        )
        try:
            # torch keeps graphs by their inputs one by one, so that one of shared inputs would serve others, too
            apart = whole and not shared_memory(inputs)
            return compiled(survive=self.survive, keep=self.keep(name, feeds) if apart and self.keep else None)
        except (RestartAnalysis, *FOR_CALLER):
            raise
        except Exception as error:
            left = compile_unscheduled(compiled, error)
            if left is None and self.leave is not None:  # no defect of ours
                self.leave(name, f"torch cannot trace it: {str(error).partition(chr(10))[0]}")
                return graph  # what is wrong with it, its run says
            _survivor(self.survive, error)(name, error)
            return left or compiled(why_not=f"{type(error).__name__}: {error}")

    def for_sizes(
        self, graph: GraphModule, name: str, sizes: Mapping[str, int], inputs: Sequence[Any]
    ) -> Ranged | None:
        """``graph`` compiled for a range of sizes, its programs made again at others to see that they stay."""
        assert self.compile_range is not None, "the caller has looked"
        compiler = self.compile_range()
        compile_one = partial(compile_or_pass, compile_graph=compiler)
        feeds = _feeds(graph, inputs)

        def build(traced: GraphModule, fakes: Sequence[Any], decisions: Decisions) -> Callable[..., Any]:
            # the backward graph is built now, so that its guards and its text are known with the forward graph's
            return compile_flat(
                traced,
                fakes,
                feeds,
                name,
                compile_one,
                decisions=decisions,
                eager_backward=True,
                given=inputs,
            )

        say = self.leave_range
        return checked_range(graph, sizes, inputs, build, compiler.check, lambda reason: say and say(name, reason))


def _feeds(graph: GraphModule, inputs: Sequence[Any]) -> list[InputSource]:
    """The source of each tensor or number among the inputs of a graph."""
    pairs = zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True)
    return [_source(node, leaf) for node, value in pairs for leaf in tree_leaves(value)]


def _source(node: torch.fx.Node, value: Any) -> InputSource:
    if isinstance(value, torch.nn.Parameter):
        return InputSource("parameter", node.name)
    # Dynamo says of a module's tensors, and of those marked by ``mark_static_address``, that they stay where they are
    stays = node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type") is not None
    return InputSource("buffer" if stays else "user", node.name)
