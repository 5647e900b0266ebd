"""Reference results: what a step should have written, given what it read.

A kernel's reference is the loop IR interpreter on the CPU, in float64; a library call's is the operator itself on
copies of its arguments, on the same device, and in float64 where the operator takes that. Random operators are repeated
with the generators' state at the call; kernels compute random numbers from a seed, as the interpreter does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

import optfuse.compiler.ops.registered  # noqa: F401 - the operators of ours that a graph may call
from optfuse.compiler.ir.devices import HOST
from optfuse.compiler.ir.interpreter import interpret
from optfuse.compiler.ir.nodes import LibraryCall, LoopGraph, View
from optfuse.compiler.ir.torch_semantics import call_operator, torch_dtype
from optfuse.errors import InvalidGraphError

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Reference:
    """By buffer: the same computation in the same dtypes, op by op, and in float64. ``fault``: why there is none."""

    eager: Tensors
    exact: Tensors
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Generators:
    """The state of torch's generators, to draw the same numbers again."""

    host: torch.Tensor
    device: torch.Tensor | None

    @staticmethod
    def now(device: torch.device) -> Generators:
        """The state at present."""
        return Generators(torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None)

    def restore(self, device: torch.device) -> None:
        """Put the generators back."""
        torch.set_rng_state(self.host)
        if self.device is not None:
            torch.cuda.set_rng_state(self.device, device)


def interpreted(graph: LoopGraph, given: Mapping[str, torch.Tensor], results: tuple[str, ...]) -> Reference:
    """What the loops of ``graph`` (see ``compiler.ir.subgraph``) store into ``results``, in that order its outputs."""

    def run(double: bool) -> Tensors:
        inputs = [strided_copy(given[name], "cpu") for name in graph.inputs]
        return dict(zip(results, interpret(graph, inputs, double=double), strict=True))  # type: ignore[arg-type]

    try:
        return Reference(run(False), run(True))
    except InvalidGraphError as error:  # an index out of bounds, for example
        return Reference({}, {}, str(error))


def repeated(
    call: LibraryCall, given: Mapping[str, torch.Tensor], device: torch.device, generators: Generators | None
) -> Reference:
    """The results of the operator, and the arguments that it writes, as they are afterwards."""
    eager = _call(call, given, device, generators, double=False)
    if generators is not None:
        return Reference(eager, eager)
    try:
        exact = _call(call, given, device, None, double=True)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):  # it takes no float64
        return Reference(eager, eager)
    alike = all(getattr(exact[name], "shape", None) == getattr(x, "shape", None) for name, x in eager.items())
    return Reference(eager, exact if alike else eager)


def _call(
    call: LibraryCall,
    given: Mapping[str, torch.Tensor],
    device: torch.device,
    generators: Generators | None,
    *,
    double: bool,
) -> Tensors:
    """The operator on copies, its arguments' floats in float64 if wanted."""
    copies = {name: strided_copy(x, x.device) for name, x in given.items()}
    if double:
        copies = {name: _widened(x) for name, x in copies.items()}

    def window(view: View) -> torch.Tensor:
        base = copies[view.buffer]
        return base.as_strided(view.shape, view.stride, base.storage_offset() + view.offset)

    def dtype(text: str) -> torch.dtype:
        found = torch_dtype(text)
        return torch.float64 if double and found.is_floating_point else found

    after = None
    if generators is not None:
        after = Generators.now(device)
        generators.restore(device)
    items = call_operator(call, window, dtype, lambda text: torch.device(HOST) if text == HOST else device)
    if after is not None:
        after.restore(device)
    found = {name: item for name, item in zip(call.outputs, items, strict=False) if name is not None}
    return found | {name: copies[name] for name in call.mutates}


def strided_copy(x: torch.Tensor, device: str | torch.device) -> torch.Tensor:
    """The same elements at the same strides in memory of their own."""
    if x.numel() == 0:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
    extent = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    flat = x.detach().as_strided((extent,), (1,), x.storage_offset())
    memory = torch.empty(extent, dtype=x.dtype, device=device).copy_(flat)
    return memory.as_strided(x.shape, x.stride())


def _widened(x: torch.Tensor) -> torch.Tensor:
    if not x.is_floating_point() or x.dtype is torch.float64:
        return x
    extent = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    return x.as_strided((extent,), (1,)).double().as_strided(x.shape, x.stride())
