"""Ranks that vote on CUDA graphs: all use them from the same call on, or none does; no rank waits for a vote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import distributed

from optfuse.runtime.arena import Arena
from optfuse.runtime.clocks import Mark
from optfuse.runtime.graph_agreement import EVERY, MOST_VOTES, Agreement, Opinion, agreement_on
from optfuse.runtime.graph_choice import Interest
from optfuse.runtime.graphs import GraphedProgram
from optfuse.runtime.pace import Pace
from optfuse.runtime.program import Program, Value
from optfuse.runtime.recorder import Step
from tests.runtime.test_graphs import BACKWARD, COPIED, FORWARD, LARGE, Outside, Tape

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch without torch.distributed")

YES: Opinion = (True, "")
NOT_YET: Opinion = (None, "")


class Rank:
    """One rank's side of the votes on a program whose every call meets the calls of all ranks."""

    def __init__(self, ranks: list[Rank], store: Any, lag: int, says: Callable[[str, int], Opinion]) -> None:
        self.ranks, self.lag, self.says, self.calls = ranks, lag, says, 0
        self.agreement = Agreement(store, {"program": 2})
        self.states: list[str] = []

    def call(self) -> None:
        self.calls += 1
        self.agreement.begin(lambda: self.says(self.agreement.state, self.calls))
        self.states.append(self.agreement.state)
        self.agreement.end(lambda: Met(self.ranks, self.calls + self.lag))


class Met:
    """The end of the collectives that all ranks have called so often."""

    def __init__(self, ranks: Sequence[Rank], calls: int) -> None:
        self.ranks, self.calls = ranks, calls

    def reached(self) -> bool:
        return all(rank.calls + rank.lag >= self.calls for rank in self.ranks)

    def us_since(self, earlier: Mark) -> float | None:
        return None

    def wait(self) -> None:
        assert self.reached(), "a vote waits for more than the program's own collectives"


def run(*says: Callable[[str, int], Opinion], ahead: int = 0, lag: int = 0, calls: int = 300) -> list[Rank]:
    """Ranks that call, the first one ``ahead`` by so many calls; the second one has begun ``lag`` calls late."""
    ranks: list[Rank] = []
    store = distributed.HashStore()
    ranks += [Rank(ranks, store, lag * (k > 0), opinion) for k, opinion in enumerate(says)]
    for _ in range(ahead + lag):
        ranks[0].call()
    for _ in range(calls):
        for rank in ranks:
            rank.call()
    return ranks


def ready(state: str, call: int) -> Opinion:
    return YES


@pytest.mark.parametrize("ahead", range(EVERY))
def test_all_go_on_at_the_same_call_when_the_last_one_is_ready(ahead: int) -> None:
    late = {"open": 21, "recording": 33, "trial": 61}
    first, second = run(ready, lambda state, call: YES if call >= late[state] else NOT_YET, ahead=ahead)
    calls = [first.states.index(state) + 1 for state in ("recording", "trial", "graphs")]
    assert calls == [22 + EVERY, 34 + EVERY, 62 + EVERY]
    common = min(first.calls, second.calls)
    assert first.states[:common] == second.states[:common]


@pytest.mark.parametrize("state", ["open", "recording", "trial"])
def test_one_that_says_no_takes_all_with_it(state: str) -> None:
    first, second = run(ready, lambda now, call: (False, "it does not fit") if now == state else YES, ahead=1)
    assert first.agreement.state == second.agreement.state == "plain"
    assert first.agreement.reason == second.agreement.reason == "it does not fit"
    assert first.states.index("plain") == second.states.index("plain")
    assert "graphs" not in first.states


def test_nobody_replays_before_all_have_recorded() -> None:
    """And where one never does, all give up in the end."""
    first, second = run(ready, lambda state, call: NOT_YET if state == "recording" else YES)
    assert not {"trial", "graphs"} & {*first.states, *second.states}
    assert first.states == second.states
    assert first.agreement.state == "plain"
    assert first.states.index("plain") <= EVERY * (MOST_VOTES + 3)


def test_who_never_knows_whether_graphs_are_faster_keeps_them() -> None:
    first, second = run(ready, lambda state, call: NOT_YET if state == "trial" else YES)
    assert first.agreement.state == second.agreement.state == "graphs"


@pytest.mark.parametrize("lag", range(2 * EVERY))
def test_ranks_that_have_called_differently_do_not_wait(lag: int) -> None:
    """By less than a vote they still meet in the store; else they go without graphs."""
    first, second = run(ready, ready, lag=lag, calls=2 * EVERY * MOST_VOTES)
    assert first.agreement.state == second.agreement.state == ("graphs" if lag < EVERY else "plain")


