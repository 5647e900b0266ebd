"""Plans from strangers: reading and running one runs nothing but its own computation, whatever its files say."""

from __future__ import annotations

import json
import sys
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils import _pytree

import optfuse
from optfuse.compiler.codegen.python_text import comment, docstring
from optfuse.compiler.frontend.operators.plan_operators import named_overload
from optfuse.errors import OptfuseError, PlanError
from optfuse.runtime.environment import mode
from optfuse.schedule.plan import PLAN_VERSION
from optfuse.schedule.prepared import Prepared, load_prepared, save_prepared
from tests.hostile import code, edit, hostile_call, state_again, structures, with_graph
from tests.oracle.judging import GREEDY, Function
from tests.schedule.test_plan import Net, batch

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


@pytest.fixture(scope="module")
def schedule() -> optfuse.Schedule:
    torch.manual_seed(0)
    return optfuse.optimize(Net(), (batch(),), {"scale": 0.5}, options=GREEDY, name="net")


@pytest.fixture
def folder(schedule: optfuse.Schedule, tmp_path: Path) -> Path:
    schedule.save(tmp_path / "plan")
    return tmp_path / "plan"


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """What hostile code makes, if it runs."""
    return tmp_path / "ran"


def refused_or_harmless(folder: Path, ran: Path) -> str:
    """Load a plan and run it if it loads; the message if it does not."""
    message = ""
    try:
        optfuse.load(folder).compile()(batch(), scale=0.5)
    except PlanError as error:
        message = str(error)
        assert "\n" not in message
        assert str(folder) in message
    except (OptfuseError, RuntimeError) as error:
        message = str(error)
    assert not ran.exists(), "hostile code has run"
    return message


# --- what a plan says becomes Python source -------------------------------------------------------------------------


def test_a_graphs_name_ends_no_docstring(folder: Path, ran: Path) -> None:
    name = f'x"""; {code(ran)}; """y'
    for part in ("graph.json", "instance.json"):
        edit(folder / part, lambda data: data.update(name=name))
    state_again(folder)
    assert refused_or_harmless(folder, ran) == ""  # a name is free: it is text in the module


def test_a_keyword_of_a_call_is_no_expression(folder: Path, ran: Path) -> None:
    def change(data: Any) -> None:
        call = next(op for op in data["ops"] if "call" in op)
        call["kwargs"].append([f"out={code(ran)}, dtype", None])

    edit(folder / "graph.json", change)
    assert "no identifier" in refused_or_harmless(folder, ran)


@pytest.mark.parametrize("name", ["class", "\uff4caunch", "a b", "", "x;y"])
def test_names_are_plain_identifiers(folder: Path, ran: Path, name: str) -> None:
    """Python reads some letters beyond ASCII as others: such a name could hide one of the module's."""
    text = (folder / "graph.json").read_text()
    before = json.loads(text)["ops"][0].get("nest") or json.loads(text)["ops"][0]["call"]
    (folder / "graph.json").write_text(text.replace(json.dumps(before), json.dumps(name)))
    assert "no identifier" in refused_or_harmless(folder, ran)


def test_text_in_emitted_source_stays_text() -> None:
    for text in ('a"""b', "a\\", '""""""', "\\'''", 'x\\"""'):
        scope: dict[str, Any] = {}
        exec(f'"""{docstring(text)}\n"""', scope)
        assert scope["__doc__"].strip() == text.replace('"""', "'''")
    assert comment("a\nb\r\x0cc\u2028d") == "    # a b  c d"


