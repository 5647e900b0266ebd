"""A graph record as the FX graph that AOTAutograd would give to Inductor; every node names the node it comes from."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import fx

from optfuse.inductor.graph_record import LAYOUT_COPY, copy_origin, read_graph, torch_value


def inductor_graph(
    record: dict[str, Any], device: torch.device, *, runs: bool = False
) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """Return the graph on a device, with Inductor's decompositions applied, and its inputs as fake tensors.

    Args:
        runs: Whether the graph will run. If so, ``padded_rows`` stays an operator, since attention needs its layout;
            otherwise it becomes a clone, as in our own instances.
    """
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.replace_random import replace_random_passes
    from torch._inductor.virtualized import V
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.traceback import preserve_node_meta

    graph, specs = read_graph(record, device)
    _keep_attention(graph, runs)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, V.set_fake_mode(mode), torch.no_grad():
        inputs = [_input(spec, device) for spec in specs]
        with preserve_node_meta():
            traced = make_fx(
                lambda *values: fx.Interpreter(graph).run(*values), decomposition_table=select_decomp_table()
            )(*inputs)
        _copy_outputs_to_layout(traced, record)
        replace_random_passes(traced)
    traced.recompile()
    return traced, inputs


def _input(spec: dict[str, Any], target: torch.device) -> torch.Tensor:
    dtype = torch_value(spec["dtype"])
    device = torch.device("cpu") if spec["host"] else target
    return torch.empty_strided(spec["shape"], spec["stride"], dtype=dtype, device=device)


def _keep_attention(graph: fx.GraphModule, runs: bool) -> None:
    """Make attention one opaque call, as in our own instances; see ``inductor_graph`` for ``runs``."""
    from optfuse.inductor.attention_operator import call_whole_attention

    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.scaled_dot_product_attention.default):
        call_whole_attention(node)
    for node in graph.graph.nodes:
        if not runs and str(node.target) == "optfuse.padded_rows.default":
            node.target = torch.ops.aten.clone.default
    graph.recompile()


def _copy_outputs_to_layout(graph: fx.GraphModule, record: dict[str, Any]) -> None:
    """Add a copy for each output whose recorded strides are contiguous and differ from those it has."""
    output = graph.graph.output_node()
    values: list[Any] = list(output.args[0]) if isinstance(output.args[0], (tuple, list)) else [output.args[0]]
    outputs = next(node["outputs"] for node in record["nodes"] if node["op"] == "output")
    for position, stride in record["strides"].items():
        node = values[int(position)]
        value = node.meta["val"]
        if tuple(value.stride()) == tuple(stride) or not _is_contiguous(value.shape, stride):
            continue
        with graph.graph.inserting_before(output):
            form: dict[str, Any] = {"memory_format": torch.contiguous_format}
            copy = graph.graph.call_function(torch.ops.aten.clone.default, (node,), form)
        copy.meta["val"] = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)
        copy.meta["custom"] = {"optfuse": LAYOUT_COPY + outputs[int(position)]["node"]}
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
def keep_origins() -> Generator[None]:
    """Context in which a node that replaces another inherits the name of our node that the other came from."""
    replace = fx.Node.replace_all_uses_with

    def replacing(node: fx.Node, successor: fx.Node, *args: Any, **kwargs: Any) -> list[fx.Node]:
        copy_origin(node, successor)
        return replace(node, successor, *args, **kwargs)

    with mock.patch.object(fx.Node, "replace_all_uses_with", replacing):
        yield
