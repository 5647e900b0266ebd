"""Which programs get CUDA graphs, on a simulated host and device: steps that wait, that do not, and that are mixed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

import pytest

from optfuse.runtime.clocks import Mark, Slowing
from optfuse.runtime.pace import AGAIN, SLOWED, UNDECIDED, Pace, Verdict

#: Launches that a device takes before the host must wait.
QUEUE = 1000
#: What a replay takes the host, and what a recording does.
REPLAY_US, RECORDING_US = 60.0, 50_000.0


@dataclass
class Machine:
    """A host's clock, and a device that works off what is queued."""

    us: float = 0.0
    free: float = 0.0
    ends: deque[float] = field(default_factory=deque)

    def now(self) -> float:
        return self.us

    def wait_until(self, us: float) -> None:
        self.us = max(self.us, us)

    def launch(self, host_us: float, device_us: float) -> None:
        self.us += host_us
        if len(self.ends) == QUEUE:
            self.us = max(self.us, self.ends.popleft())
        self.free = max(self.us, self.free) + device_us
        self.ends.append(self.free)

    def synchronize(self) -> None:
        self.us = max(self.us, self.free) + 15
        self.ends.clear()

    def mark(self) -> Mark:
        return Point(self, max(self.us, self.free))


@dataclass
class Point:
    machine: Machine
    at: float

    def reached(self) -> bool:
        return self.machine.us >= self.at

    def wait(self) -> None:
        raise AssertionError("nothing here waits for the device")

    def us_since(self, earlier: Mark) -> float | None:
        assert isinstance(earlier, Point)
        return self.at - earlier.at


@dataclass
class Program:
    """Kernels of (host's, device's) microseconds. With a graph, copies take the device so much longer."""

    pace: Pace
    machine: Machine
    kernels: list[tuple[float, float]]
    copies_us: float = 0.0
    is_priced: bool = True
    number: int = 0
    calls: int = 0
    is_recorded: bool = False
    recordings: int = 0
    verdict: Verdict = "open"
    caller: int = 0

    def __post_init__(self) -> None:
        self.number = self.pace.add(sum(device for _, device in self.kernels))

    def __call__(self) -> None:
        self.calls += 1
        is_asked = self.verdict not in ("plain", "graphs") or self.pace.asks_again(self.number)
        if is_asked:
            self.is_recorded &= self.verdict != "plain"
            self.verdict = "open" if self.calls == 1 else self.pace.enter(self.number, self.machine.mark, self.caller)
        if self.verdict in ("trial", "graphs"):
            if not self.is_recorded:
                self.pace.disturb(is_again=self.recordings > 1)
                self.recordings += 1
                self.machine.synchronize()
                self.machine.us += RECORDING_US
            self.is_recorded = True
            self.machine.launch(REPLAY_US, self.copies_us + sum(device for _, device in self.kernels))
            return
        slowing = self.pace.slowing(self.number) if self.verdict == "open" and self.calls > 1 else None
        start = self.machine.us
        for host, device in self.kernels:
            self.machine.launch(host, device)
            if slowing is not None:
                slowing.wait()
        if self.verdict == "open" and self.calls > 1:
            spent = 0.0 if slowing is None else slowing.spent
            copied = int(1e6 * self.copies_us) if self.is_priced else 0
            self.pace.leave(self.number, self.machine.us - start - spent, spent, copied)


