"""PyTorch's private or unstable interfaces, found by feature and not by version.

Those of sizes are in ``torch_sizes``, those of decompositions in ``torch_decompositions``.
"""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from functools import cached_property
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.exc import RestartAnalysis
from torch._functorch import config as functorch_config
from torch._functorch.compile_utils import fx_graph_cse, raise_getitems
from torch._functorch.partitioners import (
    _extract_fwd_bwd_modules,
    reordering_to_mimic_autograd_engine,
)
from torch._guards import TracingContext
from torch._guards import tracing as tracing_in
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.autograd import forward_ad
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from optfuse.compiler.frontend.torch_internals.transform_state import modes_restored_on_error

try:  # saves a third of the time of a capture; absent, graphs are compiled at each step
    from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module
except ImportError:
    _make_graph_module, _use_lazy_graph_module = GraphModule, None

OpOverload = torch._ops.OpOverload  # noqa: SLF001
HigherOrderOperator = torch._ops.HigherOrderOperator  # noqa: SLF001
TO_COPY = torch.ops.aten._to_copy.default  # noqa: SLF001

TreeSpec = _pytree.TreeSpec
tree_flatten = _pytree.tree_flatten
tree_unflatten = _pytree.tree_unflatten
tree_leaves = _pytree.tree_leaves
tree_map = _pytree.tree_map

#: What torch raises where a trace meets a size or a value that depends on the values of tensors.
DEPENDS_ON_DATA = (DynamicOutputShapeException, DataDependentOutputException)
#: Loggers that report, stack and all, what ends a trace.
_LOGGERS_OF_TRACING = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")


Compiler = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]
Partitioner = Callable[..., tuple[GraphModule, GraphModule]]

__all__ = [
    "DEPENDS_ON_DATA",
    "TO_COPY",
    "FakeTensor",
    "GuardOnDataDependentSymNode",
    "HigherOrderOperator",
    "OpOverload",
    "RestartAnalysis",
    "TreeSpec",
    "aot_compile",
    "boxed",
    "compile_lock",
    "compiled_by_inductor",
    "copy_all",
    "export",
    "flat_input_index",
    "graph_module",
    "is_mutating",
    "is_random",
    "is_simulated",
    "is_wrapper",
    "key_paths",
    "min_cut_partition",
    "operator_name",
    "outside_of_modes",
    "records_gradients",
    "returns_of",
    "shares_memory",
    "storage_place",
    "storage_handle",
    "storage_users",
    "tracing",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_unflatten",
    "without_views",
    "written_inputs",
]


@contextmanager
def tracing() -> Iterator[None]:
    """Generate no Python code for graphs until they run, and hide the warnings that torch's own code triggers."""
    with warnings.catch_warnings(), _lazy_graph_modules():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _lazy_graph_modules() -> AbstractContextManager[Any]:
    return nullcontext() if _use_lazy_graph_module is None else _use_lazy_graph_module(True)


def graph_module(root: GraphModule, graph: torch.fx.Graph) -> GraphModule:
    """A GraphModule of ``graph`` with ``root``'s attributes, whose Python code is generated when it is needed."""
    with _lazy_graph_modules():
        return _make_graph_module(root, graph)