def test_a_backward_graph_is_recorded_when_its_forward_graph_is_replayed(tmp_path: Path) -> None:
    """Before, what it reads would lie elsewhere. Both wait for votes of their own."""
    arena, store = Arena(), distributed.HashStore()
    interests = Interest(frozenset({0}), frozenset({0}), training=True), Interest(training=True)
    forward, backward = (
        GraphedProgram(
            Program(source.replace("{n}", str(LARGE)), folder=tmp_path),
            "auto",
            interest,
            Outside(),
            arena,
            agreement=Agreement(store, {name: 1}),
            small=COPIED,
        )
        for name, source, interest in zip(("forward", "backward"), (FORWARD, BACKWARD), interests, strict=True)
    )
    for one in (forward, backward):
        assert one.recorder is not None
        one.recorder.mark = lambda: Met([], 0)  # type: ignore[method-assign]
    weight, x, tangent = (torch.ones(LARGE) for _ in range(3))
    for _ in range(9 * EVERY):
        saved = forward.run([weight, x])[1:]
        (gradient,) = backward.run([*map(torch.as_tensor, saved), tangent])
        assert float(torch.as_tensor(gradient)[0]) == 14
        assert forward.statistics.replays >= backward.statistics.replays
        del saved, gradient
    assert (forward.statistics.recordings, backward.statistics.recordings) == (1, 1)
    assert not backward.statistics.copied
    assert backward.statistics.replays > EVERY


TIMED = """
import torch
INPUTS = (("weight", "float32", (4,), (1,), "cpu", False), ("x", "float32", (4,), (1,), "cpu", False))
CONSTANTS = ()
DEVICE = torch.device("cpu")
PASS = None

def call(inputs, constants):
    weight, x = inputs
    inputs.clear()
    PASS()
    return (weight * x,)
"""


@dataclass
class Host:
    """A rank's clock, and a device that always waits for it."""

    noise: Random
    plain_us: float
    replayed_us: float
    us: float = 0.0
    is_replaying: bool = False

    def now(self) -> float:
        return self.us

    def wait_until(self, us: float) -> None:
        self.us = max(self.us, us)

    def take(self) -> None:
        self.us += self.replayed_us if self.is_replaying else self.plain_us * (1 + self.noise.random())


class Timed(Tape):
    """A stand-in whose replays take other times than plain calls."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self.host = host

    def mark(self) -> Mark:
        return Point(self.host.us)

    def record(self, call: Callable[[], list[Value]]) -> tuple[list[Step], list[Value]]:
        (step,), results = super().record(call)

        def run() -> None:
            self.host.is_replaying = True
            step.run()
            self.host.is_replaying = False

        return [Step(run, launches_graph=True)], results


@dataclass
class Point:
    us: float

    def reached(self) -> bool:
        return True

    def us_since(self, earlier: Mark) -> float | None:
        assert isinstance(earlier, Point)
        return self.us - earlier.us

    def wait(self) -> None:
        """The other rank's calls come in turn."""


@pytest.mark.parametrize("gains", [True, False])
def test_ranks_of_different_clocks_try_graphs_and_keep_them_together(tmp_path: Path, gains: bool) -> None:
    """Two programs in a step. One rank knows at once that graphs are worth it; the other one's times differ."""
    store, ranks = distributed.HashStore(), list[list[GraphedProgram]]()
    for rank, noise in enumerate((0, 1)):
        host = Host(Random(rank), 1000.0 if noise else 1500.0, 50.0 if gains or not noise else 3000.0)
        if not noise:
            host.noise.random = lambda: 0.0  # type: ignore[method-assign]
        pace, programs = Pace(host), list[GraphedProgram]()
        for name in ("forward", "backward"):
            program = Program(TIMED + f"# {name} of {rank}, {gains}\n", folder=tmp_path)
            program.module.PASS = host.take
            number, agreement = pace.add(1.0, is_rechecked=False), Agreement(store, {name: 2})
            interest = Interest(fixed=frozenset({0}))
            one = GraphedProgram(program, "auto", interest, Timed(host), pace=pace, number=number, agreement=agreement)
            programs.append(one)
        ranks.append(programs)
    weight, x = torch.arange(4.0), torch.ones(4)
    seen = []
    for _ in range(90):
        for programs in ranks:
            for one in programs:
                one.run([weight, x])
        seen.append([[one.statistics.replays for one in programs] for programs in ranks])
    assert all(first == second for first, second in seen)
    states = [one.agreement.state for programs in ranks for one in programs if one.agreement is not None]
    assert states == 4 * ["graphs" if gains else "plain"]
    assert max(seen[-1][0]) > 0
    if not gains:
        assert seen[-1] == seen[-20]
        assert all("graphs gained nothing" in one.statistics.reason for programs in ranks for one in programs)


class Broken:
    """The store of a process that has ended."""

    def add(self, key: str, value: int) -> int:
        raise RuntimeError("Connection reset by peer")

    set = get = add


def test_without_the_store_there_are_no_graphs() -> None:
    agreement = Agreement(Broken(), {"program": 2})
    for _ in range(EVERY):
        agreement.begin(lambda: YES)
    assert agreement.state == "plain"
    assert "Connection reset" in agreement.reason


@pytest.mark.parametrize(
    ("rows", "votes"),
    [
        ((("0", "_c10d_functional.all_reduce.default", "float32", (4,)),), True),
        ((("0", "_c10d_functional.broadcast.default", "float32", (4,)),), False),
        ((("0", "_c10d_functional.all_reduce.default", "float32", (4, 0)),), False),
        ((("", "_c10d_functional.all_reduce.default", "float32", (4,)),), False),
        ((), False),
    ],
)
def test_only_collectives_that_wait_for_all_ranks_count_votes(tmp_path: Path, rows: Any, votes: bool) -> None:
    class Module:
        COLLECTIVES = rows

    assert agreement_on(Module, "") is None, "there is no process group"
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        assert (agreement_on(Module, "") is not None) == votes
    finally:
        distributed.destroy_process_group()
