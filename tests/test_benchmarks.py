"""The scripts of ``benchmarks/`` run."""

from __future__ import annotations

import json
import os
import runpy
import time
import unittest
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_solve_is_measured_from_outside() -> None:
    measure = runpy.run_path(str(ROOT / "benchmarks" / "solver.py"))["measure"]
    row = measure(ROOT / "instances" / "example.json", limit=20.0, workers=1)
    assert row["status"] == "OPTIMAL"
    assert row["gap"] == 0
    assert 0 < row["wall"] < row["total"]
    assert row["over"] < 0 < row["rss_mib"]


@pytest.mark.slow
def test_optimizer_steps_are_measured_and_compared(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "optimizers.py"))
    assert [len(script[name]()) for name in ("gpt2", "resnet50", "llama")] == [148, 161, 75]
    script["main"](["--dry", "--rows", "sgd", "--systems", "eager,optfuse", "--out", str(tmp_path / "rows.jsonl")])
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["system"] for row in rows] == ["eager", "optfuse"]
    assert rows[0]["differs"] == 0 < rows[1]["ms"]
    assert rows[1]["differs"] < 1e-5


def test_the_zoo_s_tables_say_what_the_rows_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = runpy.run_path(str(ROOT / "benchmarks" / "zoo.py"))
    solved = {
        "graph": "mlp.backward",
        "solver": "cpsat",
        "proven": True,
        "status": "OPTIMAL",
        "gap": 0.0,
        "solve_s": 0.52,
    }
    solved |= {"ops": 7, "kernels": 2, "objective": 8_000_000, "greedy_objective": 10_000_000, "saved": 0.2}
    theirs = {"kernels": 3, "objective": 9_000_000, "moved_bytes": 3e9}
    found = {"launches": 3, "agreement": 0.5, "agreement_once": 1.0, "rand_index": 0.75, "repeated": 1, "split": 1}
    found |= {"unmapped": 0, "ops": 7, "split_reasons": {"scheme": 1}, "pairs_both": 1, "pairs_inductor": 1}
    found |= {"pairs_greedy": 2, "once_pairs_both": 1, "once_pairs_inductor": 0, "once_pairs_greedy": 0}
    found["partitions"] = [theirs, {"kernels": 4, "objective": 10_000_000, "moved_bytes": 4e9}]
    zoo = SimpleNamespace(
        rows=[solved],
        solved=[{**solved, "moved_bytes": 2e9}],
        main=lambda: zoo.solved,
        part=lambda part: zoo.solved if part == "backward" else [],
        by_name={("mlp.backward", "inductor"): theirs},
        comparisons={"mlp.backward": found},
    )

    assert "| mlp.backward | 7 | 2 | 10 | 8 | 20.0% | OPTIMAL | 0.0% | 0.5 |" in script["graphs_text"](zoo)
    text = script["inductor_text"](zoo)
    assert "| 3 / 4 / 2 | 9 / 10 / 8 | 3.0 / 4.0 / 2.0 | 50.0% | 100.0% |" in text
    assert "| whole zoo, backward | 1 | 25.0% | 100.0% |" in text
    assert (
        "Greedy is dearer than Inductor's mapped partition in 1 (mlp.backward), the solver's answer in 0."
        in " ".join(text.split())
    )
    assert "25.0% dearer" in script["losses_text"](zoo)
    assert script["ties_text"](zoo) == ""


class Outcomes(unittest.TestCase):
    """What a test may do to its runner; collected by the runner under test alone."""

    __test__ = False

    def test_crash(self) -> None:
        os._exit(3)

    def test_fail(self) -> None:
        self.fail("on purpose")

    def test_hang(self) -> None:
        time.sleep(60)

    def test_metrics(self) -> None:
        metrics = SimpleNamespace(count=2)
        assert metrics.count == 1

    def test_pass(self) -> None:
        assert self.id().endswith("test_pass")


@pytest.mark.slow
def test_a_crash_or_a_hang_costs_one_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))  # a worker process imports it by name
    script = vars(import_module("inductor_tests"))
    path = tmp_path / "outcomes.py"
    path.write_text("from tests.test_benchmarks import Outcomes\nCpuTests = SweepInputsCpuTest = TestFull = Outcomes\n")
    module = script["load_tests"](path)
    tests = [name for name in script["names"](module, "cpu") if name.startswith("CpuTests.")]
    rows = list(script["run_all"](path, "optfuse", tests, 4.0))
    assert [row.outcome for row in rows] == ["crashed", "failed", "late", "failed", "passed"]
    assert rows[1].error == "AssertionError: on purpose"
    assert [script["looks_inside"](module, test) for test in tests] == [False, False, False, True, False]
    marked = {(row.test, "optfuse"): replace(row, insides="metrics" in row.test) for row in rows}
    text = script["table"](marked)
    assert "run under optfuse: 5; passed under both: 1" in text
    assert "failed under optfuse alone: 3" in text
    assert "insides: 1\n  CpuTests.test_metrics (failed): AssertionError" in text