def export(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.export.ExportedProgram:
    """Trace ``model`` to ATen operators that autograd has not seen yet. Raises whatever tracing does."""
    with tracing(), _without_graph_dumps(), warnings.catch_warnings():
        # torch's own LSTM does so when it is called, whatever the model
        warnings.filterwarnings("ignore", message="The tensor attributes? .* assigned during export")
        return torch.export.export(model, args, dict(kwargs), strict=False)


@contextmanager
def _without_graph_dumps() -> Iterator[None]:
    """When a trace fails, keep torch from printing the graph so far and its own stack: our error says it in a line.

    What the model itself prints passes through. With TORCH_LOGS set, so do torch's logs.
    """
    loggers = [logging.getLogger(name) for name in _LOGGERS_OF_TRACING]
    silenced = [logger for logger in loggers if not logger.isEnabledFor(logging.INFO) and not logger.disabled]
    printed, dump = io.StringIO(), ""
    for logger in silenced:
        logger.disabled = True
    try:
        with redirect_stderr(printed):
            yield
    except Exception as error:
        dump = f"{getattr(error, 'partial_fx_graph', '')}\n"
        raise
    finally:
        for logger in silenced:
            logger.disabled = False
        sys.stderr.write(printed.getvalue().replace(dump, "") if dump.strip() else printed.getvalue())


def min_cut_partition(joint: GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    """Split a joint graph so that the fewest bytes are kept for the backward graph."""
    return min_cut_rematerialization_partition(joint, inputs, **options)


def extract_halves(joint: GraphModule, saved: Sequence[torch.fx.Node], results: int) -> tuple[GraphModule, GraphModule]:
    """The forward and the backward graph of a joint one, given the tensors that go from one to the other.

    What the backward graph needs beside it is computed there again, late. ``results``: the first outputs of the joint
    graph, which are the step's.
    """
    forward, backward = _extract_fwd_bwd_modules(joint, list(saved), saved_sym_nodes=[], num_fwd_outputs=results)
    return raise_getitems(forward), raise_getitems(reordering_to_mimic_autograd_engine(backward))


def without_repeats(joint: GraphModule) -> None:
    """Drop, in place, nodes that nothing uses and nodes that compute what another one does."""
    joint.graph.eliminate_dead_code()
    joint.graph = fx_graph_cse(joint.graph)
    joint.recompile()


def is_tangent(placeholder: torch.fx.Node) -> bool:
    """Whether an input of a joint graph is the gradient of one of the step's results."""
    return "tangents" in str(placeholder.target)


def aot_compile(
    graph: GraphModule,
    inputs: Sequence[Any],
    *,
    forward: Compiler,
    backward: Compiler,
    inference: Compiler,
    partition: Partitioner,
    decompositions: Callable[[], Mapping[Any, Callable[..., Any]]],
    eager_backward: bool = False,
    around: AbstractContextManager[Any] | None = None,
) -> Callable[..., Any]:
    """Compile a flat graph through AOTAutograd: the calling convention of a torch.compile backend.

    Returns a function of ``inputs`` (unboxed) that carries autograd and rebuilds views. Where torch can, a graph ends
    with the copies that write new values into mutated inputs; else the function does.
    With ``eager_backward``, ``backward`` is called now, and not when gradients are first asked for. ``around``: entered
    while torch compiles. ``decompositions`` is called only if torch traces, which it does not for a graph that it has
    kept. An error leaves torch's modes as they were, whichever of them the graph has entered.
    """
    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partition,
        decompositions=_Later(decompositions),
        keep_inference_input_mutations=True,  # in training, too
    )
    settings = {"force_non_lazy_backward_lowering": True} if eager_backward else {}
    around = nullcontext() if around is None else around
    at_a_call = TracingContext.try_get() is None
    modes = outside_of_modes() if at_a_call else nullcontext()  # AOTAutograd's own is around a first call, too
    with modes, tracing(), _traced_context(inputs), functorch_config.patch(settings), around, modes_restored_on_error():
        return backend(graph, inputs)


def _traced_context(inputs: Sequence[Any]) -> AbstractContextManager[Any]:
    """Where torch keeps what it knows of a graph that it traces: Dynamo's context while that compiles, else one."""
    if TracingContext.try_get() is not None:
        return nullcontext()
    mode = next((x.fake_mode for x in tree_leaves(list(inputs)) if isinstance(x, FakeTensor)), None)
    return tracing_in(TracingContext(mode or FakeTensorMode()))


class _Later(Mapping[Any, Callable[..., Any]]):
    """A table that is made when it is first looked at."""

    def __init__(self, make: Callable[[], Mapping[Any, Callable[..., Any]]]) -> None:
        self._make = make

    @cached_property
    def _table(self) -> Mapping[Any, Callable[..., Any]]:
        return self._make()

    def __getitem__(self, key: Any) -> Callable[..., Any]:
        return self._table[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def donate_nothing() -> None:
    """Tell AOTAutograd, while it compiles a forward graph, that backward writes into nothing that this saves.

    Else it refuses ``backward(retain_graph=True)``.
    """
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def written_inputs() -> frozenset[int]:
    """The inputs that a function writes, by number, while AOTAutograd compiles its forward graph."""
    context = TracingContext.try_get()
    facts = None if context is None else context.fw_metadata
    if facts is None:
        return frozenset()
    return frozenset(k + len(facts.tokens) for k, info in enumerate(facts.input_info) if info.mutates_data)


def boxed(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Mark ``function`` as one that takes its arguments in a single list, which it may empty."""
    function._boxed_call = True  # type: ignore[attr-defined]  # noqa: SLF001
    return function


def without_views(values: Sequence[Any]) -> list[Any]:
    """Tensors of the same memory that autograd does not know as views: a view made without gradients refuses writes.

    Each counts its writes with the tensor it is made of, so that autograd refuses to read it after a later one.
    Anything but such a tensor is returned as it is. What occurs twice is one object again.
    """
    tensor = torch.Tensor
    apart = {id(x): x.detach() for x in values if isinstance(x, tensor) and x._is_view()}  # noqa: SLF001
    return [apart.get(id(x), x) for x in values] if apart else list(values)


def flat_input_index(placeholder: torch.fx.Node) -> int | None:
    """The position of an AOT forward graph's placeholder among the flat inputs, if torch says."""
    index = getattr(placeholder.meta.get("desc"), "idx", None)
    return index if isinstance(index, int) else None


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a class that wraps others (a distributed, nested or quantised one) and has no memory."""
    return is_traceable_wrapper_subclass(tensor)


def _mask_of(*keys: str) -> int:
    mask = 0
    for key in keys:
        mask |= torch._C.DispatchKeySet(torch._C._dispatch_key_parse(key)).raw_repr()  # noqa: SLF001
    return mask


#: Set for a thread while it is under ``vmap`` (the older and the newer one) or another of torch.func's; in a mode.
_TRANSFORMED, _IN_A_MODE = _mask_of("VmapMode", "FuncTorchDynamicLayerFrontMode"), _mask_of("Python")
_included = torch._C._dispatch_tls_local_include_set  # noqa: SLF001


def is_simulated(arguments: Sequence[Any]) -> bool:
    """Whether a call is simulated, so that kernels cannot serve it: under ``vmap``, in a mode, or with fake tensors."""
    state = _included().raw_repr()
    if state & _TRANSFORMED or forward_ad._current_level >= 0:  # noqa: SLF001
        return True
    if state & _IN_A_MODE:  # AOTAutograd has one of its own around a first call, which looks at operators of the user's
        modes = map(torch._C._get_dispatch_stack_at, range(torch._C._len_torch_dispatch_stack()))  # noqa: SLF001
        if not all(type(mode).__module__.startswith("torch._functorch.") for mode in modes):
            return True
    return FakeTensor in set(map(type, arguments))


def key_paths(tree: Any) -> list[str]:
    """A readable path to each leaf of ``tree``: "[0]", "['input_ids']"."""
    leaves, _ = _pytree.tree_flatten_with_path(tree)
    return [_pytree.keystr(path) for path, _ in leaves]


def compiled_by_inductor(graph: GraphModule) -> Callable[..., Any]:
    """The function of a graph of ATen and higher-order operators, compiled by Inductor at its first call."""
    made: list[Callable[..., Any]] = []

    def run(*tensors: torch.Tensor) -> Any:
        if not made:
            import torch._inductor

            made.append(torch._inductor.compile(graph, list(tensors)))  # noqa: SLF001
        return made[0](*tensors)

    return run


def outside_of_modes() -> Any:
    """A context in which operators run for real, even inside of a tracer."""
    return _disable_current_modes()


def operator_name(target: Any) -> str:
    """An ATen overload's operator ("_to_copy"); "" for anything else."""
    return target._schema.name.removeprefix("aten::") if isinstance(target, OpOverload) else ""  # noqa: SLF001


def returns_of(overload: Any) -> int:
    """How many values an operator returns; 0 for one that is called for its effect."""
    return len(overload._schema.returns)  # noqa: SLF001


def is_random(target: Any) -> bool:
    """Whether an operator draws from a generator, so that two calls differ."""
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def records_gradients(graph: GraphModule) -> bool:
    """Whether calls of torch.compile's graph may be recorded for gradients: now, or where the graph switches it on."""
    switches = any(node.target is torch._C._set_grad_enabled for node in graph.graph.nodes)  # noqa: SLF001
    return torch.is_grad_enabled() or switches


def is_mutating(target: Any, kwargs: Mapping[str, Any] | None = None) -> bool:
    """Whether a call of ``target`` (an overload, a function, a method's name) may write into one of its arguments."""
    if isinstance(target, OpOverload):
        return bool(target._schema.is_mutable)  # noqa: SLF001
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    keyword = getattr(target, "__module__", "") == "_operator"  # operator.and_ is `&`, which writes nothing
    in_place = name.endswith("_") and not name.endswith("__") and not keyword
    return in_place or "out" in (kwargs or {}) or name in _IN_PLACE_OPERATORS


def shares_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are windows of one storage."""
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata  # noqa: SLF001


def storage_place(x: torch.Tensor) -> tuple[int, int]:
    """The storage that a tensor is a window of, and where it begins there. Storages may get other memory."""
    return x.untyped_storage()._cdata, int(x.storage_offset())  # noqa: SLF001


def storage_users(storages: Iterable[int]) -> Iterator[int]:
    """How many references there are to pieces of memory, by handles: tensors, views and whatever autograd keeps."""
    return map(torch._C._storage_Use_Count, storages)  # noqa: SLF001


def storage_handle(storage: torch.UntypedStorage) -> int:
    """What ``storage_users`` takes for a storage, valid as long as that is referred to."""
    return storage._cdata  # noqa: SLF001


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy tensor by tensor, in one launch where they are on one GPU and of one dtype."""
    torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]


_IN_PLACE = "setitem __setitem__ iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift imatmul"
_IN_PLACE_OPERATORS = frozenset(_IN_PLACE.split())
