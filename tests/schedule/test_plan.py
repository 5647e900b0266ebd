"""Plans on disk: they replay without the solver, hold no secrets, refuse what is damaged, and are whole or absent."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import optfuse
from optfuse.compiler.simplify.decisions import UNRECORDED
from optfuse.errors import OutputError, PlanError, UnknownClassError
from optfuse.runtime.environment import mode
from optfuse.schedule import plan, prepared
from tests.oracle.judging import OPTIONS, Function

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


class Net(nn.Module):
    """Parameters, a written buffer, a constant, library calls, nested results."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(9, 7)
        self.norm = nn.LayerNorm(7)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, scale: float = 2.0) -> dict[str, Any]:
        self.calls.add_(1)
        y = self.norm(torch.nn.functional.gelu(self.linear(x))) * scale + torch.tensor([0.5, 1, 2, 3, 4, 5, 6])
        return {"y": y, "pair": [y.sum(0), None, "text"]}


def batch() -> Tensor:
    return torch.randn(5, 9, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def model() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def schedule(model: Net) -> optfuse.Schedule:
    return optfuse.optimize(model, (batch(),), {"scale": 0.5}, options=OPTIONS, name="net")


@pytest.fixture
def folder(schedule: optfuse.Schedule, tmp_path: Path) -> Path:
    schedule.save(tmp_path / "plan")
    return tmp_path / "plan"


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    pairs = ((found["y"], wanted["y"]), (found["pair"][0], wanted["pair"][0]))
    return found["pair"][1:] == wanted["pair"][1:] and all(torch.equal(a, b) for a, b in pairs)


def test_round_trip(schedule: optfuse.Schedule, model: Net, folder: Path) -> None:
    loaded = optfuse.load(folder)
    assert loaded.source == schedule.source
    assert loaded.result == schedule.result
    assert loaded.instance == schedule.instance
    assert loaded.summary() == schedule.summary()
    assert loaded.report() == schedule.report()
    before = model.calls.item()
    found = loaded.compile()(batch(), scale=0.5)
    assert model.calls == before, "a plan with weights has its own buffers"
    assert same(found, schedule.compile()(batch(), scale=0.5))


def test_decisions_are_kept(schedule: optfuse.Schedule, folder: Path) -> None:
    assert schedule.decisions
    assert optfuse.load(folder).decisions == schedule.decisions
    phrases = [str(decision) for decision in schedule.decisions]
    assert schedule.summary()["decisions"] == phrases
    assert f"Decided before the solver: {', '.join(phrases)}." in (folder / "report.txt").read_text()


def test_a_plan_from_before_decisions_were_kept(schedule: optfuse.Schedule, folder: Path) -> None:
    (folder / "decisions.json").unlink()
    loaded = optfuse.load(folder)
    assert loaded.result == schedule.result
    assert loaded.decisions[0] == UNRECORDED
    assert "0 rewrites recorded when this plan was saved, " in loaded.certificate
    assert "operator given to libraries (aten.mm 1)" in loaded.certificate


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"decided": 3}', '{"decided": [["a", "b"]]}'])
def test_damaged_decisions_are_named_in_one_line(folder: Path, text: str) -> None:
    (folder / "decisions.json").write_text(text)
    with pytest.raises(PlanError, match=r"decisions\.json") as caught:
        optfuse.load(folder)
    assert "\n" not in str(caught.value)


def test_buffers_of_a_loaded_plan_keep_what_is_written(folder: Path) -> None:
    loaded = optfuse.load(folder)
    program = loaded.compile()
    start = loaded.interface.weights["calls"].item()
    for _ in range(3):
        program(batch(), scale=0.5)
    assert loaded.interface.weights["calls"] == start + 3