@dataclass
class Loop:
    """Programs that run in turn, with work of others between and after them, (host's, device's) microseconds."""

    parts: list[tuple[list[tuple[float, float]], float]]
    between: tuple[float, float] = (20.0, 0.0)
    after: tuple[float, float] = (300.0, 0.0)
    waits: bool = True
    is_priced: bool = True
    machine: Machine = field(default_factory=Machine)

    def __post_init__(self) -> None:
        pace = Pace(clock=self.machine)
        self.programs = [Program(pace, self.machine, kernels, copies, self.is_priced) for kernels, copies in self.parts]

    def run(self, steps: int) -> float:
        """Microseconds a step."""
        self.machine.synchronize()
        start = self.machine.us
        for _ in range(steps):
            for program in self.programs:
                program()
                self.machine.launch(*self.between)
            self.machine.launch(*self.after)
            if self.waits:
                self.machine.synchronize()
        self.machine.synchronize()
        return (self.machine.us - start) / steps

    @property
    def verdicts(self) -> set[Verdict]:
        return {program.verdict for program in self.programs}


def alike(count: int, host_us: float, device_us: float) -> list[tuple[float, float]]:
    return [(host_us, device_us)] * count


def ddp(**how: object) -> Loop:
    """Eighteen graphs and their backward ones; the device runs dry in the first alone. Each copies what it hands on."""
    forward = [(alike(20, 8, 25), 40.0)] * 18
    backward = [(alike(30, 9, 33), 60.0)] * 18
    return Loop(forward + backward, between=(60, 5), after=(1500, 1200), **how)  # type: ignore[arg-type]


def ddp_with_small_kernels(**how: object) -> Loop:
    """The same, launched so slowly that the device runs dry here and there: copies take what is gained."""
    first = [(alike(30, 10, 8), 150.0)] * 6
    forward = [(alike(20, 10, 25), 150.0)] * 12
    backward = [(alike(30, 10, 33), 160.0)] * 18
    return Loop(first + forward + backward, between=(60, 5), after=(1500, 1200), **how)  # type: ignore[arg-type]


def swin(**how: object) -> Loop:
    """A training step that the host launches in 10.7 ms and the device works off in 8.8."""
    late_stages = alike(60, 12, 26) + alike(190, 12, 6)
    backward = alike(240, 12, 7) + alike(160, 12, 24)
    return Loop([(late_stages, 20.0), (backward, 30.0)], between=(150, 30), after=(2400, 500), **how)  # type: ignore[arg-type]


def u_net(**how: object) -> Loop:
    """Large kernels, small ones, and large ones again: the device is behind when the call returns."""
    return Loop([(alike(20, 8, 40) + alike(500, 8, 2) + alike(40, 8, 60), 5.0)], **how)  # type: ignore[arg-type]


def large_step(**how: object) -> Loop:
    """Forward and backward of a large transformer with its optimizer."""
    parts = [(alike(90, 9, 40), 400.0), (alike(180, 9, 44), 800.0)]
    return Loop(parts, between=(300, 600), after=(900, 700), **how)  # type: ignore[arg-type]


def unrolled_cells(**how: object) -> Loop:
    return Loop([(alike(900, 7, 2), 4.0), (alike(1600, 7, 2), 8.0)], after=(700, 100), **how)  # type: ignore[arg-type]


def small_model(**how: object) -> Loop:
    return Loop([(alike(100, 8, 3), 2.0)], **how)  # type: ignore[arg-type]


def five_graphs(device_us: float, **how: object) -> Loop:
    return Loop([(alike(40, 8, device_us), 5.0)] * 5, between=(120, 3), **how)  # type: ignore[arg-type]


GAINING: list[Callable[..., Loop]] = [swin, u_net, unrolled_cells, small_model, lambda **how: five_graphs(2, **how)]
LOSING: list[Callable[..., Loop]] = [
    ddp,
    ddp_with_small_kernels,
    large_step,
    lambda **how: five_graphs(90, **how),
    lambda **how: Loop([(alike(100, 8, 40), 2.0)], **how),
]


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("make", GAINING)
def test_steps_that_wait_for_the_host_use_graphs(make: Callable[..., Loop], waits: bool) -> None:
    loop = make(waits=waits)
    plain = Loop.run(without(make(waits=waits)), 30)
    for _ in range(4):
        loop.run(10)
    assert loop.verdicts == {"graphs"}
    assert loop.run(20) < 0.96 * plain


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("make", LOSING)
def test_steps_whose_host_is_hidden_record_nothing(make: Callable[..., Loop], waits: bool) -> None:
    loop = make(waits=waits)
    loop.run(40)
    assert loop.verdicts == {"plain"}
    assert not any(program.is_recorded for program in loop.programs)
    assert "a graph would save no time" in loop.programs[0].pace.reason(0)


