"""The one module that touches PyTorch's private or unstable interfaces. Everything here is found by feature, not version."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._dynamo.backends.common import aot_autograd
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes

TreeSpec = _pytree.TreeSpec
tree_flatten = _pytree.tree_flatten
tree_unflatten = _pytree.tree_unflatten
tree_leaves = _pytree.tree_leaves
tree_map = _pytree.tree_map

Compiler = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
Partitioner = Callable[..., tuple[torch.fx.GraphModule, torch.fx.GraphModule]]

__all__ = [
    "FakeTensor",
    "TreeSpec",
    "aot_compile",
    "boxed",
    "compiling",
    "decompose_exported",
    "decomposition_of",
    "export",
    "fake_result",
    "flat_input_index",
    "is_mutating",
    "is_random",
    "key_paths",
    "min_cut_partition",
    "outside_of_modes",
    "standard_decompositions",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_unflatten",
]


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the deprecation warnings that torch's own code triggers while tracing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def export(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.export.ExportedProgram:
    """Trace ``model`` to ATen operators that autograd has not seen yet. Runs no kernels; raises whatever tracing does."""
    with _quiet():
        return torch.export.export(model, args, dict(kwargs), strict=False)


def decompose_exported(
    program: torch.export.ExportedProgram, table: Mapping[Any, Callable[..., Any]]
) -> torch.export.ExportedProgram:
    """Functionalise, and decompose what ``table`` lists, composite operators included; what it lacks stays whole."""
    with _quiet():
        return program.run_decompositions(dict(table))


def standard_decompositions() -> dict[Any, Callable[..., Any]]:
    """Torch's decompositions to the core ATen opset, composite operators included."""
    return dict(core_aten_decompositions().items())


def decomposition_of(overload: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """Torch's own decomposition of ``overload``, if it has one."""
    return decomposition_table.get(overload)


def min_cut_partition(joint: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    """Split a joint graph so that the fewest bytes are kept for the backward graph."""
    return min_cut_rematerialization_partition(joint, inputs, **options)


def aot_compile(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    forward: Compiler,
    backward: Compiler,
    inference: Compiler,
    partition: Partitioner,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> Callable[..., Any]:
    """Compile a flat graph through AOTAutograd: the calling convention of a torch.compile backend.

    Returns a function of ``inputs`` (unboxed) that carries autograd, copies mutated inputs back and rebuilds views.
    """
    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partition,
        decompositions=dict(decompositions),
    )
    with _quiet():
        return backend(graph, inputs)


def boxed(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Mark ``function`` as one that takes its arguments in a single list, which it may empty."""
    function._boxed_call = True  # type: ignore[attr-defined]
    return function


def compiling() -> bool:
    """Whether torch.compile (rather than a call of ours) asked for a graph."""
    return torch._guards.TracingContext.try_get() is not None


def flat_input_index(placeholder: torch.fx.Node) -> int | None:
    """The position of an AOT forward graph's placeholder among the flat inputs, if torch says."""
    index = getattr(placeholder.meta.get("desc"), "idx", None)
    return index if isinstance(index, int) else None


def key_paths(tree: Any) -> list[str]:
    """A readable path to each leaf of ``tree``: "[0]", "['input_ids']"."""
    leaves, _ = _pytree.tree_flatten_with_path(tree)
    return [_pytree.keystr(path) for path, _ in leaves]


def outside_of_modes() -> Any:
    """A context in which operators run for real, even inside of a tracer."""
    return _disable_current_modes()


def fake_result(target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], like: Any = None) -> Any:
    """What ``target`` yields on fake tensors (args may hold nodes, whose ``meta["val"]`` is then meant).

    ``like`` is a fake tensor whose mode serves when no argument has one.
    """

    def value(argument: Any) -> Any:
        return argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument

    real_args = torch.fx.node.map_aggregate(tuple(args), value)
    real_kwargs = torch.fx.node.map_aggregate(dict(kwargs), value)
    leaves = [leaf for leaf in (*tree_leaves((real_args, real_kwargs)), like) if isinstance(leaf, FakeTensor)]
    mode = detect_fake_mode(leaves) if leaves else None
    with mode or FakeTensorMode():
        return target(*real_args, **real_kwargs)


def is_random(target: Any) -> bool:
    """Whether an operator draws from a generator, so that two calls differ."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def is_mutating(node: torch.fx.Node) -> bool:
    """Whether a node of a graph that is not functional may write into one of its arguments."""
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if "out" in node.kwargs:
        return True
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name in {"setitem", "__setitem__"} or name in _IN_PLACE_OPERATORS


_IN_PLACE_OPERATORS = frozenset(
    "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift imatmul".split()
)
