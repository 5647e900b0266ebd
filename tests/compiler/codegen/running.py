"""Run emitted kernels in Triton's interpreter against the loop IR's, and compile them ahead of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from optfuse.compiler.codegen.kernel_source import KernelSource
from optfuse.compiler.codegen.prelude import PRELUDE
from optfuse.compiler.codegen.tiles import TileConfig
from optfuse.compiler.ir.buffer_layout import extent
from optfuse.compiler.ir.interpreter import interpret
from optfuse.compiler.ir.kernel_spec import KernelSpec
from optfuse.compiler.ir.nodes import Buffer, LoopGraph, View
from optfuse.compiler.ir.torch_semantics import torch_dtype
from optfuse.compiler.ir.traversal import loads
from optfuse.runtime.check.verify import compare
from optfuse.runtime.loader import load_source

IMPORTS = "import torch\nimport triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"
SLACK = {"float32": 1e-6, "float64": 1e-15}
GUARD = 64  # elements on both sides of a buffer that no kernel may touch


def module_text(kernels: Sequence[KernelSource]) -> str:
    """A module of kernels with the table that ahead-of-time compilation reads."""
    rows = []
    for k in kernels:
        aligned = [name for name, kind in k.signature if kind != "constexpr"]
        options = {"num_warps": k.config.num_warps, "num_stages": k.config.num_stages}
        facts = {"signature": dict(k.signature), "constants": dict(k.config.blocks), "aligned": aligned}
        row = {**facts, "options": options}
        rows.append(f'    "{k.name}": {{"function": {k.name}, {repr(row)[1:-1]}}},')
    sources = "\n\n".join(k.source for k in kernels)
    return "\n\n".join([IMPORTS, PRELUDE, sources, "KERNELS = {\n" + "\n".join(rows) + "\n}\n"])


def graph_of(spec: KernelSpec, buffers: Mapping[str, Buffer]) -> LoopGraph:
    """The members as a graph of their own: reads from outside are inputs, the kernel's stores are outputs."""
    inputs: dict[str, None] = {}
    made: set[str] = set()
    for member in spec.members:
        inputs.update({load.buffer: None for load in loads(member.nest) if load.buffer not in made})
        made |= {store.buffer for store in member.nest.stores}
    inputs.update({name: None for name in spec.stores if buffers[name].kind == "input"})
    outputs = tuple(View(name, buffers[name].shape, buffers[name].stride) for name in spec.stores)
    ops = tuple(member.nest for member in spec.members)
    return LoopGraph(spec.name, tuple(buffers.values()), tuple(inputs), (), ops, outputs)


def inputs_for(graph: LoopGraph, seed: int = 0) -> dict[str, torch.Tensor]:
    """Normal values (positive for variances), and coin flips for everything that is no float."""
    generator = torch.Generator().manual_seed(seed)
    known = {b.name: b for b in graph.buffers}
    found = {}
    for name in graph.inputs:
        b = known[name]
        dtype = torch_dtype(b.dtype)
        tensor = torch.empty_strided(b.shape, b.stride, dtype=dtype)
        if dtype.is_floating_point:
            values = torch.randn(tuple(b.shape), generator=generator)
            tensor.copy_(values.abs() if "var" in name else values)
        else:
            tensor.copy_(torch.randint(0, 2, tuple(b.shape), generator=generator))
        found[name] = tensor
    return found


def run(
    module: object,
    kernel: KernelSource,
    buffers: Mapping[str, Buffer],
    inputs: Mapping[str, torch.Tensor],
    config: TileConfig,
) -> dict[str, torch.Tensor]:
    """Launch a kernel on copies of ``inputs``; what it wrote, by buffer. Nothing beside the buffers may be touched."""
    guarded, windows = {}, {}
    for name in kernel.pointers:
        b = buffers[name]
        size = extent(b.shape, b.stride)
        flat = torch.full((size + 2 * GUARD,), 77, dtype=torch.float64).to(torch_dtype(b.dtype))
        window = flat[GUARD : GUARD + size].as_strided(tuple(b.shape), tuple(b.stride), GUARD)
        if name in inputs:
            window.copy_(inputs[name])
        guarded[name], windows[name] = flat, window
    before = {name: flat.clone() for name, flat in guarded.items()}
    pointers = [flat[GUARD:] for flat in guarded.values()]
    getattr(module, kernel.name)[(kernel.programs(config),)](*pointers, **dict(config.blocks))
    for name, flat in guarded.items():
        assert torch.equal(flat[:GUARD], before[name][:GUARD])
        assert torch.equal(flat[-GUARD:], before[name][-GUARD:])
        if name not in kernel.written:
            unchanged = torch.equal(flat.view(torch.uint8), before[name].view(torch.uint8))
            assert unchanged, f"{name} is not among the written ones"
    return {name: windows[name] for name in kernel.written}


def check(
    kernel: KernelSource,
    spec: KernelSpec,
    buffers: Mapping[str, Buffer],
    inputs: Mapping[str, torch.Tensor] | None = None,
    folder: Path | None = None,
    module: object | None = None,
) -> None:
    """Compare a kernel's stores with the loop IR's, in both of its tile configurations, by float64 and eager error."""
    graph = graph_of(spec, buffers)
    inputs = inputs_for(graph) if inputs is None else inputs
    module = load_source(module_text([kernel]), folder) if module is None else module
    eager = interpret(graph, [inputs[name].clone() for name in graph.inputs])
    exact = interpret(graph, [inputs[name].clone() for name in graph.inputs], double=True)
    configs = {kernel.interpret} | ({kernel.config} if kernel.programs(kernel.config) <= 12 else set())
    for config in configs:
        written = run(module, kernel, buffers, inputs, config)
        got = [written[name] for name in spec.stores]
        for name, verdict in zip(spec.stores, compare(got, eager, exact), strict=True):
            # a single number may be off by a few roundings where eager happens to be exact
            close = verdict.error <= 2 * verdict.eager_error + SLACK.get(verdict.dtype, 0.0)
            assert verdict.passed or close, f"{name} with {config}: {verdict}\n{kernel.source}"
