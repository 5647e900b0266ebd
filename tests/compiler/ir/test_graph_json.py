import contextlib
import copy
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optfuse.compiler.ir import graph_from_json, graph_to_json
from optfuse.compiler.ir.nodes import Call, Const, LibraryCall, Origin, Store, TorchValue
from optfuse.compiler.ir.printer import print_graph
from optfuse.errors import PlanError
from tests.compiler.ir.graphs import (
    F32,
    buffer,
    gather_graph,
    graph,
    i0,
    loop_graphs,
    nest,
    scan_graph,
    softmax_graph,
    update_graph,
    whole,
)

EXAMPLES = {"softmax": softmax_graph(), "gather": gather_graph(), "update": update_graph(), "scan": scan_graph()}


def round_trip(g):
    return graph_from_json(json.loads(json.dumps(graph_to_json(g), allow_nan=False)))


@given(loop_graphs())
def test_round_trip(g):
    assert round_trip(g) == g


@pytest.mark.parametrize("g", EXAMPLES.values(), ids=EXAMPLES)
def test_round_trip_of_examples(g):
    assert round_trip(g) == g
    assert print_graph(round_trip(g)) == print_graph(g)


def test_a_store_that_does_what_none_does_is_refused():
    data = graph_to_json(update_graph())
    data["ops"][2]["stores"][0][-1] = "multiplies"
    with pytest.raises(PlanError, match="multiplies"):
        graph_from_json(data)


def test_what_is_shared_stays_shared():
    value = Call("exp", (Const(1.0, F32),), F32)
    for _ in range(60):
        value = Call("mul", (value, value), F32)
    y = buffer("y", 3)
    data = graph_to_json(graph((y,), [nest("op", (3,), Store("y", i0, value))], (whole(y),)))
    assert len(data["ops"][0]["values"]) == 62
    back = graph_from_json(data).ops[0].stores[0].value
    assert back.args[0] is back.args[1]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -0.0, 1e300, 0.1])
def test_every_float_survives(value):
    y = buffer("y", 3)
    call = LibraryCall(
        "z", "aten.full.default", ((3,), value), (("dtype", TorchValue("dtype", "float32")),), ("z",), Origin("z", "")
    )
    g = graph((y, buffer("z", 3)), [nest("op", (3,), Store("y", i0, Const(value, F32))), call], (whole(y),))
    back = round_trip(g)
    assert repr(back.ops[0].stores[0].value.value) == repr(value)
    assert repr(back.ops[1].args[1]) == repr(value)


@pytest.mark.parametrize("parts", ["0.0 1.0", "-0.0 inf", "nan -1e-30"])
def test_complex_numbers_survive(parts):
    call = LibraryCall("z", "aten.mul.Tensor", (TorchValue("complex", parts),), (), ("z",), Origin("z", ""))
    assert round_trip(graph((buffer("z", 3),), [call], ())).ops[0] == call


def changed(path, value):
    """The JSON of a graph with one place replaced."""
    data = copy.deepcopy(graph_to_json(gather_graph()))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (None, "version None"),
        ({"version": 99}, "version 99"),
        ({"version": 1, "name": "g"}, "'g' is malformed"),
        (changed(("ops", 0, "stores", 0, 1), "__import__('os').system('true')"), "no index expression"),
        (changed(("ops", 0, "stores", 0, 2), 99), "value 99 is used before it is defined"),
        (changed(("ops", 0, "stores", 0, 2), -1), "value -1 is used before it is defined"),
        (changed(("ops", 0, "stores", 0, 0), "nowhere"), "does not verify: rows: unknown buffer nowhere"),
        (changed(("ops", 0, "values", 0, 0), "eval"), "unknown expression 'eval'"),
        (changed(("ops", 0, "origin", 3), "a.py\nimport os"), "no line of text"),
        (changed(("ops", 0, "nest"), "a\nimport os"), "no line of text"),
        (changed(("ops", 0, "nest"), "a; import os"), "is no identifier"),
        (changed(("ops", 2, "target"), "os.system('true')"), "is not of the form"),
        (changed(("ops", 2, "kwargs", 0, 1), {"torch": ["dtype", "float32); import os"]}), "is not of the form"),
        (changed(("ops", 2, "kwargs", 0, 0), "a\nb"), "no line of text"),
        (changed(("ops", 2, "random"), "yes"), "not of type bool"),
        (changed(("ops", 2, "args", 0), {"view": ["padded", [99, 3], [3, 1], 0]}), "past its 21 elements"),
        (changed(("buffers", 0, 0), "two words"), "is no identifier"),
        (changed(("buffers", 0, 1), "float32'"), "is not of the form"),
        (changed(("buffers", 0, 2), [-4, 3]), "negative size"),
        (changed(("buffers", 0, 2), [4.0, 3]), "not of type int"),
        (changed(("buffers", 0, 4), "register"), "unknown kind register"),
        (changed(("outputs", 0), "text"), "is no output"),
        (changed(("ops",), [{}]), "is malformed"),
    ],
)
def test_malformed_graphs_are_refused_in_one_line(data, fault):
    with pytest.raises(PlanError, match=fault.replace("(", r"\(")) as caught:
        graph_from_json(data)
    assert "\n" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=8,
)


@given(JSON, st.randoms(use_true_random=False))
def test_any_damage_is_a_plan_error_or_a_graph(junk, random):
    """Replace a random place by junk: reading gives a graph that verifies, or the one error."""
    data = copy.deepcopy(graph_to_json(gather_graph()))
    place = data
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = random.choice(keys)
        if not isinstance(place[key], dict | list) or not place[key] or random.random() < 0.2:
            place[key] = junk
            break
        place = place[key]
    with contextlib.suppress(PlanError):
        graph_from_json(data)