def without(loop: Loop) -> Loop:
    """The loop with programs that are decided to run plainly."""
    for program in loop.programs:
        program.pace = Pace(clock=loop.machine)
        program.number = program.pace.add(1e12)
    return loop


def test_deciding_costs_little() -> None:
    """Slowed rounds, and no more than a dozen of them."""
    loop = large_step(waits=True)
    plain = without(large_step(waits=True)).run(20)
    assert loop.run(20) < 1.1 * plain


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("device_us", "verdict"), [(2, "graphs"), (40, "plain")])
def test_steps_that_differ_are_measured_for_longer(seed: int, device_us: float, verdict: Verdict) -> None:
    """A loader of data takes up to 0.8 ms more in some steps, where launches take 3.2."""
    random = Random(seed)
    loop = Loop([(alike(400, 8, device_us), 2.0)])
    for _ in range(60):
        loop.machine.us += random.uniform(0, 800)
        loop.run(1)
    assert loop.verdicts == {verdict}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("device_us", "verdict"), [(25, "graphs"), (90, "plain")])
def test_steps_that_differ_by_more_than_slowing_try_graphs(seed: int, device_us: float, verdict: Verdict) -> None:
    """Another rank comes up to 15 ms late in some steps, where launches take 15 and slowing adds 4.5."""
    random = Random(seed)
    loop = Loop([(alike(440, 34, device_us), 5000.0)], after=(12_000, 2_000))
    for _ in range(40):
        loop.machine.us += random.uniform(0, 15_000)
        loop.run(1)
    assert loop.verdicts == {verdict}


def test_graphs_that_are_recorded_again_and_again_go() -> None:
    """Inputs that move: no row of rounds is without a recording."""
    loop = Loop([(alike(100, 8, 3), 2.0)] * 2)
    for _ in range(60):
        loop.run(1)
        loop.programs[0].is_recorded = False
    assert loop.verdicts == {"plain"}
    assert "inputs move" in loop.programs[0].pace.reason(0)


def test_graphs_that_gain_nothing_go() -> None:
    """Unforeseen copies take more than is gained."""
    loop = Loop([(alike(100, 8, 3), 2000.0)], is_priced=False)
    loop.run(40)
    assert loop.programs[0].is_recorded
    assert loop.verdicts == {"plain"}
    assert "graphs gained nothing" in loop.programs[0].pace.reason(0)


def test_graphs_that_gain_on_slow_first_steps_alone_go() -> None:
    """Ten steps take half a millisecond more; a graph's unforeseen copies take more than it gains later."""
    loop = Loop([(alike(100, 8, 3), 900.0)], is_priced=False)
    for k in range(40):
        loop.machine.us += 500 if k < 10 else 0
        loop.run(1)
    assert loop.programs[0].is_recorded
    assert loop.verdicts == {"plain"}


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("make", [unrolled_cells, small_model, lambda **how: five_graphs(2, **how)])
def test_steps_that_wait_for_the_host_most_of_the_time_use_graphs_at_once(
    make: Callable[..., Loop], waits: bool
) -> None:
    loop = make(waits=waits)
    plain = Loop.run(without(make(waits=waits)), 30)
    loop.run(6)
    assert loop.run(20) < 0.6 * plain
    assert loop.verdicts == {"graphs"}


