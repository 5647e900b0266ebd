"""The step that inference and training share: a model as a flat graph that autograd has not seen yet."""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import InputKind, TensorArgument

from optfuse.compiler.frontend.calls.calling import argument_paths
from optfuse.compiler.frontend.graph.captured import InputSource
from optfuse.compiler.frontend.passes.attention import simplify_attention_masks
from optfuse.compiler.frontend.passes.bags import sum_bags
from optfuse.compiler.frontend.passes.instances import norm_channels
from optfuse.compiler.frontend.passes.interpolation import interpolate_by_dimensions
from optfuse.compiler.frontend.passes.masks import share_masks
from optfuse.compiler.frontend.passes.written_attention import recognize_attention
from optfuse.compiler.frontend.torch_internals.torch_bridge import (
    GuardOnDataDependentSymNode,
    TreeSpec,
    export,
    is_mutating,
    is_wrapper,
    operator_name,
    tree_flatten,
    tree_leaves,
    tree_unflatten,
)
from optfuse.errors import CaptureError

_TORCH = str(Path(torch.__file__).parent)
_FRONTEND = str(Path(__file__).parents[1])
_PYTHON = (inspect.__file__,)  # it binds the arguments of a call


@dataclass(frozen=True, slots=True)
class Traced:
    """An exported program, and what it was traced with.

    ``leaves`` are the flattened (args, kwargs); ``shared`` pairs those that are one tensor. ``positions`` has the leaf
    of each of the program's user inputs.
    """

    program: torch.export.ExportedProgram
    leaves: tuple[Any, ...]
    paths: tuple[str, ...]
    in_spec: TreeSpec
    shared: tuple[tuple[int, int], ...]
    positions: tuple[int, ...]

    @property
    def fixed(self) -> tuple[tuple[int, object], ...]:
        """The leaves that are no tensors, with their positions."""
        return tuple((k, leaf) for k, leaf in enumerate(self.leaves) if not isinstance(leaf, torch.Tensor))


class PassedOnce(torch.nn.Module):
    """A model that takes each tensor once and passes it on wherever the caller had passed it.

    Without it, torch would trace a tensor passed twice as two, and lose what is written through one of them.
    """

    PREFIX = "model."

    def __init__(
        self,
        model: torch.nn.Module,
        leaves: Sequence[Any],
        spec: TreeSpec,
        positions: tuple[int, ...],
        shared: tuple[tuple[int, int], ...],
    ) -> None:
        super().__init__()
        self.training = model.training
        self.model = model
        self._spec = spec
        self._positions = positions
        self._shared = shared
        self._count = len(leaves)

    def forward(self, *once: Any) -> Any:
        """Rebuild the model's own arguments and call it."""
        leaves: list[Any] = [None] * self._count
        for position, leaf in zip(self._positions, once, strict=True):
            leaves[position] = leaf
        for first, again in self._shared:
            leaves[again] = leaves[first]
        args, kwargs = tree_unflatten(leaves, self._spec)
        return self.model(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Fed:
    """What feeds one placeholder: an input of the call, a constant's value, or neither (a leaf that is no tensor)."""

    source: InputSource | None = None
    constant: torch.Tensor | None = None


def trace(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, name: str) -> Traced:
    """Export ``model`` for these arguments, with its attention masks simplified. Runs no kernels on large data.

    Raises:
        CaptureError: If the model cannot be traced to one graph: with the line of the model that stopped it.
    """
    kwargs = dict(kwargs or {})
    require_module(name, model)
    if not isinstance(args, tuple):
        raise CaptureError(
            f"{name}: args must be a tuple of positional arguments, not {type(args).__name__}: write (x,)"
        )
    leaves, in_spec = tree_flatten((args, kwargs))
    paths = argument_paths((args, kwargs))
    _require_plain(name, [*zip(paths, leaves, strict=True), *model.named_parameters(), *model.named_buffers()])
    shared = _shared(leaves)
    again = {position for _, position in shared}
    positions = tuple(k for k in range(len(leaves)) if k not in again)
    try:
        if shared:
            once = PassedOnce(model, leaves, in_spec, positions, shared)
            program = export(once, tuple(leaves[k] for k in positions), {})
            _forget_wrapper(program.graph_module.graph)
        else:
            program = export(model, args, kwargs)
    except Exception as error:  # the model's own code runs here, and may raise anything
        raise CaptureError(explain(name, error)) from error
    _refuse_unknown_sizes(name, program)
    _drop_copies_onto_themselves(program.graph_module.graph)
    traced = Traced(program, tuple(leaves), paths, in_spec, shared, positions)
    known = {
        node.name: fed.constant
        for node, fed in zip(_placeholders(program), feeds(traced), strict=True)
        if fed.constant is not None
    }
    graph = recognize_attention(program.graph_module)
    graph = norm_channels(sum_bags(share_masks(simplify_attention_masks(graph, known))))
    graph = interpolate_by_dimensions(graph)
    program.graph_module.graph = graph.graph
    return traced


def require_module(name: str, model: Any) -> None:
    """Refuse a model that is no ``torch.nn.Module``, before torch does so with a less clear message."""
    if not isinstance(model, torch.nn.Module):
        raise CaptureError(f"{name}: the model must be a torch.nn.Module, not a {type(model).__name__}; wrap it in one")


def feeds(traced: Traced, program: torch.export.ExportedProgram | None = None) -> list[Fed]:
    """What feeds each placeholder of ``program`` (by default, of the program as traced), in order.

    A tied weight has a placeholder for each of its names, of which one is used: nothing feeds the others.
    """
    program = program or traced.program
    further = _further_names(program)
    positions = iter(traced.positions)
    prefix = PassedOnce.PREFIX if traced.shared else ""
    result = []
    for spec in program.graph_signature.input_specs:
        match spec.kind:
            case InputKind.PARAMETER if spec.target in further:
                result.append(Fed())
            case InputKind.PARAMETER:
                result.append(Fed(InputSource("parameter", str(spec.target).removeprefix(prefix))))
            case InputKind.BUFFER:
                result.append(Fed(InputSource("buffer", str(spec.target).removeprefix(prefix))))
            case InputKind.USER_INPUT:
                position = next(positions)
                source = InputSource("user", traced.paths[position], position)
                result.append(Fed(source if isinstance(spec.arg, TensorArgument) else None))
            case InputKind.TOKEN:  # orders effects; nothing feeds it
                result.append(Fed())
            case InputKind.CONSTANT_TENSOR:
                result.append(Fed(constant=program.constants[str(spec.target)]))
            case _:
                raise CaptureError(
                    f"the model takes a {spec.kind.name.lower()} ({spec.arg.name}); pass tensors instead"
                )
    return result


def _further_names(program: torch.export.ExportedProgram) -> set[str | None]:
    """Names of parameters that the program does not use since it uses the same tensor by another name."""
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind == InputKind.PARAMETER]
    users = {node.name: len(node.users) for node in program.graph.nodes if node.op == "placeholder"}
    used = {id(program.state_dict[str(spec.target)]) for spec in specs if users.get(spec.arg.name)}
    idle = [spec.target for spec in specs if not users.get(spec.arg.name)]
    return {target for target in idle if id(program.state_dict[str(target)]) in used}


