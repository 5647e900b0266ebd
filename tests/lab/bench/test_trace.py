"""Reading a profile: work in the order of its launches, by operator; and a schedule's steps found in it."""

from __future__ import annotations

import json
from typing import Any

from optfuse.lab.bench.kernels import Step, kernel_record, measure_steps, operator_name
from optfuse.lab.bench.trace import RUN, Trace, read_trace
from optfuse.problem.cost import Price


class Profile:
    """A Chrome trace of some calls: a Triton kernel, a product of two kernels, a second product in another thread."""

    def __init__(self, runs: int = 2) -> None:
        self.events: list[dict[str, Any]] = []
        for run in range(runs):
            start = 1000 * run
            self.add("user_annotation", f"{RUN}{run}", start, 900)
            self.launch(start + 1, start + 10, "k0_add", start + 20, 30 + run)
            self.add("cpu_op", "aten::mm", start + 30, 40)
            self.add("cpu_op", "aten::empty", start + 31, 2)
            self.launch(start + 2, start + 40, "nvjet", start + 60, 100)
            self.launch(start + 3, start + 50, "splitk", start + 150, 20)
            self.add("cpu_op", "autograd::engine::evaluate_function: Net", start + 99, 402, tid=2)
            self.add("cpu_op", "aten::ones_like", start + 100, 8, tid=2)
            self.launch(start + 4, start + 103, "fill", start + 171, 1, tid=2)
            self.launch(start + 5, start + 110, "k1_mul", start + 175, 30, tid=2)
            self.add("cpu_op", "aten::mm", start + 130, 40, tid=2)
            self.launch(start + 6, start + 140, "nvjet", start + 210, 50, tid=2)

    def add(self, cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> None:
        self.events.append({"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args})

    def launch(self, number: int, ts: float, kernel: str, start: float, us: float, tid: int = 1) -> None:
        self.add("cuda_runtime", "cudaLaunchKernel", ts, 5, tid, correlation=number)
        self.add("kernel", kernel, start, us, 7, correlation=number)

    def read(self, runs: int = 2) -> Trace:
        return read_trace(json.dumps({"traceEvents": [{"ph": "M"}, *self.events]}), runs)


def step(function: str, position: int, *, triton: bool) -> Step:
    price = Price(2_000_000, 10_000_000, 1_000_000, 3000, 1000)
    return Step("net.forward", position, function, triton, ("a", "b"), "rows", 4, 8, price)


STEPS = (
    step("k0_add", 0, triton=True),
    step("aten::mm", 1, triton=False),
    step("aten::view_like", 2, triton=False),
    step("k1_mul", 3, triton=True),
    step("aten::mm", 4, triton=False),
)


def test_work_comes_in_the_order_of_its_launches_with_its_operator() -> None:
    run = Profile().read().runs[0]
    assert [(item.name, item.us) for item in run.work] == [
        ("k0_add", 30), ("nvjet", 100), ("splitk", 20), ("fill", 1), ("k1_mul", 30), ("nvjet", 50)
    ]  # fmt: skip
    assert run.ops == ("aten::mm", "aten::ones_like", "aten::mm")
    assert [item.op for item in run.work] == [-1, 0, 0, 1, -1, 2]


def test_overlapping_work_is_busy_once() -> None:
    run = Profile().read().runs[0]
    assert run.busy_us == 30 + (170 - 60) + 1 + 30 + 50
    assert run.us_of(lambda name: name.startswith("k")) == 60


def test_kernels_by_name_are_those_of_one_call() -> None:
    assert Profile().read().by_name()[0] == ("nvjet", 2, 150)


def test_a_schedules_steps_are_found() -> None:
    measured, fault = measure_steps(STEPS, Profile().read())
    assert not fault
    assert [(item.us, item.launches) for item in measured] == [(30.5, 1), (120, 2), (0, 0), (30, 1), (50, 1)]
    assert measured[1].names == ("nvjet", "splitk")


def test_a_function_of_several_operators_has_them_up_to_the_next_step() -> None:
    steps = (STEPS[0], step("optfuse::attention", 1, triton=False), STEPS[3], STEPS[4])
    measured, fault = measure_steps(steps, Profile().read())
    assert not fault
    assert [(item.us, item.launches) for item in measured] == [(30.5, 1), (121, 3), (30, 1), (50, 1)]


def test_a_profile_of_something_else_is_said() -> None:
    swapped = (STEPS[3], STEPS[1], STEPS[0])
    measured, fault = measure_steps(swapped, Profile().read())
    assert not measured
    assert "k0_add where step 0 of 3 is k1_mul" in fault
    assert measure_steps(STEPS, Trace(()))[1]


def test_a_record_compares_with_a_copy_of_the_same_bytes() -> None:
    measured, _ = measure_steps(STEPS, Profile().read())
    record = kernel_record("net", measured[0], copy_us=20.0, peak=4e12)
    assert record["predicted_us"] == 12.0, "with the launch"
    assert record["copy_ratio"] == 30.5 / 20
    assert record["gb_per_s"] == 4000 / 30.5e-6 / 1e9


def test_operators_are_named_as_in_a_profile() -> None:
    assert operator_name("aten.mm.default") == "aten::mm"
    assert operator_name("torchvision.nms.default") == "torchvision::nms"