@pytest.mark.slow
def test_a_measurement_that_fails_costs_itself(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "fronts.py"))
    groups = [list(script["points"]("nosuch", group, [0.9], [0.3])) for group in ("inductor", "eager")]
    for group, seconds in zip(groups, (0.01, 60.0), strict=True):
        script["in_process"](group, "small", tmp_path / "rows.jsonl", time.time() + seconds)
    rows = script["read_rows"](tmp_path / "rows.jsonl")
    assert [script["Point"].of(row) for row in rows] == [*groups[0], *groups[1]]
    assert [row["error"] for row in rows][:1] == ["not done in time"]
    assert all("nosuch.py" in row["error"] for row in rows[1:])


def test_the_table_of_fronts_says_what_is_beaten() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "fronts.py"))
    kept = {"model": "gpt2", "setting": None, "size": "small", "ms": 2.0, "peak_mib": 100.0}
    rows = [
        {**kept, "system": "eager"},
        {**kept, "system": "inductor", "setting": 0.3, "ms": 3.0, "peak_mib": 90.0},
        {**kept, "system": "optfuse", "ms": 1.0, "peak_mib": 100.0, "predicted_ms": 0.9, "predicted_mib": 97.0},
        {"model": "gpt2", "system": "optfuse", "setting": 0.5, "size": "small", "error": "InfeasibleError: raise it"},
    ]
    text = script["table"](rows)
    assert "| gpt2 | optfuse * | 1.00 | 100 | 0.90 | 97 | -3.0% |" in text
    assert "| gpt2 | inductor 0.3 * | 3.00 | 90 |" in text
    assert "| gpt2 | eager | 2.00 | 100 |" in text
    assert "gpt2, optfuse 0.5: InfeasibleError: raise it" in text


def test_fronts_are_compared_with_each_point_of_inductor() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "fronts.py"))
    kept = {"model": "gpt2", "setting": None, "size": "small", "held_mib": 20.0}
    ours = {**kept, "predicted_ms": 1.0}
    rows = [
        {**kept, "system": "eager", "ms": 1.0, "peak_mib": 30.0},
        {**kept, "system": "inductor", "setting": 1.0, "ms": 3.0, "peak_mib": 120.0},
        {**kept, "system": "inductor-checkpoint", "ms": 3.5, "peak_mib": 55.0},
        {**ours, "system": "optfuse", "ms": 2.0, "peak_mib": 100.0, "predicted_mib": 98.0},
        {**ours, "system": "optfuse-capped", "setting": 60.0, "ms": 4.0, "peak_mib": 60.0, "predicted_mib": 60.0},
    ]
    text = script["table"](rows)
    assert "| gpt2 | inductor 1 | 0.80 | 0.67 |" in text
    assert "| gpt2 | inductor-checkpoint | 2.29 | none |" in text
    assert "| geometric mean | all | 1.35 (2 of 2) | 0.67 (1 of 2) |" in text
    assert "Not dominated by ours: gpt2, inductor-checkpoint" in text
    assert "Dominated by gpt2, inductor-checkpoint: ours of 4.00 ms and 60 MiB" in text
    assert "Largest error of a predicted peak: 2.0%, gpt2 at 100 MiB" in text


def test_caps_of_fronts_are_of_models() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "fronts.py"))
    assert script["caps_of"](["gpt2:2742,3330", "vit:728"]) == {"gpt2": [2742, 3330], "vit": [728]}
    found = list(script["points"]("gpt2", "ours", [0.9], [], [3330, 2742]))
    assert [(one.system, one.setting) for one in found] == [
        ("optfuse", None),
        ("optfuse-capped", 3330),
        ("optfuse-capped", 2742),
        ("optfuse-capped-gradients", 2742),
    ]
    assert [script["cap_of"](one, None) for one in found] == [None, 3330 << 20, 2742 << 20, 2742 << 20]
    for text, said in (("gpt3:1", "gpt2, bert"), ("gpt2", "in MiB"), ("gpt2:1,x", "in MiB"), ("gpt2:-1", "above 0")):
        with pytest.raises(ValueError, match=said):
            script["caps_of"]([text])


def test_a_checkpointed_layer_keeps_its_inputs_alone() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "fronts.py"))

    def saved_bytes(model: torch.nn.Module) -> int:
        kept: list[int] = []
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.nbytes) or x, lambda x: x)
        with hooks:
            model(torch.ones(64, 8, requires_grad=True))
        return sum(kept)

    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()) for _ in range(2)))
    before = saved_bytes(model)
    script["checkpoint_layers"](model[0], "Linear")
    assert saved_bytes(model) < before
    with pytest.raises(ValueError, match="no layer of class Conv2d"):
        script["checkpoint_layers"](model, "Conv2d")


