"""A model's training step: its forward and backward graphs, and a module that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from optfuse.compiler.frontend.aot_autograd.adapt import Feed
from optfuse.compiler.frontend.aot_autograd.aot import CompileGraph, Program, compile_flat
from optfuse.compiler.frontend.aot_autograd.joint import Chooser
from optfuse.compiler.frontend.calls.calling import Feed as Take
from optfuse.compiler.frontend.calls.calling import checked_leaves, feed_of, lookup
from optfuse.compiler.frontend.calls.flat import bind_placeholders
from optfuse.compiler.frontend.graph.captured import CallSpec, Captured, InputSource
from optfuse.compiler.frontend.graph.rewrite import copied
from optfuse.compiler.frontend.torch_internals.torch_bridge import tree_unflatten
from optfuse.compiler.frontend.torch_internals.torch_fakes import forget_fake_results
from optfuse.compiler.frontend.tracing.checkpoints import marked_checkpoints, obey_checkpoints
from optfuse.compiler.frontend.tracing.own_gradients import own_gradients
from optfuse.compiler.frontend.tracing.trace import Fed, Traced, explain, feeds, require_module, trace
from optfuse.errors import CaptureError


def capture_training(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None, *, name: str = "model"
) -> tuple[Captured, Captured]:
    """The forward and backward graphs of ``model(*args, **kwargs)``, split so that the fewest bytes are saved.

    Nothing runs on the data. The graphs are ``name.forward`` and ``name.backward``. The forward graph's outputs are new
    values of what the model writes in place, then the model's tensors, then what the backward graph needs.

    Raises:
        CaptureError: If the model does not trace to one graph, or nothing in it requires a gradient.
    """
    capture = capture_step(model, args, kwargs, name=name)
    return capture.forward, capture.backward


def capture_step(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "model",
    choose: Chooser | None = None,
    obey: bool = True,
) -> TrainingCapture:
    """As ``capture_training``, with what makes a training step of the graphs without tracing again.

    ``choose`` decides what the forward graph saves for the backward graph; None: the fewest bytes. ``obey``: whether
    regions that the model checkpoints are computed again as they say.
    """
    halves: dict[str, _Half] = {}

    def record(captured: Captured) -> Program:
        halves[captured.name] = _Half(captured)
        return halves[captured.name]

    traced = trace_training(model, args, kwargs, name)
    regions = obey_checkpoints(traced.program.graph) if obey else 0
    run = _compile_training(traced, model, name, record, choose)
    if f"{name}.backward" not in halves:
        raise CaptureError(
            f"{name}: nothing that it computes (beyond views of its inputs) depends on anything that requires a "
            f"gradient; unfreeze a parameter, or do not train"
        )
    forward, backward = halves[f"{name}.forward"], halves[f"{name}.backward"]
    step = _step(traced, run, model, name)
    looks, made = _looks(model), tuple(halves.values())
    return TrainingCapture(forward.captured, backward.captured, regions, model, looks, step, made)


@dataclass(slots=True)
class _Half:
    """A graph that runs operator by operator until it is compiled."""

    captured: Captured
    made: Program | None = None

    def __call__(self, inputs: list[torch.Tensor]) -> Sequence[Any]:
        return self.captured.graph(*inputs) if self.made is None else self.made(inputs)


@dataclass(slots=True)
class TrainingCapture:
    """The graphs of a training step, and the function that runs them. ``regions``: checkpointed ones, as obeyed."""

    forward: Captured
    backward: Captured
    regions: int
    _model: torch.nn.Module
    _looked: tuple[object, ...]
    _step: Callable[..., Any] | None
    _halves: tuple[_Half, ...]

    def take(self, compile_graph: CompileGraph) -> Callable[..., Any] | None:
        """What ``train_module`` returns, without tracing again: for the first caller, None for all later ones.

        None as well if the model looks different now: tracing it again tells whether its graphs are.
        """
        step, self._step = self._step, None
        if _looks(self._model) != self._looked:
            return None
        if step is not None:
            for half in self._halves:
                half.made = compile_graph(half.captured)
        return step


def _looks(model: torch.nn.Module) -> tuple[object, ...]:
    """A summary of a model to compare, without running it: modules with their settings, and tensors' metadata."""
    modules = [(name, type(one), one.extra_repr(), one.training) for name, one in model.named_modules()]
    tensors = [
        (name, tuple(one.shape), one.dtype, one.device, one.requires_grad)
        for name, one in (*model.named_parameters(), *model.named_buffers())
    ]
    return (*modules, *tensors)


def train_module(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    compile_graph: CompileGraph,
    *,
    name: str = "model",
    choose: Chooser | None = None,
) -> Callable[..., Any]:
    """A function with ``model``'s arguments and results whose forward and backward run what ``compile_graph`` made.

    ``compile_graph`` sees the graphs of ``capture_training`` with the same names, both before this returns. Parameters
    and buffers are read from ``model`` at each call; gradients arrive there, and in-place changes too. ``choose`` as in
    ``capture_step``.

    Raises:
        CaptureError: As ``capture_training``; and, from the function returned, for arguments of other shapes or
            structure.
    """
    traced = trace_training(model, args, kwargs, name)
    obey_checkpoints(traced.program.graph)
    return _step(traced, _compile_training(traced, model, name, compile_graph, choose), model, name)


