"""Whether CUDA graphs make steps shorter. The question is put to the device, at first without any graph.

A graph spares the host's time, which matters only where the device waits for it. That cannot be read off the times of
calls: a loop that synchronizes in each step lets the device run dry, whichever side is slower. So the host is slowed:

1. The programs of a process run in *rounds*: a round ends where one of its programs is called again by the same layer,
   and lasts from mark to mark on the device's clock. Rounds of the same calls are compared, and decide for all of their
   programs together. Of a program whose rounds are of many kinds, since each step calls other layers, each call is a
   round of its own, from its begin to its end, and decides alone.
2. In some rounds each plain call takes the host longer by a share of its time, launch by launch. A round that gets
   longer by as much waits for the host. Where it stays as it was, the host's time is hidden, and to spare it gains
   nothing: a round's length is convex in the host's time, so the loss is a bound on the gain.
3. Against that gain stand the copies that a graph needs, of inputs that move and of results that the caller sees.
4. If something is left, or rounds differ so much that none of this can be told, graphs are recorded, and rounds with
   them are measured as well, but for calls that are rounds of their own. They go if they gain nothing. Where they seem
   to gain, rounds without them are measured once more, and must be longer again: a process' first steps are slow for
   reasons that graphs do not mend.
5. Where the host takes longer than the GPU is predicted to, and much of a round, step 2 is left out. Where rounds
   with graphs are far shorter than any without, graphs are kept after a few.
6. Each measurement is made again after some hundred calls, with step 4's last rounds, and twice more later: while a
   process starts, its other threads and its loader of data take time that they do not take for long.

No call waits for the device: marks are looked at later. Ranks decide about programs with collectives together, by what
each has found here: ``runtime.graph_agreement``.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median, quantiles
from typing import Literal

from optfuse.runtime.clocks import Clock, HostClock, Mark, Slowing

#: By what share of its own time the host is slowed.
SLOWED = 0.3
#: Rounds of each kind, slowed or not, whose medians are compared.
SAMPLES = 3
#: So many where three in four rounds do not lie within this share, of what they are slowed by, around the median.
MANY_SAMPLES, NOISE = 6, 0.4
#: How far the difference of two medians of so many may be from the truth, in such deviations: two standard errors of
#: normal times.
UNSURE = 1.25
#: Rounds in a row, without a recording, after which graphs are kept or dropped; ``MANY_SAMPLES`` where rounds differ.
TRIAL = 5
#: Graphs are tried after so many plain rounds where the host takes so many times the GPU's predicted time (which was
#: 25% too high for a ConvNeXt's training step), and at least this share of a round.
FIRST, HOST_BOUND, MUCH = 2, 1.0, 0.3
#: Rounds with graphs are far shorter if so many are, each of them, below this share of every plain one.
FEW, FAR_SHORTER = 3, 0.75
#: Rounds without graphs that do not count, in a second measurement, since the device still works off what was queued.
MOST_BEHIND = 256
#: Rounds in which something was recorded again after which graphs are dropped: inputs move.
MOST_AGAIN = 10
#: A program that is undecided for so many rounds, since they differ, runs without graphs.
UNDECIDED = 64
#: Calls after which programs are measured again, each time anew.
AGAIN = (256, 2_048, 16_384)
#: Kinds of rounds that are remembered.
KINDS = 256
#: Of a program whose rounds are of more kinds, as where each step calls other layers, each call is a round of its own.
MOST_KINDS = 4
#: What a replay takes the host, in microseconds.
REPLAY_US = 50.0
#: Graphs are recorded for a gain of this share of a round, and kept for the other.
WORTH, KEPT = 0.02, 0.01
#: Where the host takes less than this share of the GPU's predicted time, nothing is tried.
HOST_SHARE = 0.15
#: Bytes that a GPU copies in a microsecond.
COPIED_IN_US = 1.5e6

#: What a program does: it is measured plainly, it uses graphs on trial, it runs without them again, or it is decided.
Verdict = Literal["open", "trial", "recheck", "graphs", "plain"]


@dataclass(slots=True)
class _Member:
    number: int
    gpu_us: float
    is_rechecked: bool = True
    #: each of its calls is a round of its own
    is_alone: bool = False
    verdict: Verdict = "open"
    host_us: float = inf
    copied: list[int] = field(default_factory=list)
    calls: int = 0
    #: of how many kinds the rounds were that it took part in
    kinds: int = 0
    reason: str = ""
    #: Those that are measured again together with this one, and after how many calls of one of them.
    resting: tuple[_Member, ...] = ()
    rested: int = 0
    rests: int = 0


@dataclass(slots=True)
class _Round:
    start: Mark
    is_slowed: bool
    programs: list[int] = field(default_factory=list)
    callers: set[tuple[int, int]] = field(default_factory=set)
    verdicts: set[Verdict] = field(default_factory=set)
    is_call: bool = False  # of one call, which is a round of its own
    is_behind: bool = False
    is_disturbed: bool = False
    is_again: bool = False
    slowed_us: float = 0.0


@dataclass(slots=True)
class _Times:
    """Lengths of the rounds of the same programs, in microseconds."""

    seen: int = 0
    plain: list[float] = field(default_factory=list)
    slowed: list[float] = field(default_factory=list)
    slowed_by: list[float] = field(default_factory=list)
    trial: list[float] = field(default_factory=list)
    recheck: list[float] = field(default_factory=list)
    behind: int = 0
    again: int = 0
    #: Rounds of one kind differ by more than slowing the host would show.
    is_noisy: bool = False


@dataclass(slots=True)
class Pace:
    """Decides which of a process' programs use CUDA graphs; see the module's text. Threads may share it."""

    clock: Clock = field(default_factory=HostClock)
    _members: list[_Member] = field(default_factory=list)
    _times: OrderedDict[tuple[int, ...], _Times] = field(default_factory=OrderedDict)
    _round: _Round | None = None
    _begun: int = 0
    #: by program, a call under way that is a round of its own, and what marks its end
    _calls: dict[int, tuple[_Round, Callable[[], Mark]]] = field(default_factory=dict)
    _pending: list[tuple[_Round, Mark]] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def add(self, gpu_us: float, *, is_rechecked: bool = True) -> int:
        """A number for one more program, predicted to keep the GPU busy for so long.

        ``is_rechecked``: graphs that seem to gain are left out once more before they are kept.
        """
        with self._lock:
            self._members.append(_Member(len(self._members), gpu_us, is_rechecked))
            return len(self._members) - 1

    def enter(self, number: int, mark: Callable[[], Mark], caller: int = 0) -> Verdict:
        """How a program's call that begins now is to run.

        ``mark`` marks this point in the device's work. ``caller`` tells layers that share a program.
        """
        with self._lock:
            member = self._members[number]
            if member.verdict in ("graphs", "plain"):
                return member.verdict
            self._look()
            if member.verdict == "open" and member.kinds > MOST_KINDS and not member.is_alone:
                member.is_alone, member.calls = True, 0
            is_call = member.is_alone and member.verdict == "open"
            current = self._round
            is_new = current is None or number not in current.programs or (number, caller) in current.callers
            member.calls += is_call or is_new
            if member.verdict == "open" and member.calls > UNDECIDED:
                _rest([member], "steps differ too much to tell whether a graph would save time")
            verdict = self.verdict(number)
            if verdict in ("graphs", "plain"):
                return verdict
            if is_call:
                is_slowed = member.calls > FIRST and bool(member.calls.bit_count() & 1)
                self._calls[number] = (_Round(mark(), is_slowed, [number], verdicts={"open"}, is_call=True), mark)
                return verdict
            if current is None or (number, caller) in current.callers:
                here = mark()
                if current is not None:
                    self._pending.append((current, here))
                # each of two kinds, or of any period, gets both: the parity of the number's bits
                is_slowed = self._begun > FIRST and bool(self._begun.bit_count() & 1)
                is_behind = sum(not past.is_call for past, _ in self._pending) > 1
                current = self._round = _Round(here, is_slowed, is_behind=is_behind)
                self._begun += 1
            current.programs.append(number)
            current.callers.add((number, caller))
            current.verdicts.add(member.verdict)
            return member.verdict

    def slowing(self, number: int) -> Slowing | None:
        """What slows a program's plain call, if its round is one of those that are slowed."""
        with self._lock:
            current = self._calls[number][0] if number in self._calls else self._round
            is_slowed = current is not None and current.is_slowed
        return Slowing(SLOWED, self.clock) if is_slowed else None

    def leave(self, number: int, host_us: float, slowed_us: float = 0.0, copied: int = 0) -> None:
        """What a plain call took the host, without the time by which it was slowed, and bytes that a graph copies."""
        with self._lock:
            member = self._members[number]
            member.host_us = min(member.host_us, host_us)
            member.copied.append(copied)
            if number in self._calls:
                current, mark = self._calls.pop(number)
                current.slowed_us = slowed_us
                self._pending.append((current, mark()))
            elif self._round is not None:
                self._round.slowed_us += slowed_us

    def disturb(self, is_again: bool = False) -> None:
        """A graph is recorded in this round, ``is_again`` for another time: its length says nothing."""
        with self._lock:
            if self._round is not None:
                self._round.is_disturbed = True
                self._round.is_again |= is_again

    def keep_unchecked(self) -> None:
        """Keep all graphs that seem to gain: there is no memory for steps without them beside the graphs' own."""
        with self._lock:
            _decide([member for member in self._members if member.verdict == "recheck"], "graphs", "")

    def withdraw(self, number: int, reason: str) -> None:
        """A program does without graphs, whatever is found here."""
        with self._lock:
            _decide([self._members[number]], "plain", reason)

    def asks_again(self, number: int) -> bool:
        """Count a call of a decided program. Returns whether it is to be measured again, from this call on."""
        member = self._members[number]
        if not member.resting:  # else another one of the same rounds has been called as often
            return member.verdict not in ("graphs", "plain")
        with self._lock:
            member.rested += 1
            if not member.resting or member.rested < AGAIN[member.rests]:
                return member.verdict not in ("graphs", "plain")
            together = {one.number for one in member.resting}
            has_graphs = member.verdict == "graphs"
            for one in member.resting:
                one.rests = member.rests + 1
                _decide([one], "trial" if has_graphs else "open", "")
                one.host_us, one.copied, one.calls, one.kinds = inf, [], 0, 0
            self._forget(together, has_graphs)
            return True

    def verdict(self, number: int) -> Verdict:
        """What is known of a program."""
        return self._members[number].verdict

    def reason(self, number: int) -> str:
        """Why a program runs without graphs."""
        return self._members[number].reason

    def _forget(self, numbers: set[int], has_graphs: bool) -> None:
        """Forget the rounds of some programs, but for plain ones where they have graphs, and those under way."""
        for key in [key for key in self._times if not numbers.isdisjoint(key)]:
            past = self._times.pop(key)
            if has_graphs:
                self._times[key] = _Times(past.seen, past.plain, is_noisy=past.is_noisy)
        self._round, self._pending = None, []

    def _look(self) -> None:
        while self._pending and self._pending[0][1].reached():
            past, end = self._pending.pop(0)
            length = end.us_since(past.start)
            if length is not None:
                self._note(past, length)

    def _note(self, past: _Round, length: float) -> None:
        key = tuple(sorted(past.programs))
        if key not in self._times:
            for number in set(key):
                self._members[number].kinds += 1
        times = self._times.setdefault(key, _Times())
        self._times.move_to_end(key)
        if len(self._times) > KINDS:
            self._times.popitem(last=False)
        times.seen += 1
        members = [self._members[number] for number in key]
        if "open" not in past.verdicts:
            times.again += past.is_again
            if past.verdicts <= {"trial"}:
                # a recording moves what others read: rounds count from the last one on
                times.trial = [] if past.is_disturbed else [*times.trial, length]
                self._judge_trial(times, members)
            elif past.verdicts <= {"recheck"} and past.is_behind and times.behind < MOST_BEHIND:
                times.behind += 1  # replays take the host so little that it may be many steps ahead
            elif past.verdicts <= {"recheck"}:
                times.recheck.append(length)
                self._judge_recheck(times, members)
        elif past.is_disturbed:
            return
        elif past.slowed_us:
            times.slowed.append(length)
            times.slowed_by.append(past.slowed_us)
        elif times.seen > 1:  # in the first one memory is allocated
            times.plain.append(length)
        self._judge(times, members)

    def _judge(self, times: _Times, members: Sequence[_Member]) -> None:
        """Whether the programs of a round try graphs."""
        undecided = [member for member in members if member.verdict == "open"]
        host, gpu = sum(member.host_us for member in undecided), sum(member.gpu_us for member in undecided)
        if not undecided or not times.plain:
            return
        if host < HOST_SHARE * gpu:
            reason = f"a graph would save no time: the host takes {host:,.0f} us a step, and the GPU about {gpu:,.0f}"
            _decide(undecided, "plain", reason)
            return
        is_alone = len(members) == 1 and undecided[0].is_alone
        is_first = len(times.plain) >= FIRST and not is_alone and not any(member.rests for member in undecided)
        if is_first and host > max(HOST_BOUND * gpu, MUCH * max(times.plain)):
            _decide(undecided, "trial", "")
            return
        if min(len(times.plain), len(times.slowed)) < SAMPLES:
            return
        length, slow, slowed_by = median(times.plain), median(times.slowed), median(times.slowed_by)
        deviations = [*(abs(us - length) for us in times.plain), *(abs(us - slow) for us in times.slowed)]
        noise = quantiles(deviations, n=4)[-1]
        is_noisy = noise > NOISE * slowed_by
        if is_noisy and min(len(times.plain), len(times.slowed)) < MANY_SAMPLES:
            return
        times.is_noisy |= is_noisy
        doubt = UNSURE * noise if is_noisy else 0.0  # where slowing the host tells too little, a trial tells more
        felt = min(1.0, max(0.0, (slow - length + doubt) / slowed_by))
        saved = felt * sum(max(0.0, member.host_us - REPLAY_US) for member in undecided)
        copies = sum(median(member.copied or [0]) for member in undecided) / COPIED_IN_US
        if saved - copies > WORTH * length:
            _decide(undecided, "graphs" if is_alone else "trial", "")
            return
        reason = (
            f"a graph would save no time: the host takes {host:,.0f} us of a step of {length:,.0f}, the GPU waits for "
            f"{felt:.0%} of that, and copies would take {copies:,.0f} us"
        )
        _rest(undecided, reason)

    def _judge_trial(self, times: _Times, members: Sequence[_Member]) -> None:
        """Whether graphs that are tried are kept."""
        tried = [member for member in members if member.verdict == "trial"]
        if not times.plain:  # other programs take part than when these ran plainly
            if len(times.trial) > UNDECIDED:
                _decide(tried, "graphs", "")
            return
        if not tried:
            return
        is_rechecked = all(member.is_rechecked for member in tried)
        is_far_shorter = len(times.trial) >= FEW and max(times.trial) < FAR_SHORTER * min(times.plain)
        if is_far_shorter and is_rechecked and not any(member.rests for member in tried):
            _rest(tried, "", "graphs")
            return
        if len(times.trial) < (MANY_SAMPLES if times.is_noisy else TRIAL):
            if times.again >= MOST_AGAIN:
                _decide(tried, "plain", "graphs had to be recorded again and again: inputs move")
            return
        self._compare(times.plain, times.trial, tried, "recheck" if is_rechecked else "graphs")

    def _judge_recheck(self, times: _Times, members: Sequence[_Member]) -> None:
        """Whether graphs that seem to gain are kept, by rounds without them that come later."""
        checked = [member for member in members if member.verdict == "recheck"]
        count = MANY_SAMPLES if times.is_noisy else TRIAL
        if not times.trial:  # other programs take part than in the trial
            if len(times.recheck) > UNDECIDED:
                _decide(checked, "graphs", "")
            return
        if checked and len(times.recheck) == 2 * count:  # in the first half what was queued may still hide the host
            self._compare(times.recheck[count:], times.trial, checked, "graphs")

    def _compare(self, plain: list[float], trial: list[float], members: Sequence[_Member], better: Verdict) -> None:
        without, length = median(plain), median(trial)
        if length >= (1 - KEPT) * without:
            _rest(members, f"graphs gained nothing: a step took {length:,.0f} us with and {without:,.0f} without")
        elif better == "graphs" and all(member.is_rechecked for member in members):
            _rest(members, "", better)
        else:
            _decide(members, better, "")


def _decide(members: Sequence[_Member], verdict: Verdict, reason: str) -> None:
    for member in members:
        member.verdict, member.reason, member.resting = verdict, reason, ()


def _rest(members: Sequence[_Member], reason: str, verdict: Verdict = "plain") -> None:
    """Let programs run plainly or with graphs, and measure them again where that has not been done often enough."""
    _decide(members, verdict, reason)
    again = tuple({member.number: member for member in members if member.rests < len(AGAIN)}.values())
    for member in again:
        member.resting, member.rested = again, 0


_OF_PROCESS = Pace()


def pace_of_process() -> Pace:
    """The pace that all programs of this process share."""
    return _OF_PROCESS
