"""What the allocator hands out: predicted for a plan, and counted while the emitted program runs."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import optfuse
from optfuse.api import Schedule, TrainingSchedule
from optfuse.runtime.environment import mode
from optfuse.runtime.program import Program
from optfuse.schedule.emit import Memory, emit, held
from tests.oracle.judging import OPTIONS
from tests.oracle.live_bytes import LiveBytes

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


class Images(torch.nn.Module):
    """Large products first, then convolutions, whose results a library allocates, with sums and norms between them."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(16, 256), torch.nn.Linear(256, 16)
        channels = (8, 32, 32)
        self.convolutions = torch.nn.ModuleList(torch.nn.Conv2d(n, 32, 3, padding=1, bias=False) for n in channels)
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(32) for _ in channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.narrow(F.gelu(self.wide(x)))
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.relu(norm(convolution(x)))
        return F.softmax(x.mean((2, 3)), -1)


X = torch.randn(4, 8, 16, 16)


@pytest.fixture(scope="module")
def inference() -> Schedule:
    made = optfuse.optimize(Images().eval(), (X,), options=OPTIONS)
    assert isinstance(made, Schedule)
    return made


@pytest.fixture(scope="module")
def training() -> TrainingSchedule:
    made = optfuse.optimize(Images().train(), (X,), train=True, options=OPTIONS)
    assert isinstance(made, TrainingSchedule)
    return made


def counted(schedule: Schedule, memory: Memory) -> int:
    """The most bytes that lived during a call, of the program's own and its inputs."""
    program = Program(emit(schedule.extraction, schedule.result, memory), schedule.interface.constants)
    program.module.launch = lambda *_: None
    inputs = [torch.zeros(x.shape, dtype=x.dtype).as_strided(x.shape, x.stride) for x in program.inputs]
    constants = dict(schedule.interface.constants)
    donated = {buffer.name for buffer in schedule.instance.buffers if buffer.donated}
    kept = [x for x, expected in zip(inputs, program.inputs, strict=True) if expected.name not in donated]
    with LiveBytes(*inputs, *constants.values()) as bytes_:
        program.module.call(inputs, constants)
    del kept
    return bytes_.peak


@pytest.mark.parametrize("memory", ["arena", "apart"])
def test_a_program_takes_as_much_as_was_predicted(
    inference: Schedule, training: TrainingSchedule, memory: Memory
) -> None:
    for schedule in (inference, *training):
        predicted = held(schedule.extraction, schedule.solution, memory).peak_bytes
        small = 2 * 512 * len(schedule.instance.buffers)  # inputs are not rounded in the prediction
        assert predicted <= counted(schedule, memory) <= predicted + small, schedule.name


def test_apart_takes_less_where_libraries_allocate(inference: Schedule) -> None:
    arena, apart, least = (held(inference.extraction, inference.solution, way) for way in ("arena", "apart", "least"))
    assert apart.peak_bytes < 0.9 * arena.peak_bytes
    assert least == apart
    assert len(apart.heirs) >= 3


def test_a_backward_graph_frees_what_was_saved_as_it_goes(
    training: TrainingSchedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down to the program no caller holds on to the tensors that the forward graph has kept.

    Kernels do not run: Triton's interpreter leaves what it was given to the collector.
    """
    execute, shares = Program.execute, []

    def watched(program: Program, given: list[torch.Tensor], *more: Any) -> Any:
        monkeypatch.setattr(program.module, "launch", lambda *_: None)
        storages = [weakref.ref(x.untyped_storage()) for x in given]
        outputs = execute(program, given, *more)
        shares.append(sum(storage() is not None for storage in storages) / len(storages))
        return outputs

    monkeypatch.setattr(Program, "execute", watched)
    step = training.compile(cudagraphs=False)
    step(X).sum().backward()
    forward, backward = shares
    assert forward == 1  # the model's and the caller's
    assert backward < 0.75  # parameters stay