def test_without_weights(schedule: optfuse.Schedule, model: Net, tmp_path: Path) -> None:
    schedule.save(tmp_path / "plan", weights=False)
    assert not (tmp_path / "plan" / "weights.safetensors").exists()
    loaded = optfuse.load(tmp_path / "plan")
    with pytest.raises(PlanError, match=r"without weights.*compile\(model\)"):
        loaded.compile()
    assert same(loaded.compile(model)(batch(), scale=0.5), schedule.compile()(batch(), scale=0.5))


def test_saved_again(schedule: optfuse.Schedule, folder: Path, tmp_path: Path) -> None:
    schedule.save(folder)
    loaded = optfuse.load(folder)
    loaded.save(tmp_path / "again")
    for path in folder.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


def test_training_schedules_are_saved_by_halves(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    step = optfuse.optimize(model, (torch.randn(5, 4),), train=True, options=OPTIONS, name="net")
    for half in step:
        half.save(tmp_path / half.name)
        assert optfuse.load(tmp_path / half.name).source == half.source


REPLAY = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "ortools":
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Refuse())
import optfuse
import torch

found = optfuse.load(sys.argv[1]).compile()(torch.load(sys.argv[2]), scale=0.5)
assert torch.equal(found["y"], torch.load(sys.argv[3]))
assert not any(name.split(".")[0] == "ortools" for name in sys.modules)
"""


@pytest.mark.slow
def test_replays_in_another_process_without_ortools(schedule: optfuse.Schedule, folder: Path, tmp_path: Path) -> None:
    torch.save(batch(), tmp_path / "x.pt")
    torch.save(schedule.compile()(batch(), scale=0.5)["y"], tmp_path / "y.pt")
    command = [sys.executable, "-c", REPLAY, str(folder), str(tmp_path / "x.pt"), str(tmp_path / "y.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- nothing of an untrusted plan runs --------------------------------------------------------------------------------


def test_edited_kernels_are_reported_and_not_used(
    schedule: optfuse.Schedule, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "kernels.py").write_text("raise SystemExit('this must not run')\n")
    with caplog.at_level(logging.WARNING, logger="optfuse"):
        loaded = optfuse.load(folder)
    assert str(folder / "kernels.py") in caplog.text
    assert "not used" in caplog.text
    assert loaded.source == schedule.source
    loaded.compile()(batch(), scale=0.5)
    (folder / "kernels.py").write_bytes(b"\xff\xfe\x00")
    assert optfuse.load(folder).source == schedule.source


def test_sound_plans_are_loaded_in_silence(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    optfuse.load(folder)
    assert caplog.text == ""


def test_names_and_targets_cannot_smuggle_code(folder: Path) -> None:
    graph = json.loads((folder / "graph.json").read_text())
    text = json.dumps(graph)
    assert "aten.mm.default" in text
    evil = text.replace("aten.mm.default", "aten.mm.default); raise SystemExit(3); (0")
    (folder / "graph.json").write_text(evil)
    with pytest.raises(PlanError):
        optfuse.load(folder).compile()


def test_strange_operators_are_refused(folder: Path) -> None:
    text = (folder / "graph.json").read_text().replace("aten.mm.default", "os.system")
    (folder / "graph.json").write_text(text)
    with pytest.raises(PlanError):
        optfuse.load(folder)


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all strings."""
    if isinstance(data, str):
        yield path
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from places(value, (*path, key))


@pytest.mark.parametrize("quote", ["", '"', '"""', "'", ")"])
@pytest.mark.parametrize("part", ["graph.json", "plan.json"])
@pytest.mark.spread(4)
def test_no_string_of_a_plan_becomes_code(folder: Path, tmp_path: Path, part: str, quote: str) -> None:
    """One string a kind of place is followed by a statement; loading refuses, or what is emitted does not run it."""
    sentinel = tmp_path / "ran"
    evil = f"{quote}\n__import__('pathlib').Path({str(sentinel)!r}).touch()\n#{quote}"
    text = (folder / part).read_text()
    whole = json.loads(text)
    kinds = {(*(key for key in path if isinstance(key, str)), len(path)): path for path in places(whole)}
    for path in kinds.values():
        changed = json.loads(text)
        *parents, last = path
        node = changed
        for key in parents:
            node = node[key]
        before = node[last]
        node[last] = before + evil
        # the same name elsewhere too, so that references hold
        everywhere = text.replace(json.dumps(before), json.dumps(before + evil))
        for content in (json.dumps(changed), everywhere):
            (folder / part).write_text(content)
            with contextlib.suppress(PlanError, optfuse.errors.OptfuseError, SyntaxError):
                optfuse.load(folder).compile()(batch(), scale=0.5)
            assert not sentinel.exists(), f"{part} at {path} becomes code"


