"""A program captured in a CUDA graph: one launch replays all kernels and library calls, at addresses fixed in advance.

What a replay reads and writes must lie where it lay at the recording: see ``runtime.input_roles`` for inputs,
``runtime.graph_choice`` for results. A graph saves the host's time and holds memory, so ``"auto"`` records one only
where that makes steps shorter: ``runtime.pace``. Steps that no graph can hold cut a program into several graphs:
``runtime.recorder``. For collectives see ``runtime.graph_agreement``, ``process_groups`` and ``replay_watchdog``.

Random numbers differ from replay to replay: the program draws its seed from torch's generator, which a graph advances.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from optfuse.runtime.arena import Arena, Results
from optfuse.runtime.bindings import PATIENCE, Binding, Bindings
from optfuse.runtime.capture import captured
from optfuse.runtime.graph_agreement import Agreement, Opinion
from optfuse.runtime.graph_budget import GraphBudget
from optfuse.runtime.graph_choice import Choice, Interest
from optfuse.runtime.graph_fitness import why_unfit
from optfuse.runtime.graph_statistics import GraphStatistics
from optfuse.runtime.input_roles import SMALL, InputRoles
from optfuse.runtime.pace import Pace, Verdict
from optfuse.runtime.process_groups import release_before_groups_end
from optfuse.runtime.program import Launched, Program, Value, around_calls
from optfuse.runtime.recorder import CudaRecorder, Partition, Recorder, is_capturing, keep_for_stream
from optfuse.runtime.recording import Recording, recorded
from optfuse.runtime.replay_watchdog import WatchedReplays

#: A program whose addresses change more often runs without a graph from then on.
RECORDINGS = 8
#: So many calls wait for the recording of a program that comes before.
MOST_BEHIND = 12
#: So often a program is recorded again at once since another one was, and is read where that one's results lie now.
MOST_FOLLOWED = 3
#: A program that is in a call for so many seconds is stuck: its recordings are dropped all the same.
RELEASE_S = 10.0
#: Why a call is plain while the ranks vote.
BEHIND_OTHERS = "not all ranks have a graph yet"
#: Recordings that take turns, for inference.
TURNS = 2

#: Where a tensor's elements begin.
address_of = torch.Tensor.data_ptr


@dataclass(slots=True, eq=False, weakref_slot=True)
class GraphedProgram:
    """``Program.run`` through CUDA graphs.

    Args:
        program: What is recorded. Its inputs must be on one GPU.
        choice: True or "auto": see ``runtime.graph_choice``. (For False, use the program itself.)
        interest: Whose results are whose.
        recorder: The GPU's by default.
        arena: What a training step's two programs share. None: this one has no other.
        pace, number: What decides whether "auto" records at all, and which of its programs this is. None: it does.
        budget: What this program shares with those of other sizes: see ``runtime.graph_budget``. None: it has no other
            sizes.
        agreement: The ranks' votes on a program with collectives. Without it no graph is made of one but with True.
        small: Inputs of so many bytes are copied rather than watched.
        watched: Ends the process if a replay with collectives does not end. None: replays may wait for ever.
    """

    program: Program
    choice: Choice = "auto"
    interest: Interest = field(default_factory=Interest)
    recorder: Recorder | None = None
    arena: Arena | None = None
    pace: Pace | None = None
    number: int = 0
    budget: GraphBudget | None = None
    agreement: Agreement | None = None
    watched: WatchedReplays | None = None
    small: int = SMALL
    statistics: GraphStatistics = field(default_factory=GraphStatistics)
    _handed: Results = field(init=False)
    _roles: InputRoles = field(init=False)
    _partition: Partition = field(default_factory=Partition)
    _bindings: Bindings = field(init=False)
    _caller: Binding = field(default_factory=lambda: Binding([]))
    _pointers: list[int] | None = None
    _calls: int = 0
    _place: Hashable = None
    _given_up: bool = False
    _is_decided: bool = False
    _is_for_good: bool = True
    _has_room: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _is_running: bool = False

    def __post_init__(self) -> None:
        written = {k for k, expected in enumerate(self.program.inputs) if expected.mutated}
        self._bindings = Bindings(tuple(sorted(self.interest.fixed | written)))
        self._handed = Results(is_noted=False) if self.arena is None else self.arena.results
        self._roles = InputRoles(self.program, self.interest, self._handed, self.small)

    def run(self, inputs: Sequence[torch.Tensor]) -> list[Value]:
        """As ``Program.run``; the results' memory is the graph's (``runtime.graph_choice``). Threads take turns."""
        return self.consume(list(inputs))

    def consume(self, inputs: list[torch.Tensor]) -> list[Value]:
        """``run`` with a list that is emptied, see ``Program.consume``."""
        with self._lock:  # between the copies of a call and its replay no other call may write them
            if self._is_running:  # a step of the program has called it: an operator written in Python
                given, main = self.program.accept(inputs)
                inputs.clear()
                return self._plain(given, main, "called from within itself")
            self._is_running = True
            try:
                return self._run(inputs)
            finally:
                self._is_running = False

    def _run(self, inputs: list[torch.Tensor]) -> list[Value]:
        given, main = self.program.accept(inputs)
        inputs.clear()
        if self.recorder is None:
            elsewhere = any(x.device != main for x in given)
            if main.type != "cuda" or (elsewhere and not self.program.has_cuts):
                return self._plain(given, main, "not every input is on the GPU")
            self.recorder = CudaRecorder(main)
        if self.agreement is None or self.agreement.is_decided or is_capturing():
            return self._served(given, main, self.recorder)
        before = self.agreement.state
        self.agreement.begin(partial(self._opinion, self.agreement))
        if self.agreement.state == "plain" != before:
            self._give_up(self.statistics.reason if self._given_up else self.agreement.reason)
            if self.pace is not None and self.budget is None:
                self.pace.withdraw(self.number, self.statistics.reason)
        try:
            return self._served(given, main, self.recorder)
        finally:
            self.agreement.end(self.recorder.mark)

    def _opinion(self, agreement: Agreement) -> Opinion:
        """What this rank says when the ranks vote on a graph."""
        verdict = "graphs" if self.pace is None else self.pace.verdict(self.number)
        reason = self._why_unfit() or self._partition.refused or (self.statistics.reason if self._given_up else "")
        reason = reason or ("" if self.pace is None else self.pace.reason(self.number))
        is_wanted = verdict != "open" and (self.budget is None or self.budget.may_record(id(self), self._calls + 1))
        return agreement.opinion(reason, is_wanted, bool(self._bindings.recordings()), verdict == "graphs")

    def _served(self, given: list[torch.Tensor], main: torch.device, recorder: Recorder) -> list[Value]:
        """A call with inputs that the program has accepted."""
        unfit = self._why_unfit()
        if unfit:
            return self._plain(given, main, unfit)
        if self._given_up and (self.pace is None or self._is_decided):
            if self.pace is None or self._is_for_good or not self.pace.asks_again(self.number):
                return self._plain(given, main, self.statistics.reason)
            self._begin_anew()
        self._calls += 1
        calls = self._calls + (self._pointers is None)  # what is prepared now is recorded by the next call
        reason = "" if self.budget is None else self.budget.why_not_now(id(self), calls, self.pace, self.number)
        if reason:
            return self._plain(given, main, reason)
        is_first, self._pointers = self._pointers is None, list(map(address_of, given))
        binding, before = self._bindings.of(given, self._pointers)
        self._caller = binding
        if is_first:  # kernels are compiled and libraries set up: none of that can be recorded
            self._place = recorder.place()
            self.statistics.plain += 1
            return recorder.warm(partial(self._first, given, main))
        if self._partition.refused:
            return self._plain(given, main, self._partition.refused)
        verdict = self._verdict(recorder, binding)
        if self.pace is not None and verdict == "open":
            return self._timed(given, main, binding, before or self._pointers, self.pace)
        if verdict == "recheck":
            return self._waiting(given, main, "steps without the graph are timed once more", is_lasting=True)
        if self._given_up:
            return self._plain(given, main, self.statistics.reason)
        if recorder.place() != self._place:
            return self._plain(given, main, "on another stream than the first call")
        if before is None:
            return self._waiting(given, main, "the first call with these parameters")
        if self.agreement is not None and self.agreement.state == "open":
            return self._waiting(given, main, BEHIND_OTHERS)
        return self._through_graph(given, main, binding, before)

    def _verdict(self, recorder: Recorder, binding: Binding) -> Verdict:
        """What the pace says of this call. Where it decides against graphs, this program gives them up."""
        if self.pace is None or (self._is_decided and not self.pace.asks_again(self.number)):
            return "graphs"
        caller = id(binding) if self.budget is None else 0  # each of a range of sizes has callers of its own
        verdict = self.pace.enter(self.number, recorder.mark, caller)
        if verdict == "recheck" and not self._has_room:
            self._has_room = recorder.has_room()
            if not self._has_room:
                self.pace.keep_unchecked()
                verdict = "graphs"
        self._is_decided = verdict in ("graphs", "plain")
        if verdict == "plain" and not (self.agreement is not None and self.agreement.may_replay):
            self._give_up(self.pace.reason(self.number))  # else the ranks give up together
            self._is_for_good = self.agreement is not None
        return verdict

    def _first(self, given: list[torch.Tensor], main: torch.device) -> list[Value]:
        """The first call, on the stream that records. Inputs of another one are freed before that has waited for it."""
        if threading.active_count() > 1:  # this thread makes no use of their memory until then
            keep_for_stream(given, main)
        probe = None if self.arena is None else self.arena.probe
        return self.program.execute(given, main, probe, self._partition.note)

    def let_go(self) -> None:
        """Free the memory of all recordings, unless a call is using them."""
        if self._lock.acquire(blocking=False):
            if not self._is_running:
                self._drop()
            self._lock.release()

    def _why_unfit(self) -> str:
        """Why this call can neither be recorded nor replayed, whatever its inputs; "" if it can."""
        return why_unfit(self.program, self.choice, can_agree=self.agreement is not None)

    def _timed(
        self, given: list[torch.Tensor], main: torch.device, binding: Binding, before: list[int], pace: Pace
    ) -> list[Value]:
        """A plain call that takes the host longer in some rounds, see ``runtime.pace``."""
        self._bindings.note_borrowed(binding)
        slowing, copied = pace.slowing(self.number), self._roles.copied_bytes(given, before, binding)
        start = pace.clock.now()
        results = self._plain(given, main, "the host is timed", None if slowing is None else slowing.after)
        if slowing is not None:
            slowing.wait()
        spent = 0.0 if slowing is None else slowing.spent
        if self.interest.training:
            copied += binding.still_held(self._own([x for k, x in enumerate(results) if self.interest.sees(k)]))
        pace.leave(self.number, pace.clock.now() - start - spent, spent, copied)
        self._handed.note_passing(self._caller, self._own(results))
        return results

    def _own(self, results: Sequence[Value]) -> list[torch.Tensor]:
        """The results that are not inputs."""
        pointers = set(self._pointers or ())
        return [x for x in results if isinstance(x, torch.Tensor) and x.data_ptr() not in pointers]

    def _begin_anew(self) -> None:
        """Let the pace decide once more."""
        self._given_up = self._is_decided = False
        for binding in self._bindings:
            binding.recorded = 0

    def _give_up(self, reason: str) -> None:
        self._given_up = self._is_for_good = True
        self.statistics.reason = reason
        self._drop()
        for binding in self._bindings:
            self._handed.forget_passing(binding)

    def _note_recorded(self) -> None:
        results = [x for recording in self._bindings.recordings() for x in recording.results]
        self._handed.note_recorded(self, (x.value.data_ptr() for x in results if x.is_left))

    def _drop(self) -> None:
        self._bindings.drop()
        self._note_recorded()

    def release(self) -> None:
        """Drop all recordings, since a process group ends. A program with collectives runs without graphs from then on.

        Results that were handed out stay as they are.
        """
        is_mine = self._lock.acquire(timeout=RELEASE_S)
        try:
            self._drop()
            for binding in self._bindings:
                binding.recorded = 0
            if self.program.has_collectives:
                self._given_up = self._is_for_good = True
                self.statistics.reason = "a process group has ended"
                if self.agreement is not None:
                    self.agreement.refuse(self.statistics.reason)
        finally:
            if is_mine:
                self._lock.release()

    def _through_graph(
        self, given: list[torch.Tensor], main: torch.device, binding: Binding, before: list[int]
    ) -> list[Value]:
        recordings = binding.recordings
        moved = recordings[0].moved(self._pointers or ()) if recordings else self._roles.moving(given, before)
        is_early = (moved or not recordings) and self._handed.passes(self._pointers or (), binding)
        if is_early and binding.behind < MOST_BEHIND:
            binding.behind += 1
            return self._waiting(given, main, "the graph of what it reads comes first")
        # the programs that hand them on have been recorded again: they stay there now
        follows = binding.followed < MOST_FOLLOWED and all(self._handed.stays(given[k].data_ptr()) for k in moved)
        follows |= binding.note_lent(given, moved)
        if moved and not follows and binding.unsettled < PATIENCE:
            binding.unsettled += 1
            return self._waiting(given, main, f"input {self.program.inputs[moved[0]].name} has moved")
        if moved:
            binding.drop()
            self._note_recorded()
            binding.unsettled = 0
            binding.followed += follows
        if moved and not follows:
            if binding.recorded >= RECORDINGS - 1:  # the last one: all may move that tells no caller from another
                moved = sorted({*moved} | {*range(len(given))} - {*self._bindings.fixed})
            self._bindings.copy(moved, binding)
        binding.behind = 0
        free = next((recording for recording in recordings if not recording.in_use()), None)
        if free is not None:
            binding.in_use = 0
        elif len(recordings) >= (1 if self.interest.training else TURNS) and self._must_wait(binding):
            return self._waiting(given, main, "results of an earlier call are still in use", is_lasting=True)
        elif binding.recorded >= RECORDINGS:
            self._give_up("inputs move too often")
        else:
            free = self._record(given, main, binding, before)
        if free is None:
            return self._plain(given, main, self.statistics.reason)
        if self.agreement is None or self.agreement.may_replay:
            return self._replay(free, given, main)
        return self._waiting(given, main, BEHIND_OTHERS)

    def _waiting(
        self, given: list[torch.Tensor], main: torch.device, reason: str, *, is_lasting: bool = False
    ) -> list[Value]:
        """A plain call of a program that has a graph, or soon will; ``is_lasting`` if it may be so in every step."""
        if self.pace is not None and not is_lasting:
            self.pace.disturb()  # a step without its graph is no trial of it
        results = self._plain(given, main, reason)
        self._handed.note_passing(self._caller, self._own(results))
        return results

    def _must_wait(self, binding: Binding) -> bool:
        """Whether a call runs plainly since results are held. If not, its recording is dropped, with results kept."""
        if not self.interest.training:
            return True
        recording = binding.recordings[0]
        held = recording.held()
        ends = binding.note_held(held, [k for k in held if self.interest.sees(k)])
        recording.hand_out_copies(binding.handed_out)
        if ends:
            binding.drop()
        self._note_recorded()
        return not ends

    def _plain(
        self, given: list[torch.Tensor], main: torch.device, reason: str, launched: Launched | None = None
    ) -> list[Value]:
        self.statistics.plain += 1
        self.statistics.reason = reason
        self._handed.forget_passing(self._caller)
        return self.program.execute(given, main, launched=launched)

    def _record(
        self, given: list[torch.Tensor], main: torch.device, binding: Binding, before: Sequence[int]
    ) -> Recording | None:
        assert self.recorder is not None, "run has made one"
        if not release_before_groups_end(self):
            self._give_up("its process group could not end any more")
            return None
        if self.pace is not None:
            self.pace.disturb(is_again=binding.recorded >= TURNS)
        self._bindings.note_borrowed(binding)
        moving = self._roles.copied(given, before, binding)
        arena = self.arena or Arena()
        place = id(self) if self.program.has_cuts else self._place  # another thread may come between its graphs
        capture = partial(
            captured,
            self.program,
            main=main,
            recorder=self.recorder,
            partition=self._partition,
            arena=arena,
            place=place,
            statistics=self.statistics,
        )
        guards = partial(self.interest.guards, choice=self.choice)
        recording = recorded(given, moving, capture, binding.handed_out, guards, self._bindings.recordings())
        if recording is None:
            self._give_up(self.statistics.reason)
            return None
        binding.recordings.append(recording)
        binding.recorded += 1
        self._note_recorded()
        self.statistics.recordings += 1
        self.statistics.copied = tuple(self.program.inputs[k].name for k in moving)
        return recording

    def _replay(self, recording: Recording, given: Sequence[torch.Tensor], main: torch.device) -> list[Value]:
        if self.budget is not None:
            self.budget.use(id(self), self.let_go)
        self._handed.forget_passing(self._caller)
        with around_calls(main):
            self.statistics.replays += 1
            results = recording.replay(given)
            if self.watched is not None and self.recorder is not None:
                self.watched.note(self.recorder.mark())
            return results