def test_library_calls_are_counted_by_model_and_graph() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "library_calls.py"))
    found: dict[str, Any] = {"aten.sort.default": script["Calls"](), "aten.mm.default": script["Calls"]()}
    found["aten.sort.default"].ps["one"] = 3_000_000
    found["aten.mm.default"].ps |= {"one": 4_000_000, "two": 5_000_000}
    found["aten.mm.default"].count["backward"] = 2
    assert script["table"](found)[2:] == [
        "| `aten::mm` | 0 | 0 | 2 | 9 | two 5, one 4 |",
        "| `aten::sort` | 0 | 0 | 0 | 3 | one 3 |",
    ]
    calls: dict[str, Any] = {}
    graphs = script["graphs_of"](script["load_model_file"](str(ROOT / "models" / "mlp.py")), "small")
    assert list(graphs) == list(script["PARTS"])
    for part, graph in graphs.items():
        script["add_calls"](calls, "mlp", part, graph, "h200")
    assert {"aten.mm.default", "aten.addmm.default"} <= set(calls)
    assert all(of.total > 0 and sum(of.count.values()) for of in calls.values())


class _TracedOtherwise(torch.nn.Module):
    """Doubles its input, or triples it while it is traced; the second layer's result is not compared."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.first(x)
        return y * (3 if torch.compiler.is_compiling() else 2), self.second(y)


def test_a_model_that_is_traced_otherwise_is_compared_with_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = runpy.run_path(str(ROOT / "benchmarks" / "foreign.py"))
    model, inputs = _TracedOtherwise(), {"x": torch.ones(2, 4)}
    exact = script["Task"]("hf:m", numbers="float32")
    model.bfloat16()
    reference = script["results"](model.float(), inputs, exact)
    model.bfloat16()

    def traced() -> list[torch.Tensor]:
        return script["traced"](model, inputs, exact)

    far = script["errors"]("optfuse", [x * 1.5 for x in reference], reference, traced)
    assert far["optfuse_error"] < 1e-6
    assert far["traced_apart"] == pytest.approx(0.5)
    assert script["errors"]("optfuse", [x * 7 for x in reference], reference, traced)["optfuse_error"] > 1
    assert script["errors"]("optfuse", reference, reference, lambda: [0][1]) == {
        "traced_failed": "IndexError('list index out of range')"
    }
    assert next(model.parameters()).dtype is torch.bfloat16
    row = {"model": "m", "train": False, "graphs": [], **far}
    assert "what is traced is 5.0e-01 from eager execution" in script["line"](row)


def test_errors_are_told_from_float64_where_float32_is_far_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that float32 loses: 1 beside 2 ** 30."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = runpy.run_path(str(ROOT / "benchmarks" / "foreign.py"))

    class Lost(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 2**30 - 2**30

    model, task = Lost(4, 4).bfloat16(), script["Task"]("hf:m")
    inputs = {"0": torch.ones(2, 4, dtype=torch.bfloat16)}
    exact = script["results"](model.double(), {"0": torch.ones(2, 4, dtype=torch.float64)}, task)
    single = script["results"](model.float(), {"0": torch.ones(2, 4)}, task)
    model.bfloat16()
    told = script["from_float64"]({"float32": single, "optfuse": exact}, model, inputs, task)
    assert told["from_float64"].keys() == {"float32", "optfuse"}
    assert told["from_float64"]["optfuse"] == 0
    assert told["from_float64"]["float32"] > 0.1
    assert next(model.parameters()).dtype is torch.bfloat16
    assert "float32 is far from float64 (float32" in script["line"]({"model": "m", "train": 0, "graphs": [], **told})


def test_gradients_that_only_a_trace_has_are_compared_with_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = runpy.run_path(str(ROOT / "benchmarks" / "foreign.py"))
    model, inputs = _TracedOtherwise(), {"x": torch.ones(2, 4)}
    task = script["Task"]("hf:m", train=True, numbers="float32")
    eager = script["results"](model, inputs, task)
    traced = script["results"](torch.compile(model, backend="aot_eager"), inputs, task)
    assert [x.shape for x in eager] == [x.shape for x in traced] == [p.shape for p in model.parameters()]
    assert [bool(x.any()) for x in eager] == [bool(x.any()) for x in traced] == [True, True, False, False]


def test_models_of_other_packages_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    packages = import_module("foreign_packages").PACKAGES
    models = import_module("foreign_models")
    assert len(packages) > 25
    assert not {*models.ALL, *models.ALL_MORE} & {*packages}
    assert {name.partition(":")[0] for name in packages}.isdisjoint({"hf", "timm", "tv"})
    linear = lambda asked: (torch.nn.Linear(asked.length, 1), {"0": torch.ones(asked.batch, 4)})  # noqa: E731
    monkeypatch.setitem(packages, "one:linear", linear)
    model, inputs = models.made("one:linear", 2, 3, 4)
    assert model(inputs["0"]).shape == (3, 1)
