"""Compare each call of a program through CUDA graphs with the same program without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from optfuse.runtime.check.judging import judge
from optfuse.runtime.check.references import strided_copy
from optfuse.runtime.clocks import Mark
from optfuse.runtime.graph_choice import Interest
from optfuse.runtime.graphs import GraphedProgram
from optfuse.runtime.program import Program, Value
from optfuse.runtime.recorder import Step


@dataclass(frozen=True, slots=True)
class ReplayCheck:
    """One call: whether it was replayed, and what of its results differs from the program's without a graph.

    ``reason`` says why it was not replayed.
    """

    name: str
    call: int
    replayed: bool
    reason: str
    faults: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the call is right."""
        return not self.faults


@dataclass(slots=True)
class Again:
    """A stand-in for a GPU's graphs: a replay runs again and writes into the recorded results.

    ``written``: inputs that a run changes, which recording must not do.
    """

    written: list[torch.Tensor] = field(default_factory=list)

    def table(self, addresses: Sequence[int], device: torch.device) -> torch.Tensor:
        """Memory with the addresses at once."""
        return torch.tensor(addresses, device=device)

    def place(self) -> object:
        """Always the same."""
        return 0

    def warm(self, call: Callable[[], list[Value]]) -> list[Value]:
        """Run."""
        return call()

    def has_room(self) -> bool:
        """Always."""
        return True

    def mark(self) -> Mark:
        """Refuse: whether graphs save time is not asked here."""
        raise RuntimeError("programs whose replays are checked are not timed")

    def interrupt(self, step: Step) -> None:
        """Refuse: what is run again here is a whole program."""
        raise RuntimeError("a program with steps between graphs is recorded on a GPU alone")

    def record(self, call: Callable[[], list[Value]]) -> tuple[list[Step], list[Value]]:
        """Run once, for the memory of the results."""
        before = [strided_copy(x, x.device) for x in self.written]
        results = call()
        for x, old in zip(self.written, before, strict=True):
            x.copy_(old)
        targets = [x.detach() if isinstance(x, torch.Tensor) else None for x in results]

        def replay() -> None:
            for target, value in zip(targets, call(), strict=True):
                if target is not None and isinstance(value, torch.Tensor):
                    target.copy_(value)

        return [Step(replay, launches_graph=True)], results


@dataclass(slots=True)
class Replayed:
    """A program that runs through graphs; ``checks`` has a row a call. One that draws random numbers is not compared.

    Every call of ``consume`` first runs the program without a graph on copies of the inputs.
    """

    name: str
    program: Program
    interest: Interest
    draws: bool = False
    checks: list[ReplayCheck] = field(default_factory=list)
    _graphed: GraphedProgram = field(init=False)
    _again: Again | None = None

    def __post_init__(self) -> None:
        if not torch.cuda.is_available():
            self._again = Again()
        self._graphed = GraphedProgram(self.program, "auto", self.interest, self._again)

    def consume(self, inputs: list[torch.Tensor]) -> list[Value]:
        """The results of the graphed program, once they are compared."""
        copies = [strided_copy(x, x.device) for x in inputs]
        plain = self.program.run(copies)
        given, statistics = list(inputs), self._graphed.statistics
        written = [k for k, row in enumerate(self.program.inputs) if row.mutated]
        if self._again is not None:
            self._again.written = [given[k] for k in written]
        before = statistics.replays
        found = self._graphed.consume(inputs)
        replayed = statistics.replays > before
        pairs = [(f"result {k}", a, b) for k, (a, b) in enumerate(zip(found, plain, strict=True))]
        pairs += [(self.program.inputs[k].name, given[k], copies[k]) for k in written]
        faults = () if self.draws else tuple(fault for pair in pairs for fault in _faults(*pair))
        self.checks.append(
            ReplayCheck(self.name, len(self.checks), replayed, "" if replayed else statistics.reason, faults)
        )
        return found


def _faults(name: str, found: Value, plain: Value) -> list[str]:
    if not isinstance(found, torch.Tensor) or not isinstance(plain, torch.Tensor):
        return [] if found == plain else [f"{name} is {found}, without a graph {plain}"]
    if found.shape != plain.shape or found.dtype is not plain.dtype:
        return [f"{name} is {found.dtype}{list(found.shape)}, without a graph {plain.dtype}{list(plain.shape)}"]
    wrong = judge(found, plain, plain).wrong
    return [f"{name}: {wrong}"] if wrong else []