def _step(traced: Traced, run: Callable[..., Any], model: torch.nn.Module, name: str) -> Callable[..., Any]:
    """``run``, which takes the flat graph's tensors, as a function with the model's arguments and results."""
    out_spec = traced.program.call_spec.out_spec
    takes = _takers(model, feeds(traced))
    call = CallSpec(traced.in_spec, out_spec, traced.fixed, traced.shared, ())

    def step(*args: Any, **kwargs: Any) -> Any:
        leaves = checked_leaves(name, call, args, kwargs)
        _require_same_layout(name, traced, leaves)
        return tree_unflatten(list(run(*[take(leaves) for take in takes])), out_spec)

    return step


def trace_training(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, name: str
) -> Traced:
    """``trace`` with gradients enabled, whatever the caller's mode. Refuses what it would lose."""
    require_module(name, model)
    forget_fake_results()  # a model gives the same graphs however often it is traced
    with torch.enable_grad(), own_gradients(model) as lost, marked_checkpoints() as policies:
        traced = trace(model, args, kwargs, name)
    if policies:
        raise CaptureError(
            f"{name}: {policies[0]} has a context_fn, a policy of its own that would be lost in one graph; checkpoint "
            f"without it, or use torch.compile, which keeps it"
        )
    if any(_is_cpu_lstm(node) for node in traced.program.graph.nodes):
        raise CaptureError(
            f"{name}: an LSTM on the CPU keeps what its gradient needs out of sight; move the model to a GPU, or write "
            f"the layer as matrix products"
        )
    if lost:
        raise CaptureError(
            f"{name}: {lost[0]} brings a gradient of its own, which would be lost in one graph; do without it, or use "
            f"torch.compile, which keeps it"
        )
    return traced


def _is_cpu_lstm(node: torch.fx.Node) -> bool:
    """Whether a node becomes the CPU library's layer, whose results depend on whether gradients are being recorded."""
    value = node.meta.get("val")
    return node.target is torch.ops.aten.lstm.input and value is not None and value[0].device.type == "cpu"


def _compile_training(
    traced: Traced,
    model: torch.nn.Module,
    name: str,
    compile_graph: CompileGraph,
    choose: Chooser | None = None,
) -> Callable[..., Any]:
    """The traced graph through AOTAutograd; its inputs are those of ``_arguments``."""
    graph = copied(traced.program.graph_module)
    fed = feeds(traced)
    placeholder = InputSource("user", "constant")  # constants stay inputs here: AOTAutograd would lift them again
    bind_placeholders(
        graph, [None if feed.source is None and feed.constant is None else feed.source or placeholder for feed in fed]
    )
    sources: list[Feed] = [
        feed.source or feed.constant for feed in fed if feed.source is not None or feed.constant is not None
    ]  # type: ignore[misc]
    arguments = _arguments(model, fed, traced.leaves)
    try:
        with torch.enable_grad():
            return compile_flat(graph, arguments, sources, name, compile_graph, eager_backward=True, choose=choose)
    except RuntimeError as error:  # what autograd says of a value that is written after it was saved
        raise CaptureError(explain(name, error)) from error


def _arguments(model: torch.nn.Module, fed: Sequence[Fed], leaves: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors that the flat graph takes, from the model and the user's leaves."""
    return [
        feed.constant if feed.source is None else lookup(feed.source, model, leaves)  # type: ignore[misc]
        for feed in fed
        if feed.source is not None or feed.constant is not None
    ]


def _takers(model: torch.nn.Module, fed: Sequence[Fed]) -> list[Take]:
    """What finds each tensor of ``_arguments``, call after call."""

    def constant(value: torch.Tensor) -> Take:
        return lambda _: value

    takes: list[Take] = []
    for feed in fed:
        if feed.source is not None:
            takes.append(feed_of(feed.source, model))
        elif feed.constant is not None:
            takes.append(constant(feed.constant))
    return takes


def _require_same_layout(name: str, traced: Traced, leaves: Sequence[Any]) -> None:
    for path, expected, ours in zip(traced.paths, traced.leaves, leaves, strict=True):
        if not isinstance(expected, torch.Tensor):
            continue
        for fact in ("shape", "stride", "dtype", "device", "requires_grad"):
            then, now = _fact(expected, fact), _fact(ours, fact)
            if then != now:
                raise CaptureError(f"{name} was captured for {path} of {fact} {then}, not {now}: optimize again")


def _fact(tensor: torch.Tensor, fact: str) -> object:
    value = getattr(tensor, fact)
    value = value() if callable(value) else value
    return tuple(value) if isinstance(value, torch.Size) else value
