"""The process in which Inductor fuses: a graph as JSON in, its kernels as JSON out.

Run as ``python -m optfuse.inductor.worker IN OUT``. Inductor gets the graph as AOTAutograd would hand it over (its own
decompositions applied to what they are for), runs its passes, lowers, schedules, and is stopped before it generates
code. Every node carries the name of ours that it comes from.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import fx

from optfuse.inductor.device import TARGET, gpu
from optfuse.inductor.wire import SETTLED, hand_on, read_graph


class _Scheduled(Exception):
    """Inductor has fused."""


def main(source: Path, target: Path) -> None:
    """Read a graph, let Inductor fuse it, and write what it did."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    answer = fused(json.loads(source.read_text(encoding="utf-8")))
    target.write_text(json.dumps(answer), encoding="utf-8")


def _leave_with_parent() -> None:
    """Whoever started this process holds the other end of its standard input: when that closes, leave."""
    os.read(0, 1)  # not through sys.stdin, whose lock a waiting thread would hold when the interpreter ends
    os._exit(1)


def fused(record: dict[str, Any]) -> dict[str, Any]:
    """What Inductor makes of a graph: see ``groups.Groups`` for what the answer says."""
    found: list[dict[str, Any]] = []
    with gpu() as device, _stopped_when_fused(found), _origins_handed_on(), _settings():
        graph, inputs = _prepared(record)
        kind = record["name"].rpartition(".")[2]
        from torch._inductor.compile_fx import compile_fx_inner

        try:
            compile_fx_inner(graph, inputs, is_backward=kind == "backward", is_inference=kind == "inference")
        except Exception:
            if not found:  # else it is the exception that stopped it, in whatever it was wrapped
                raise
    if not found:
        found.append({"kernels": [], "kept": []})  # nothing to compute: Inductor schedules nothing
    return {**found[0], "torch": torch.__version__, "device": device}


@contextlib.contextmanager
def _settings() -> Generator[None]:
    import torch._inductor.config as config

    with config.patch(force_disable_caches=True, fx_graph_cache=False, compile_threads=1, shape_padding=False):
        yield


def _prepared(record: dict[str, Any]) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """The graph on the target, as AOTAutograd hands graphs to Inductor, and its inputs as fake tensors."""
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.replace_random import replace_random_passes
    from torch._inductor.virtualized import V
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.traceback import preserve_node_meta

    graph, specs = read_graph(record, TARGET)
    _keep_attention(graph)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, V.set_fake_mode(mode), torch.no_grad():
        inputs = [_input(spec) for spec in specs]
        with preserve_node_meta():
            traced = make_fx(
                lambda *values: fx.Interpreter(graph).run(*values), decomposition_table=select_decomp_table()
            )(*inputs)
        _settle_outputs(traced, record)
        replace_random_passes(traced)
    traced.recompile()
    return traced, inputs


def _input(spec: dict[str, Any]) -> torch.Tensor:
    dtype = getattr(torch, spec["dtype"].removeprefix("torch."))
    device = torch.device("cpu") if spec["host"] else TARGET
    return torch.empty_strided(spec["shape"], spec["stride"], dtype=dtype, device=device)


def _keep_attention(graph: fx.GraphModule) -> None:
    """Attention that torch would take apart or choose a kernel for becomes a call that stays whole, as it is for us."""
    from optfuse.inductor.opaque import attention_call

    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.scaled_dot_product_attention.default):
        attention_call(node)
    for node in graph.graph.nodes:
        if str(node.target) == "optfuse.padded_rows.default":  # for us a copy like any other
            node.target = torch.ops.aten.clone.default
    graph.recompile()


def _settle_outputs(graph: fx.GraphModule, record: dict[str, Any]) -> None:
    """Copy outputs that leave in another layout than they have, if that is the contiguous one."""
    output = graph.graph.output_node()
    values: list[Any] = list(output.args[0]) if isinstance(output.args[0], (tuple, list)) else [output.args[0]]
    ours = next(node["outputs"] for node in record["nodes"] if node["op"] == "output")
    for position, stride in record["strides"].items():
        node = values[int(position)]
        value = node.meta["val"]
        if tuple(value.stride()) == tuple(stride) or not _is_contiguous(value.shape, stride):
            continue
        with graph.graph.inserting_before(output):
            form: dict[str, Any] = {"memory_format": torch.contiguous_format}
            copy = graph.graph.call_function(torch.ops.aten.clone.default, (node,), form)
        copy.meta["val"] = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)
        copy.meta["custom"] = {"optfuse": SETTLED + ours[int(position)]["node"]}
        values[int(position)] = copy
    output.args = (tuple(values),)


def _is_contiguous(shape: Sequence[int], stride: Sequence[int]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= max(1, size)
    return True


@contextlib.contextmanager
def _stopped_when_fused(found: list[dict[str, Any]]) -> Generator[None]:
    """Within, Inductor's scheduler says what it decided, and raises, where it would generate code."""
    from torch._inductor.scheduler import Scheduler

    from optfuse.inductor.reading import read_schedule

    def codegen(scheduler: Any, *args: Any, **kwargs: Any) -> None:
        found.append(read_schedule(scheduler))
        raise _Scheduled

    with mock.patch.object(Scheduler, "codegen", codegen):
        yield


@contextlib.contextmanager
def _origins_handed_on() -> Generator[None]:
    """Within, nodes that rewrites make stand for those that they replace, also where Inductor does not say so."""
    replace = fx.Node.replace_all_uses_with

    def replacing(node: fx.Node, successor: fx.Node, *args: Any, **kwargs: Any) -> list[fx.Node]:
        hand_on(node, successor)
        return replace(node, successor, *args, **kwargs)

    with mock.patch.object(fx.Node, "replace_all_uses_with", replacing):
        yield


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