def _forget_wrapper(graph: torch.fx.Graph) -> None:
    """Name modules as the user's model does: rules and reports go by their paths."""
    for node in graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if stack:
            own = {k: (path, kind) for k, (path, kind) in stack.items() if path.startswith(PassedOnce.PREFIX)}
            node.meta["nn_module_stack"] = {
                k: (path.removeprefix(PassedOnce.PREFIX), kind) for k, (path, kind) in own.items()
            }


def _require_plain(name: str, leaves: Iterable[tuple[str, Any]]) -> None:
    """A plan is of buffers, of which each element has its place."""
    for path, leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            continue
        kind = type(leaf).__name__ if is_wrapper(leaf) else "" if leaf.layout is torch.strided else str(leaf.layout)
        if kind:
            raise CaptureError(f"{name}: {path} is a {kind}; only plain dense tensors can be planned: convert it first")


def _refuse_unknown_sizes(name: str, program: torch.export.ExportedProgram) -> None:
    """Sizes that the arguments do not determine are the symbolic ones that are left."""
    for node in program.graph_module.graph.nodes:
        for leaf in tree_leaves(node.meta.get("val")):
            if isinstance(leaf, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in leaf.shape):
                raise CaptureError(
                    f"{name}: {node.target} makes a tensor whose size is known only when the model runs "
                    f"({node.name}); use torch.where or a mask, or move it out of the model"
                )


def _drop_copies_onto_themselves(graph: torch.fx.Graph) -> None:
    """``self.total += x`` adds in place and then assigns, which is traced as a copy of the buffer onto itself.

    For autograd that is a second write, and a value saved after the first one would be stale.
    """
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten.copy_.default or node.users:
            continue
        target, source = node.args[:2]
        while isinstance(source, torch.fx.Node) and source is not target and _writes_its_argument(source):
            source = source.args[0]
        if source is target:
            graph.erase_node(node)


def _writes_its_argument(node: torch.fx.Node) -> bool:
    """Whether ``node`` is an in-place operator (``add_``), whose result is its first argument."""
    name = operator_name(node.target)
    return name.endswith("_") and not name.endswith("__") and is_mutating(node.target, node.kwargs)


def _placeholders(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    return [node for node in program.graph_module.graph.nodes if node.op == "placeholder"]


def _shared(leaves: list[Any]) -> tuple[tuple[int, int], ...]:
    first: dict[int, int] = {}
    pairs = []
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and first.setdefault(id(leaf), position) != position:
            pairs.append((first[id(leaf)], position))
    return tuple(pairs)


def explain(name: str, error: Exception) -> str:
    """One line: what stopped the trace, at which line of the model, and how to avoid it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((_TORCH, _FRONTEND, "<", *_PYTHON))]
    where = ""
    if own:
        line = (own[-1].line or linecache.getline(own[-1].filename, own[-1].lineno or 0)).strip()
        where = f" at {own[-1].filename}:{own[-1].lineno} ({line})"
    reason = str(error).strip().split("\n")[0] or "no message"
    if isinstance(error, GuardOnDataDependentSymNode):
        way_out = "its control flow depends on a tensor's values: use torch.where, or move it out of the model"
    elif own:
        way_out = "make this line traceable by torch.export, or move it out of the model"
    else:
        way_out = "check that the arguments are those that the model takes"
    return f"{name} cannot be captured as one graph: {type(error).__name__}: {reason}{where}; {way_out}"
