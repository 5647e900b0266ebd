"""Compares predicted with measured savings between two partitions under one code generator, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal

#: Smaller savings, as shares of the time, count as none; the measured one whatever the spread of the runs.
LEAST_PREDICTED = 0.0005
LEAST_MEASURED = 0.003

Sign = Literal["yes", "no", "tie", "-"]

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """One partition against another in one code generator.

    Attributes:
        before_ms, after_ms: Medians of the two programs.
        predicted, measured: The share of the time that the second saves, by the model and as measured; negative if it
            is slower.
        noise: The uncertainty of ``measured``: twice the standard error of the medians, from the spread of the runs.
        fused: The share of the time in generated kernels that it saves, by kineto; None without a profile.
    """

    before_ms: float
    after_ms: float
    predicted: float | None
    measured: float
    noise: float
    fused: float | None

    @property
    def agrees(self) -> Sign:
        """Whether predicted and measured saving have the same sign; a tie if either is no difference."""
        if self.predicted is None:
            return "-"
        if abs(self.measured) <= self.noise or abs(self.predicted) < LEAST_PREDICTED:
            return "tie"
        return "yes" if (self.predicted > 0) == (self.measured > 0) else "no"


@dataclass(frozen=True, slots=True)
class ThesisRow:
    """A row's trials; None where one of the two programs was not measured.

    Attributes:
        ours: Our code generator: greedy's partition, then the solver's.
        own: Inductor on our graph: its own partition, then the solver's.
        inductor: Inductor on our graph: greedy's partition, then the solver's, both imposed.
        imposed: What became of the solver's kernels of several ops in Inductor, see ``inductor.impose.Imposed``.
    """

    row: str
    ours: Trial | None
    own: Trial | None
    inductor: Trial | None
    imposed: Mapping[str, int]


def thesis(document: Mapping[str, Any]) -> tuple[ThesisRow, ...]:
    """The rows of a bench's document in which some pair of partitions was measured."""
    rows = [_row(row["row"], row["systems"]) for row in document["rows"]]
    return tuple(row for row in rows if row.ours or row.own or row.inductor)


def _row(name: str, systems: Mapping[str, Facts]) -> ThesisRow:
    good = {system: facts for system, facts in systems.items() if facts["status"] == "ok"}
    solver, greedy = good.get("optfuse-graphs"), good.get("optfuse-greedy-graphs")
    own, imposed, imposed_greedy = (
        good.get(system) for system in ("inductor-own", "inductor-imposed", "inductor-imposed-greedy")
    )
    by_model = None
    if solver is not None:
        by_model = _saved(_total(solver["schedules"], "greedy_objective"), _total(solver["schedules"], "objective"))
    elif imposed is not None:
        by_model = _saved(_total(imposed["on_our_graph"], "greedy"), _total(imposed["on_our_graph"], "ours"))
    below_own = None
    if own is not None and imposed is not None:
        below_own = _saved(_total(own["on_our_graph"], "priced"), _total(imposed["on_our_graph"], "ours"))
    outcomes = [graph["imposed"] for graph in (imposed or {}).get("on_our_graph", ()) if "imposed" in graph]
    return ThesisRow(
        name,
        _trial(greedy, solver, by_model),
        _trial(own, imposed, below_own),
        _trial(imposed_greedy, imposed, by_model),
        {key: sum(outcome[key] for outcome in outcomes) for key in (outcomes[0] if outcomes else ())},
    )


def _trial(before: Facts | None, after: Facts | None, predicted: float | None) -> Trial | None:
    if before is None or after is None:
        return None
    one, other = before["median_ms"], after["median_ms"]
    fused = _saved(before.get("triton_ms"), after.get("triton_ms"))
    noise = 2 * sqrt(_error(before) ** 2 + _error(after) ** 2) / one
    return Trial(one, other, predicted, (one - other) / one, max(LEAST_MEASURED, noise), fused)


def _error(facts: Facts) -> float:
    """A median's standard error, of runs that are spread like the normal distribution: 1.25 sigma / sqrt(runs)."""
    sigma = (facts["high_ms"] - facts["low_ms"]) / 2.56  # the tenth and the ninetieth percentile
    return 1.25 * sigma / sqrt(facts["runs"])


def _total(graphs: Sequence[Facts], key: str) -> float | None:
    return None if any(graph.get(key) is None for graph in graphs) else float(sum(graph[key] for graph in graphs))


def _saved(before: float | None, after: float | None) -> float | None:
    return (before - after) / before if before and after is not None else None


def thesis_markdown(rows: Sequence[ThesisRow]) -> str:
    """Two tables and what they come to; empty where nothing was measured."""
    if not rows:
        return ""
    ours = [
        "| row | greedy, ms | solver, ms | model: saved | clock: saved | noise | fused kernels: saved | same sign |",
        "|" + "---|" * 8,
        *(f"| {row.row} | {_cells(row.ours, fused=True)} |" for row in rows if row.ours),
    ]
    theirs = [
        "| row | Inductor's own, ms | greedy's, ms | solver's, ms | model: below Inductor's | clock | same sign "
        "| model: below greedy's | clock | noise | fused kernels | same sign | whole / in part / apart / absent |",
        "|" + "---|" * 13,
        *(_imposed_line(row) for row in rows if row.own or row.inductor),
    ]
    counts = [
        *_count("In our code generator, solver against greedy", [row.ours for row in rows]),
        *_count("In Inductor's, solver against greedy", [row.inductor for row in rows]),
        *_count("In Inductor's, solver against Inductor's own", [row.own for row in rows]),
    ]
    parts = [ours if len(ours) > 2 else [], theirs if len(theirs) > 2 else [], counts]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _cells(trial: Trial | None, *, fused: bool) -> str:
    if trial is None:
        return " | ".join("-" * (7 if fused else 3))
    figures = [f"{trial.before_ms:.3f}", f"{trial.after_ms:.3f}", _percent(trial.predicted), _percent(trial.measured)]
    return " | ".join([*figures, f"{trial.noise:.1%}", _percent(trial.fused), trial.agrees])


def _imposed_line(row: ThesisRow) -> str:
    own, both = row.own, row.inductor
    counts = " / ".join(str(row.imposed.get(key, "-")) for key in ("whole", "part", "apart", "absent"))
    after = own or both
    cells = [
        row.row,
        f"{own.before_ms:.3f}" if own else "-",
        f"{both.before_ms:.3f}" if both else "-",
        f"{after.after_ms:.3f}" if after else "-",
        *((_percent(own.predicted), _percent(own.measured), own.agrees) if own else "---"),
        *(
            (_percent(both.predicted), _percent(both.measured), f"{both.noise:.1%}", _percent(both.fused), both.agrees)
            if both
            else "-----"
        ),
        counts,
    ]
    return "| " + " | ".join(cells) + " |"


def _count(what: str, trials: Sequence[Trial | None]) -> list[str]:
    found = [trial for trial in trials if trial is not None]
    if not found:
        return []
    signs = [trial.agrees for trial in found]
    predicted = [trial.predicted for trial in found if trial.predicted is not None]
    mean = f"{sum(predicted) / len(predicted):+.1%} predicted, " if predicted else ""
    measured = sum(trial.measured for trial in found) / len(found)
    return [
        f"- {what}: the sign is the same in {signs.count('yes')} of {len(found)} rows, the opposite in "
        f"{signs.count('no')}, no difference in {signs.count('tie')}; on average {mean}{measured:+.1%} measured."
    ]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"
