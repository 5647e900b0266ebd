"""Checks of single steps and of replays: clean where all is right, and faults are found where they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import optfuse
from optfuse.api import Schedule, TrainingSchedule
from optfuse.errors import InvalidOptionError, PlanError
from optfuse.runtime import recording
from optfuse.runtime.check.check import StepReport
from optfuse.schedule.emit import step_ops

OPTIONS = optfuse.SolveOptions(time_limit=5, workers=1)


class Net(torch.nn.Module):
    """Kernels between library calls, dropout, a buffer that is written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(17, 24), torch.nn.Linear(24, 24)
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.count += 1
        y = torch.softmax(torch.nn.functional.gelu(self.first(x)), -1)
        y = torch.nn.functional.dropout(self.second(y)[places], 0.5, self.training)
        return (y * y).mean(), y.argmax(-1)


def given() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 17, generator=generator), torch.tensor([4, 0, 0, 2])


@pytest.fixture(scope="module")
def inference() -> Schedule:
    torch.manual_seed(0)
    return optfuse.optimize(Net().eval(), given(), options=OPTIONS, name="net")  # type: ignore[return-value]


@pytest.fixture(scope="module")
def training() -> TrainingSchedule:
    torch.manual_seed(0)
    return optfuse.optimize(Net(), given(), train=True, options=OPTIONS, name="net")  # type: ignore[return-value]


def spoilt(schedule: Schedule, old: str, new: str) -> Schedule:
    """The schedule with another text in one place of its kernels."""
    assert schedule.source.count(old) == 1
    return replace(schedule, source=schedule.source.replace(old, new))


def only_failure(report: StepReport) -> Any:
    ((_, check),) = report.failed
    assert not report.passed
    assert report.table().splitlines()[1].endswith("; ".join(check.faults))
    return check


@pytest.mark.spread(2, 1)
@pytest.mark.parametrize("placement", ["apart", "planned"])
def test_a_sound_schedule_is_clean(inference: Schedule, placement: Any) -> None:
    report = optfuse.check_steps(inference, given(), placement=placement)
    assert report.passed, report.table()
    ((name, checks),) = report.graphs
    assert name == inference.name
    assert len(checks) == len(step_ops(inference.solution))
    assert str(report) == f"{len(checks)} of {len(checks)} steps are right"


@pytest.mark.spread(2, 1)
@pytest.mark.parametrize("placement", ["apart", "planned"])
def test_both_graphs_of_a_training_step_are_checked(training: TrainingSchedule, placement: Any) -> None:
    report = optfuse.check_steps(training, placement=placement)
    assert report.passed, report.table()
    assert [name for name, _ in report.graphs] == ["net.forward", "net.backward"]
    assert {check.kind for _, checks in report.graphs for check in checks} == {"kernel", "library"}


def test_bfloat16_is_judged_by_its_roundings() -> None:
    model, (x, places) = Net().eval().bfloat16(), given()
    schedule = optfuse.optimize(model, (x.bfloat16(), places), options=OPTIONS, name="net")
    report = optfuse.check_steps(schedule, (x.bfloat16(), places))
    assert report.passed, report.table()


def test_a_wrong_constant_is_found_in_its_kernel(inference: Schedule) -> None:
    constant = "0.70710678"
    line = next(line for line in inference.source.splitlines() if constant in line)
    digits = constant + line.split(constant)[1].split(")")[0].split(" ")[0].split(",")[0]
    check = only_failure(optfuse.check_steps(spoilt(inference, digits, "0.7072"), given()))
    assert check.kind == "kernel"
    assert "erf" in check.ops, "the kernel of gelu"
    assert check.judgement.error > check.judgement.limit
    assert "above" in check.faults[0]


LAUNCH = '        kernel[row["grid"](**row["interpret"])](*pointers, **row["interpret"])\n'


def test_a_write_beyond_a_buffer_is_found(inference: Schedule) -> None:
    beyond = """
        whole = pointers[-1].untyped_storage()
        end = (pointers[-1].storage_offset() + pointers[-1].numel()) * pointers[-1].element_size()
        if whole.nbytes() > end + 4:
            whole[end] = 7
"""
    report = optfuse.check_steps(spoilt(inference, LAUNCH, LAUNCH + beyond), given())
    assert any("memory beyond" in fault for _, check in report.failed for fault in check.faults), report.table()
    assert all(check.kind == "kernel" for _, check in report.failed)


def test_a_value_that_is_still_needed_may_not_change(inference: Schedule) -> None:
    """A kernel that scribbles over what it reads: the weights, here."""
    spoil = LAUNCH + "        pointers[0].view(-1)[:1].add_(1)\n"
    report = optfuse.check_steps(spoilt(inference, LAUNCH, spoil), given())
    assert any("was changed, which it does not write" in fault for _, check in report.failed for fault in check.faults)


def test_elements_that_nobody_writes_are_found(inference: Schedule) -> None:
    report = optfuse.check_steps(spoilt(inference, LAUNCH, ""), given())
    assert any("nan or infinite" in fault for _, check in report.failed for fault in check.faults)


def test_replays_compute_what_the_program_does(inference: Schedule) -> None:
    checks = optfuse.check_replays(inference, given())
    assert [check.replayed for check in checks] == [False, True, True, True]
    assert all(check.passed for check in checks), checks


def test_replays_of_a_training_step(training: TrainingSchedule) -> None:
    checks = optfuse.check_replays(training)
    assert {check.name for check in checks} == {"net.forward", "net.backward"}
    assert all(check.passed for check in checks), checks
    assert sum(check.replayed for check in checks) == 6


def test_a_wrong_input_handed_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that lie in one storage, and differ in nothing else."""

    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weights = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(0))
            self.a, self.b = torch.nn.Parameter(weights[0]), torch.nn.Parameter(weights[1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x @ self.a) @ self.b

    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    schedule = optfuse.optimize(Shared(), (x,), train=True, options=OPTIONS, name="shared")
    assert all(check.passed for check in optfuse.check_replays(schedule))

    def first_of_storage(value: Any, fed: Any) -> tuple[int | None, int]:
        same = [
            k
            for k, one in enumerate(fed)
            if isinstance(value, torch.Tensor)
            and one.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
        ]
        return (same[0], 0) if same else (None, 0)

    monkeypatch.setattr(recording, "handed_on", first_of_storage)
    wrong = [check for check in optfuse.check_replays(schedule) if not check.passed]
    assert wrong
    assert all(check.replayed for check in wrong)


def test_what_cannot_be_checked_is_refused(inference: Schedule, training: TrainingSchedule) -> None:
    with pytest.raises(InvalidOptionError, match="give the arguments"):
        optfuse.check_steps(inference)
    with pytest.raises(InvalidOptionError, match="placement"):
        optfuse.check_steps(inference, given(), placement="here")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="half of a training step"):
        optfuse.check_steps(training.forward, given())