# --- what a plan calls ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("load_library.__call__", "no operator"),
        ("import_module.__call__", "no operator"),
        ("aten.from_file.default", "filename"),
        ("aten.save.default", "no operator"),
        ("aten.warn.default", "no operator"),
        ("aten.__class__.__call__", "no operator"),
        ("debugprims.load_tensor.default", "operators of aten"),
    ],
)
def test_only_operators_are_called(
    schedule: optfuse.Schedule, folder: Path, ran: Path, target: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``torch.ops`` has functions that open libraries, and operators that open files."""
    ran.with_name("stranger.py").write_text(code(ran))
    monkeypatch.syspath_prepend(ran.parent)
    argument = "stranger" if target.startswith("import") else str(ran.with_name("stranger.so"))
    more = (True, 4) if "from_file" in target else ()
    graph = replace(schedule.graph, ops=(*schedule.graph.ops, hostile_call(target, argument, *more)))
    with_graph(schedule, folder, graph)
    assert said in refused_or_harmless(folder, ran)
    assert "stranger" not in sys.modules
    assert not Path(argument).exists()


def test_operators_of_others_are_called_when_named() -> None:
    library = torch.library.Library("optfuse_test_strangers", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    target = "optfuse_test_strangers.twice.default"
    with pytest.raises(PlanError, match="operators="):
        named_overload(target)
    assert named_overload(target, ["optfuse_test_strangers"]) is torch.ops.optfuse_test_strangers.twice.default
    with pytest.raises(PlanError, match="no operator"):  # what is named is a namespace, not an attribute
        named_overload("load_library.__call__.x", ["load_library"])
    for target in ("aten.div.Tensor_mode", "aten._assert_async.msg", "prims.sin.default"):
        assert str(named_overload(target)) == target


# --- how arguments and results nest ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", structures(Path()))
def test_structures_are_data(
    schedule: optfuse.Schedule, folder: Path, ran: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans and prepared graphs share the reader."""
    prepared = ran.with_name("prepared")
    prepared.mkdir()
    save_prepared(Prepared(schedule.extraction, schedule.interface), prepared)
    ran.with_name("stranger.py").write_text(code(ran))
    monkeypatch.syspath_prepend(ran.parent)
    structure = structures(ran.parent)[kind]
    for path in (folder / "plan.json", prepared / "interface.json"):
        edit(path, lambda data: data["call"].update(out_spec=structure))
    if kind == "context_True":  # JSON in a string is a string: such a class would get its letters, and nothing else
        assert load_prepared(prepared).interface.call is not None
        return
    for read in (lambda: optfuse.load(folder), lambda: load_prepared(prepared)):
        with pytest.raises(PlanError) as caught:
            read()
        assert "\n" not in str(caught.value)
    assert "stranger" not in sys.modules
    assert not ran.exists()


def test_plans_of_the_older_format_are_refused(folder: Path) -> None:
    assert PLAN_VERSION == 2
    edit(folder / "plan.json", lambda data: data.update(version=1))
    with pytest.raises(PlanError, match="save it again"):
        optfuse.load(folder)


def test_results_of_many_classes_survive_a_plan(tmp_path: Path) -> None:
    """The containers of Python and torch that pytree knows come back as they were."""

    def model(x: torch.Tensor) -> Any:
        return {
            "ordered": OrderedDict([("b", x + 1), ("a", x + 2)]),
            "default": defaultdict(list, {"k": x * 2}),
            "deque": deque([x * 3], maxlen=2),
            3: (x - 1, [None, "text", 1.5]),
            ("a", 1): x + 4,
        }

    found = optfuse.optimize(Function(model), (batch(),), options=GREEDY)
    found.save(tmp_path / "plan")
    again, wanted = optfuse.load(tmp_path / "plan").compile()(batch()), found.compile()(batch())
    assert list(again) == list(wanted)
    assert [type(value) for value in again.values()] == [type(value) for value in model(batch()).values()]
    assert again["default"].default_factory is list
    assert again["deque"].maxlen == 2
    assert list(again["ordered"]) == ["b", "a"]
    torch.testing.assert_close(again[3][0], wanted[3][0])


@dataclass
class Output:
    """A result as libraries have them: a dataclass that pytree knows by a name."""

    first: torch.Tensor
    second: torch.Tensor | None = None


class Pair(NamedTuple):
    """A named tuple of a library."""

    one: torch.Tensor
    two: torch.Tensor


def test_classes_that_this_process_knows_survive_a_plan(tmp_path: Path) -> None:
    """They are found by the name that they are registered under; a class of other fields is refused."""
    _pytree.register_dataclass(Output, serialized_type_name="strangers.Output")
    _pytree._register_namedtuple(Pair, serialized_type_name="strangers.Pair")  # noqa: SLF001
    found = optfuse.optimize(Function(lambda x: (Output(x + 1), Pair(x, x * 2))), (batch(),), options=GREEDY)
    found.save(tmp_path / "plan")
    output, pair = optfuse.load(tmp_path / "plan").compile()(batch())
    assert isinstance(output, Output)
    assert isinstance(pair, Pair)
    assert output.second is None
    torch.testing.assert_close(pair.two, batch() * 2)
    edit(tmp_path / "plan" / "plan.json", lambda d: d["call"]["out_spec"]["tuple"][1].update(parts=["leaf"]))
    with pytest.raises(PlanError, match="no named tuple of 1 fields"):
        optfuse.load(tmp_path / "plan")