def test_graphs_that_gain_much_on_slow_first_steps_alone_go_later() -> None:
    loop = Loop([(alike(100, 8, 3), 900.0)], is_priced=False)
    for k in range(12):
        loop.machine.us += 1_500 if k < 6 else 0
        loop.run(1)
    assert loop.verdicts == {"graphs"}
    loop.run(AGAIN[0] + 30)
    assert loop.verdicts == {"plain"}


def test_graphs_that_gain_while_a_process_starts_go_later() -> None:
    """Launches take four times as long in the first hundred steps; later the device hides them, but not the copies."""
    loop = Loop([(alike(2, 40, 75), 20.0)], after=(5, 0), waits=False)
    (program,) = loop.programs
    program.kernels = alike(2, 160, 75)
    loop.run(100)
    assert loop.verdicts == {"graphs"}
    program.kernels = alike(2, 40, 75)
    loop.run(3 * AGAIN[0] + 100)
    assert loop.verdicts == {"plain"}


def test_graphs_are_measured_again_a_few_times() -> None:
    """Some steps without them, and in the end none."""
    loop = small_model()
    for calls in AGAIN:
        loop.run(calls + 60)
        assert loop.verdicts == {"graphs"}
    (program,) = loop.programs
    assert not any(program.pace.asks_again(program.number) for _ in range(2 * max(AGAIN)))


def test_graphs_that_cannot_be_checked_again_are_kept() -> None:
    loop = swin()
    pace = loop.programs[0].pace
    while loop.verdicts != {"recheck"}:
        loop.run(1)
    pace.keep_unchecked()
    loop.run(1)
    assert loop.verdicts == {"graphs"}


@pytest.mark.parametrize("reached", ["trial", "recheck"])
def test_programs_that_go_on_alone_keep_their_graphs(reached: Verdict) -> None:
    """There are no rounds of them alone to compare with."""
    loop = swin()
    while loop.verdicts != {reached}:
        loop.run(1)
    loop.programs = loop.programs[:1]
    loop.run(4 * UNDECIDED)
    assert loop.verdicts == {"graphs"}


def test_programs_of_a_step_decide_together() -> None:
    """A slow half alone would not be worth graphs; together with the fast half it is, and the other way around."""
    both = Loop([(alike(200, 8, 2), 2.0), (alike(20, 8, 20), 2.0)])
    both.run(40)
    assert both.verdicts == {"graphs"}
    hidden = Loop([(alike(20, 8, 200), 2.0), (alike(200, 8, 2), 2.0)])
    hidden.run(40)
    assert hidden.verdicts == {"plain"}, "what the second one launches is behind the first one's work"


def test_a_program_that_is_called_many_times_in_a_step_is_a_round_of_its_own() -> None:
    machine = Machine()
    pace = Pace(clock=machine)
    cell, head = Program(pace, machine, alike(40, 8, 2)), Program(pace, machine, alike(40, 8, 2))
    for _ in range(20):
        for _ in range(12):
            cell()
        head()
        machine.synchronize()
    assert (cell.verdict, head.verdict) == ("graphs", "plain"), "the head is launched while cells still run"


@pytest.mark.parametrize(("device_us", "verdict"), [(2, "graphs"), (90, "plain")])
def test_layers_that_share_a_program_make_one_round(device_us: float, verdict: Verdict) -> None:
    machine = Machine()
    pace = Pace(clock=machine)
    layer = Program(pace, machine, alike(40, 8, device_us))
    for _ in range(24):
        for layer.caller in range(1, 9):
            layer()
        machine.synchronize()
    assert layer.verdict == verdict
    assert {len(key) for key in pace._times} == {8}  # noqa: SLF001 - which rounds are compared cannot be seen otherwise


def test_layers_of_which_each_step_calls_others_are_rounds_of_their_own_in_the_end() -> None:
    machine, random = Machine(), Random(0)
    pace = Pace(clock=machine)
    expert = Program(pace, machine, alike(40, 8, 2))
    for _ in range(60):
        for expert.caller in random.sample(range(1, 17), random.randint(1, 8)):
            expert()
        machine.synchronize()
    assert expert.verdict == "graphs"


