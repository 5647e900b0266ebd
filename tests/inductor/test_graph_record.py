"""Graphs as data and back: names, arguments, constants and what becomes of mutations."""

from __future__ import annotations

import json

import pytest
import torch

from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.errors import InductorError
from optfuse.inductor.graph_record import UPDATE, graph_record, origin_of, read_graph
from tests.inductor.models import small

CPU = torch.device("cpu")


class Renews(torch.nn.Module):
    """Writes into its buffer, and has constants of one and of several values."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(3))
        self.several = torch.tensor([1.0, 2.0, 3.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add to the state and return a slice of it."""
        self.state.add_(x)
        return torch.where(x > -torch.inf, x * self.several, float("nan"))[1:]


def through_json(captured: Captured) -> tuple[torch.fx.GraphModule, list[dict[str, object]]]:
    return read_graph(json.loads(json.dumps(graph_record(captured))), CPU)


def test_the_graph_read_back_computes_the_same() -> None:
    captured, _ = small()
    graph, specs = through_json(captured)
    inputs = [torch.randn(spec["shape"]) for spec in specs]
    assert [node.name for node in captured.placeholders] == [n.name for n in graph.graph.find_nodes(op="placeholder")]
    torch.testing.assert_close(graph(*inputs), captured.graph(*inputs))


def test_nodes_carry_the_names_of_ours() -> None:
    captured, _ = small()
    graph, _ = through_json(captured)
    calls, ours = ([node for node in g.graph.nodes if node.op == "call_function"] for g in (graph, captured.graph))
    assert [origin_of(node) for node in calls] == [node.name for node in ours]


def test_new_values_of_inputs_are_copied_and_no_outputs() -> None:
    captured = capture(Renews(), (torch.ones(3),), name="renews.inference")
    graph, specs = through_json(captured)
    inputs = [torch.full(spec["shape"], 2.0) for spec in specs]
    state = captured.mutations[0][1]
    outputs = graph(*inputs)
    assert outputs[captured.mutations[0][0]] is None
    assert inputs[state].tolist() == [4.0, 4.0, 4.0]
    (copy,) = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    assert origin_of(copy) == UPDATE + captured.placeholders[state].name


def test_constants_of_one_value_are_filled_in_and_others_become_inputs() -> None:
    record = graph_record(capture(Renews(), (torch.ones(3),), name="renews.inference"))
    constants = [node for node in record["nodes"] if node["op"] == "input" and node["name"].startswith("constant")]
    wide = [node for node in constants if node["value"]["shape"] == [3]]
    assert [node for node in wide if "fill" not in node]
    _, specs = read_graph(record, CPU)
    assert len(specs) == sum("fill" not in node for node in record["nodes"] if node["op"] == "input")


def test_what_is_no_plain_data_is_refused() -> None:
    captured, _ = small()
    node = next(iter(captured.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)))
    node.kwargs = {"strange": object()}
    with pytest.raises(InductorError, match="relu has an argument of class object"):
        graph_record(captured)