# --- damage ---------------------------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 4)


def foreign(path: Path) -> None:
    path.write_text('{"format": "something else", "version": 1}')


def listed(path: Path) -> None:
    path.write_text("[1, 2, 3]")


def newer(path: Path) -> None:
    data = json.loads(path.read_text())
    data["version"] = 999
    path.write_text(json.dumps(data))


def hollow(path: Path) -> None:
    data = json.loads(path.read_text())
    path.write_text(json.dumps({key: data[key] for key in ("format", "version") if key in data}))


PARTS = ("plan.json", "graph.json", "instance.json", "solution.json", "greedy.json")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("damage", [Path.unlink, truncate, empty, binary, foreign, listed, newer, hollow])
@pytest.mark.spread(3)
def test_damage_is_named_in_one_line(folder: Path, part: str, damage: Callable[[Path], None]) -> None:
    damage(folder / part)
    with pytest.raises(PlanError) as caught:
        optfuse.load(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("part", ["constants.safetensors", "weights.safetensors"])
@pytest.mark.parametrize("damage", [truncate, binary, listed])
def test_damaged_tensors_are_named_in_one_line(folder: Path, part: str, damage: Callable[[Path], None]) -> None:
    damage(folder / part)
    with pytest.raises(PlanError, match=part) as caught:
        optfuse.load(folder)
    assert "\n" not in str(caught.value)


def test_missing_constants(folder: Path) -> None:
    (folder / "constants.safetensors").unlink()
    with pytest.raises(PlanError, match="constant"):
        optfuse.load(folder).compile()


def test_weights_of_another_shape(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "weights.safetensors"
    save_file({name: torch.zeros(2, 2) for name in load_file(path)}, path)
    with pytest.raises(optfuse.errors.OptfuseError):
        optfuse.load(folder).compile()(batch(), scale=0.5)


def test_a_model_or_weights_without_a_parameter(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    with pytest.raises(PlanError, match=r"needs norm\.weight"):
        optfuse.load(folder).compile(nn.ModuleDict({"linear": nn.Linear(9, 7)}))
    path = folder / "weights.safetensors"
    save_file({name: value for name, value in load_file(path).items() if name != "calls"}, path)
    with pytest.raises(PlanError, match="needs calls"):
        optfuse.load(folder).compile()


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no such file"):
        optfuse.load(tmp_path / "nowhere")
    with pytest.raises(PlanError):
        optfuse.load(Path(__file__))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = optfuse.optimize(Function(lambda x: torch.softmax(x, -1)), (batch(),), options=OPTIONS, name="other")
    folder = tmp_path_factory.mktemp("other") / "plan"
    found.save(folder)
    return folder


@pytest.mark.parametrize("part", ["graph.json", "instance.json", "solution.json"])
def test_parts_of_another_plan(folder: Path, other: Path, part: str) -> None:
    shutil.copy(other / part, folder / part)
    with pytest.raises(PlanError) as caught:
        optfuse.load(folder)
    assert "\n" not in str(caught.value)


def test_forged_solution(folder: Path) -> None:
    """A solution that claims less than it costs, or lets two live buffers overlap, does not pass the checker."""
    path = folder / "solution.json"
    data = json.loads(path.read_text())
    data["objective"] -= 1
    path.write_text(json.dumps(data))
    with pytest.raises(PlanError, match=r"solution\.json"):
        optfuse.load(folder)


@pytest.mark.parametrize(
    ("part", "forged"),
    [
        ("result", {"objective": 1}),
        ("result", {"bound": 10**15}),
        ("result", {"bound": -1}),
        ("result", {"status": "OPTIMAL", "bound": 1}),
        ("result", {"status": "CERTAIN"}),
        ("inputs", []),
        ("outputs", [5]),
    ],
)
def test_forged_facts(folder: Path, part: str, forged: Any) -> None:
    """The certificate cannot claim what the solution does not show, nor the interface what the graph does not have."""
    path = folder / "plan.json"
    data = json.loads(path.read_text())
    data[part] = {**data[part], **forged} if isinstance(forged, dict) else forged
    path.write_text(json.dumps(data))
    with pytest.raises(PlanError, match=r"plan\.json"):
        optfuse.load(folder)


def test_a_forged_arena(folder: Path) -> None:
    """A solution cannot make the program ask for more memory than its buffers take."""
    path = folder / "solution.json"
    data = json.loads(path.read_text())
    data["arena_bytes"] = 10**15
    path.write_text(json.dumps(data))
    with pytest.raises(PlanError, match="arena"):
        optfuse.load(folder)


# --- whole or absent ------------------------------------------------------------------------------------------------


def test_failure_midway_leaves_nothing(
    schedule: optfuse.Schedule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepared, "save_file", full)
    with pytest.raises(OutputError, match="No space left"):
        schedule.save(tmp_path / "plan")
    assert list(tmp_path.iterdir()) == []


def test_failure_midway_keeps_the_older_plan(
    schedule: optfuse.Schedule, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plan, "save_solution", full)
    with pytest.raises(OutputError):
        schedule.save(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_folders_that_are_no_plans_are_left_alone(schedule: optfuse.Schedule, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("ten years of work")
    with pytest.raises(PlanError, match="no plan"):
        schedule.save(tmp_path)
    with pytest.raises(PlanError, match="no plan"):
        schedule.save(tmp_path / "thesis.txt")
    assert (tmp_path / "thesis.txt").read_text() == "ten years of work"


def test_a_folder_below_a_file_cannot_be_made(schedule: optfuse.Schedule, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        schedule.save(tmp_path / "file" / "plan")


class Pair(NamedTuple):
    """A result of a class that pytree cannot write down."""

    first: Tensor
    second: Tensor


def test_results_of_a_class_that_cannot_be_written(tmp_path: Path) -> None:
    found = optfuse.optimize(Function(lambda x: Pair(x + 1, x * 2)), (batch(),), options=OPTIONS)
    assert isinstance(found.compile()(batch()), Pair)
    with pytest.raises(PlanError, match="Pair") as caught:
        found.save(tmp_path / "plan")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_results_of_a_class_that_is_unknown_at_loading(folder: Path) -> None:
    path = folder / "plan.json"
    data = json.loads(path.read_text())
    data["call"]["out_spec"] = {"class": "transformer.Output", "context": ["y"], "parts": ["leaf"]}
    path.write_text(json.dumps(data))
    with pytest.raises(UnknownClassError, match=r"plan\.json.*transformer\.Output.*import its library") as caught:
        optfuse.load(folder)
    assert "\n" not in str(caught.value)


class Branching(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: y.exp(), lambda y: y - 1, (x,)) * 2


def test_a_plan_cannot_hold_what_only_this_process_knows(tmp_path):
    schedule = optfuse.optimize(Branching(), (torch.randn(4),), name="branching")
    torch.testing.assert_close(schedule.compile()(torch.ones(4)), torch.ones(4).exp() * 2)
    with pytest.raises(PlanError, match="branching: a plan cannot hold cond_"):
        schedule.save(tmp_path / "plan")
    assert not (tmp_path / "plan").exists()
