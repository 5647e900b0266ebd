"""Store compiled graphs in torch's cache of AOTAutograd results, which keeps them between processes.

Torch finds an entry by the graph that Dynamo has traced, the inputs' layouts and its own settings, and then traces no
joint graph, partitions nothing and calls no compiler: what is left of a first call is Dynamo's part and loading. An
entry has what AOTAutograd has found out, and a ``KeptCode`` for each of its graphs. What else decides what becomes of
a graph is in ``Keeping.key``.

Where torch keeps what Dynamo has made, too (``TORCH_CACHING_PRECOMPILE=1``), a later process calls no backend at all:
torch reads an entry and installs its function. So an entry has all that it takes to run it, see ``Keeping.revival``.

The entries lie beside Inductor's (``TORCHINDUCTOR_CACHE_DIR``) and follow torch's settings, such as
``TORCHINDUCTOR_FORCE_DISABLE_CACHES``. Like Inductor's they are read by pickle.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol
from unittest import mock

import torch
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._inductor import codecache
from torch._inductor import config as inductor_config
from torch._inductor.output_code import OutputCode
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule

from optfuse.compiler.frontend.calls.simulated import TracedGraph, unless_simulated
from optfuse.compiler.frontend.operators.attention import attend
from optfuse.compiler.frontend.torch_internals.torch_bridge import boxed

Run = Callable[[list[Any]], Any]
#: Makes the function that runs a graph, of its kind ("forward", "backward" or "inference") and its product. None: the
#: graph has to run as it was traced.
Revive = Callable[[str, Any], Callable[[list[torch.Tensor]], Sequence[Any]] | None]


class Calling(Protocol):
    """Torch's calling convention around a program's: tensors in, tensors out."""

    def bind(self, function: Callable[[list[torch.Tensor]], Sequence[Any]]) -> Run:
        """``function`` with all of torch's arguments in one list, which is emptied."""
        ...


@dataclass(frozen=True, slots=True)
class Keeping:
    """How the graphs of one call of a backend are kept.

    Attributes:
        key: What decides, beside the traced graph and torch's settings, what is compiled: options, versions, input
            kinds.
        revive: Makes the functions of graphs that are taken from the cache while the backend is called.
        revival: As ``revive``, in a process that takes a graph from the cache and calls no backend; can be pickled.
        products: By a graph's name, what ``revive`` needs, as data for pickle. A graph without one is not kept.
    """

    key: str
    revive: Revive
    revival: Revive
    products: dict[str, Any] = field(default_factory=dict)


_revive: ContextVar[Revive | None] = ContextVar("revive", default=None)


@dataclass
class KeptCode(OutputCode):
    """A compiled graph: the function that runs it, and the data from which another process makes it again."""

    kind: str = ""
    calling: Calling | None = None
    revival: Revive | None = None
    product: Any = None
    traced: TracedGraph | None = None
    run: Run | None = None
    _boxed_call: bool = True

    def __call__(self, inputs: Any) -> Any:
        """Run the graph; the list of inputs is emptied."""
        assert self.run is not None, "it was compiled or revived"
        return self.run(inputs)

    def prepare_for_serialization(self) -> None:
        """Drop the function, which cannot be pickled. Called on a copy.

        Raises:
            BypassAOTAutogradCache: If the graph has no product: torch then writes no entry.
        """
        if self.product is None:
            raise BypassAOTAutogradCache(f"the {self.kind} graph is not kept")
        self.run = None
        with unset_fake_temporarily():  # torch writes while it traces, when constants cannot leave a GPU
            self.product = pickle.dumps(self.product)

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Make the function again, in the process that has read the entry."""
        revive = _revive.get() or self.revival
        assert self.calling is not None, "what is kept has a calling convention"
        assert revive is not None, "what is kept can be revived"
        self.product = pickle.loads(self.product)
        function = revive(self.kind, self.product)
        if function is None:
            assert self.traced is not None, "what is kept can run as it was traced"
            self.run = boxed(self.traced)
            return
        run = self.calling.bind(function)
        self.run = run if self.traced is None else unless_simulated(run, self.traced)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Ignore the bundle: Triton's own cache has the kernels."""


#: Torch's key has Inductor's passes for each device, for which it loads all of Inductor's code generators. No graph of
#: ours meets these, and loading them takes a third of a second or more.
_NO_BACKENDS: dict[str, Any] = {
    "init_backend_registration": lambda: None,
    "custom_backend_passes": {},
    "custom_backend_codegen_configs": {},
}


def known_as(graph: GraphModule, rewritten: GraphModule) -> GraphModule:
    """Give ``rewritten`` the name by which Dynamo's cache finds what is compiled of ``graph``; return it."""
    name = getattr(graph, "_backend_id", None)
    if name is not None:
        rewritten._backend_id = name  # noqa: SLF001 - Dynamo's
    return rewritten


def keepable(compile_: Callable[..., KeptCode]) -> Any:
    """A compiler whose results torch keeps."""
    return SerializableAOTDispatchCompiler(KeptCode, compile_)


def torch_keeps() -> bool:
    """Whether torch's settings allow for its cache."""
    return bool(functorch_config.enable_autograd_cache) and not torch.compiler.config.force_disable_caches


@contextmanager
def keeping(keep: Keeping) -> Iterator[None]:
    """While a graph is handed to AOTAutograd: its cache is used, with our key beside torch's.

    The backward graph is compiled with the forward graph, for an entry is written when both are there.
    """
    # functions in a graph of which torch does not know that they may be kept, with their versions: part of its key
    named = {**inductor_config.unsafe_marked_cacheable_functions, f"{attend.__module__}.{attend.__name__}": keep.key}
    with ExitStack() as stack:
        there = {name: value for name, value in _NO_BACKENDS.items() if hasattr(codecache, name)}
        stack.enter_context(mock.patch.multiple(codecache, **there))
        stack.enter_context(functorch_config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True))
        stack.enter_context(inductor_config.patch(unsafe_marked_cacheable_functions=named))
        token = _revive.set(keep.revive)
        stack.callback(_revive.reset, token)
        yield
