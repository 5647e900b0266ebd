"""Call a captured graph's program with the user's arguments, and return the user's result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from optfuse.compiler.frontend.graph.captured import CallSpec, Captured, InputSource
from optfuse.compiler.frontend.torch_internals.torch_bridge import TreeSpec, key_paths, tree_flatten, tree_unflatten
from optfuse.errors import CaptureError


def gather_inputs(
    captured: Captured, model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> list[torch.Tensor]:
    """The tensors for ``captured``'s placeholders, in order.

    A tensor whose strides differ from those captured is copied into the captured layout; the model writes back into the
    user's own tensor through ``apply_mutations``.

    Raises:
        CaptureError: If the arguments have another structure, shape, dtype, device or constant than those captured.
    """
    call = _call(captured)
    leaves = checked_leaves(captured.name, call, args, kwargs)
    return [
        _checked(captured.name, source, lookup(source, model, leaves), node.meta["val"])
        for source, node in zip(captured.inputs, captured.placeholders, strict=True)
    ]


def apply_mutations(captured: Captured, targets: Sequence[torch.Tensor], outputs: Sequence[Any]) -> None:
    """Write the new values of mutated inputs into ``targets``, the caller's own tensors, one per placeholder."""
    with torch.no_grad():
        for output, position in captured.mutations:
            if outputs[output] is not targets[position]:
                targets[position].copy_(outputs[output])


def restore_outputs(captured: Captured, outputs: Sequence[Any]) -> Any:
    """The model's result, in the user's own structure, from the graph's flat outputs."""
    call = _call(captured)
    values = list(outputs)
    for position, value in call.literals:
        values[position] = value
    return tree_unflatten([values[k] for k in call.user_outputs], call.out_spec)


def own_tensors(
    captured: Captured, model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> list[torch.Tensor]:
    """The caller's own tensors, one per placeholder, in whatever layout: what ``apply_mutations`` writes into."""
    leaves, _ = tree_flatten((args, dict(kwargs or {})))
    return [lookup(source, model, leaves) for source in captured.inputs]


def _call(captured: Captured) -> CallSpec:
    if captured.call is None:
        raise CaptureError(f"{captured.name} was not captured for calling with a model's arguments; use capture()")
    return captured.call


def checked_leaves(name: str, call: CallSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> list[Any]:
    """The leaves of a call, if it has the structure and the fixed values that were captured.

    Dictionaries, keyword arguments among them, may come in another order.
    """
    given = (args, dict(kwargs or {}))
    leaves, spec = tree_flatten(given)
    if spec != call.in_spec:
        template = tree_unflatten(list(range(call.in_spec.num_leaves)), call.in_spec)
        leaves, spec = tree_flatten(_in_order_of(template, given))
    if spec != call.in_spec:
        expected, found = (_by_path(item) for item in (call.in_spec, spec))
        if expected == found:
            expected, found = (" ".join(str(item).split()) for item in (call.in_spec, spec))
        raise CaptureError(f"{name} was captured for the arguments {expected}, not {found}: optimize again")
    for position, value in call.fixed:
        if leaves[position] is not value and (type(leaves[position]) is not type(value) or leaves[position] != value):
            raise CaptureError(f"{name} was captured for the value {value!r}, not {leaves[position]!r}: optimize again")
    for first, again in call.shared:
        if leaves[first] is not leaves[again]:
            raise CaptureError(f"{name} was captured with one tensor passed twice; pass it so, or optimize again")
    return leaves


def argument_paths(arguments: tuple[tuple[Any, ...], Mapping[str, Any]]) -> tuple[str, ...]:
    """The leaves of (args, kwargs) by name: "args[1]", "kwargs['mask']"."""
    return tuple(("args" if path.startswith("[0]") else "kwargs") + path[3:] for path in key_paths(arguments))


def _by_path(spec: TreeSpec) -> str:
    paths = argument_paths(tree_unflatten([0] * spec.num_leaves, spec))
    return f"({', '.join(paths)})"


def _in_order_of(template: Any, value: Any) -> Any:
    """``value`` with the keys of its dictionaries in the order of ``template``'s, wherever they are the same."""
    if type(template) is not type(value):
        return value
    if type(value) is dict:
        if template.keys() != value.keys():
            return value
        return {key: _in_order_of(template[key], value[key]) for key in template}
    if type(value) in (list, tuple) and len(value) == len(template):
        return type(value)(_in_order_of(a, b) for a, b in zip(template, value, strict=True))
    return value


def lookup(source: InputSource, model: torch.nn.Module, leaves: Sequence[Any]) -> torch.Tensor:
    """The tensor that feeds an input, from the model or from the leaves of the user's arguments."""
    match source.kind:
        case "parameter":
            return model.get_parameter(source.target)
        case "buffer":
            return model.get_buffer(source.target)
        case "user":
            assert source.position is not None
            leaf = leaves[source.position]
            if not isinstance(leaf, torch.Tensor):
                raise CaptureError(f"{source.target} was captured as a tensor, and is a {type(leaf).__name__} now")
            return leaf
        case "saved":
            raise CaptureError(f"{source.target} comes from a forward graph, not from a call of the model")


Feed = Callable[[Sequence[Any]], torch.Tensor]


def feed_of(source: InputSource, model: torch.nn.Module) -> Feed:
    """``lookup`` for many calls: the submodule that holds a parameter is found now, the parameter at each call.

    So new values and new parameters count, a submodule put in another's place does not.
    """
    if source.kind not in ("parameter", "buffer"):
        return lambda leaves: lookup(source, model, leaves)
    lookup(source, model, ())  # says what is missing
    path, _, name = source.target.rpartition(".")
    owner = model.get_submodule(path)
    held = owner._parameters if source.kind == "parameter" else owner._buffers  # noqa: SLF001 - torch's own dictionaries

    def read(_: Sequence[Any]) -> torch.Tensor:
        tensor = held.get(name)
        return lookup(source, model, ()) if tensor is None else tensor  # gone from there: parametrized, say

    return read


def _checked(name: str, source: InputSource, tensor: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    ours = (tuple(tensor.shape), tensor.dtype, tensor.device)
    theirs = (tuple(expected.shape), expected.dtype, expected.device)
    if ours != theirs:
        raise CaptureError(f"{name} was captured for {source.target} {_say(theirs)}, not {_say(ours)}: optimize again")
    if tensor.stride() == expected.stride():
        return tensor.detach()
    return torch.empty_strided(expected.shape, expected.stride(), dtype=tensor.dtype, device=tensor.device).copy_(
        tensor.detach()
    )


def _say(facts: tuple[tuple[int, ...], torch.dtype, torch.device]) -> str:
    shape, dtype, device = facts
    return f"{dtype} {list(shape)} on {device}"