@pytest.mark.spread(6, 2)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("device_us", "verdict"), [(2, "graphs"), (20, "plain")])
def test_steps_that_leave_out_layers_at_random_decide_call_by_call(
    device_us: float, verdict: Verdict, seed: int
) -> None:
    """Layers of two kinds, forward and backward, of which a fifth are left out, and experts by the number."""
    machine, random = Machine(), Random(seed)
    pace = Pace(clock=machine)
    names = ("attention", "dense", "expert", "attention's backward", "dense's backward", "expert's backward")
    programs = {name: Program(pace, machine, alike(12, 8, device_us)) for name in names}

    def call(name: str, caller: int) -> None:
        programs[name].caller = caller
        programs[name]()
        machine.launch(30, 10)

    for _ in range(120):
        layers = [layer for layer in range(8) if random.random() > 0.2]
        for layer in layers:
            call("attention", layer)
            for part in range(random.randint(4, 8)) if layer % 4 == 3 else (0,):
                call("expert" if layer % 4 == 3 else "dense", 100 * layer + part)
        for layer in reversed(layers):
            for part in range(5) if layer % 4 == 3 else (0,):
                call("expert's backward" if layer % 4 == 3 else "dense's backward", 100 * layer + part)
            call("attention's backward", layer)
        machine.launch(500, 800)
    assert {program.verdict for program in programs.values()} == {verdict}


def test_steps_that_are_never_alike_stay_plain() -> None:
    machine = Machine()
    pace = Pace(clock=machine)
    always = Program(pace, machine, alike(100, 8, 2))
    for _ in range(UNDECIDED + 2):
        others: Iterable[Program] = [Program(pace, machine, alike(1, 8, 2))]
        for program in (always, *others):
            program()
            program()
    assert always.verdict != "trial"


def test_a_slowed_call_takes_its_share_longer() -> None:
    machine = Machine()
    slowing, start = Slowing(SLOWED, machine), machine.us
    launch = slowing.after(lambda: machine.launch(10, 0))
    for _ in range(10):
        launch()
    machine.us += 50
    slowing.wait()
    assert machine.us - start == pytest.approx(150 * (1 + SLOWED))
    assert slowing.spent == pytest.approx(150 * SLOWED)


@pytest.mark.parametrize("make", [make for make in GAINING if make is not unrolled_cells])  # which fill the queue
def test_steps_whose_host_is_hidden_at_first_use_graphs_later(make: Callable[..., Loop]) -> None:
    loop, after = make(waits=False), make().after
    loop.after = (after[0], 500_000.0)  # others keep the device busy
    loop.run(60)
    assert loop.verdicts == {"plain"}
    loop.after = after
    loop.run(AGAIN[0] // 2)
    assert loop.verdicts == {"plain"}
    loop.run(AGAIN[0])
    assert loop.verdicts == {"graphs"}


@pytest.mark.spread(5, 4)
@pytest.mark.parametrize("make", LOSING)
def test_steps_that_gain_nothing_are_measured_a_few_times_more(make: Callable[..., Loop]) -> None:
    loop = make()
    loop.run(sum(AGAIN) + 100 * len(AGAIN))
    assert loop.verdicts == {"plain"}
    assert max(program.recordings for program in loop.programs) <= 1 + len(AGAIN)
    first = loop.programs[0]
    assert not any(first.pace.asks_again(first.number) for _ in range(2 * max(AGAIN)))


def test_a_program_that_withdraws_is_not_measured_again() -> None:
    loop = Loop([(alike(100, 8, 40), 2.0)])
    loop.run(60)
    (program,) = loop.programs
    program.pace.withdraw(program.number, "another rank has no graph")
    assert not any(program.pace.asks_again(program.number) for _ in range(2 * AGAIN[0]))
