"""From a bench's document to what is read: ratios by row, their means, prediction against measurement, tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from optfuse.lab.bench.records import COMPILED, OURS, PEERS, SYSTEMS, Record
from optfuse.lab.bench.statistics import geomean, median_or_none, relative_errors, spearman

#: Kernels that move less are judged by launches rather than by bytes.
LARGE_BYTES = 16 << 20
#: A large kernel may take so many times a copy's time.
COPY_LIMIT = 1.1
#: Kernels that a summary lists as the furthest from their copy.
WORST = 10


def summarize(document: Mapping[str, Any]) -> Record:
    """All derived figures. A ratio above 1 says that optfuse is ahead; what cannot be computed is None."""
    rows = [_row_summary(row) for row in document["rows"]]

    def mean(key: str) -> float | None:
        return geomean(row[key] for row in rows if row[key])

    speedups = [row["speedup"] for row in rows if row["speedup"]]
    return {
        "rows": rows,
        "measured_rows": len(speedups),
        "geomean_speedup": mean("speedup"),
        "worst_speedup": min(speedups, default=None),
        "geomean_triton_ratio": mean("triton_ratio"),
        "geomean_peak_memory_ratio": mean("memory_ratio"),
        "geomean_compile_ratio": mean("compile_ratio"),
        "prediction": prediction(document["kernels"], document["yardstick"]),
        **_copies(document["kernels"]),
    }


def prediction(kernels: Sequence[Mapping[str, Any]], yardstick: Mapping[str, Any]) -> Record:
    """Spearman's correlation and the median relative error of predicted kernel times, by kind of kernel.

    A kernel's predicted time has its launch: what a kernel that does nothing takes, and the gap to the next one. So the
    measured duration gets the gap.
    """
    gap = yardstick.get("gap_us", 0.0)
    found: Record = {}
    for kind in ("all", "triton", "library"):
        chosen = [k for k in kernels if kind in ("all", k["kind"]) and k["measured_us"] > 0]
        predicted = [k["predicted_us"] for k in chosen]
        measured = [k["measured_us"] + gap for k in chosen]
        found[kind] = {
            "kernels": len(chosen),
            "spearman": spearman(predicted, measured),
            "median_relative_error": median_or_none(relative_errors(predicted, measured)),
            "predicted_ms": sum(predicted) / 1e3,
            "measured_ms": sum(measured) / 1e3,
        }
    return found


def _copies(kernels: Sequence[Mapping[str, Any]]) -> Record:
    large = [
        k
        for k in kernels
        if k["kind"] == "triton" and k["read_bytes"] + k["write_bytes"] > LARGE_BYTES and k["copy_us"] > 0
    ]
    slow = sorted((k for k in large if k["copy_ratio"] > COPY_LIMIT), key=lambda k: k["copy_us"] - k["measured_us"])
    keys = ("row", "graph", "position", "name", "scheme", "x", "r", "measured_us", "copy_us", "copy_ratio", "ops")
    return {
        "large_kernels": len(large),
        "large_kernels_slower_than_limit": len(slow),
        "large_kernels_copy_ratio": (
            sum(k["measured_us"] for k in large) / sum(k["copy_us"] for k in large) if large else None
        ),
        "furthest_from_copy": [{key: k[key] for key in keys} for k in slow[:WORST]],
    }


def _row_summary(row: Mapping[str, Any]) -> Record:
    good = {name: facts for name, facts in row["systems"].items() if facts["status"] == "ok"}
    times = {name: facts["median_ms"] for name, facts in good.items()}
    peers = {name: times[name] for name in (*PEERS, "inductor-max-autotune") if name in times}
    ours = {name: times[name] for name in (*OURS, *COMPILED) if name in times}
    peer, mine = (min(side, key=lambda name: side[name], default=None) for side in (peers, ours))

    def ratio(key: str, theirs: Sequence[str], mine: Sequence[str]) -> float | None:
        above = next((good[name][key] for name in theirs if good.get(name, {}).get(key)), None)
        below = next((good[name][key] for name in mine if good.get(name, {}).get(key)), None)
        return above / below if above and below else None

    return {
        "row": row["row"],
        "times_ms": times,
        "best_peer": peer,
        "best_ours": mine,
        "speedup": peers[peer] / ours[mine] if peer and mine else None,
        "triton_ratio": ratio("triton_ms", ("inductor-graphs", "inductor"), ("optfuse-graphs", "optfuse", *COMPILED)),
        "memory_ratio": ratio("peak_bytes", ("inductor",), ("optfuse", "optfuse-compile")),
        "compile_ratio": ratio("compile_s", ("inductor",), ("optfuse", "optfuse-compile")),
        "wrong": [name for name, facts in good.items() if facts.get("check", {}).get("passed") is False],
        "failed": {name: facts["reason"] for name, facts in row["systems"].items() if facts["status"] == "failed"},
    }


def markdown(document: Mapping[str, Any]) -> str:
    """The rows as a table, and the figures over all rows below it."""
    summary = document["summary"]
    asked = [name for name in SYSTEMS if any(name in row["asked"] for row in document["rows"])]
    heads = [
        "row", *(f"{name}, ms" for name in asked), "best peer / best of ours", "ours: GPU, Triton, ms",
        "Inductor: GPU, Triton, ms", "predicted, ms", "peak memory ours / Inductor, GB", "compile ours / Inductor, s",
        "check",
    ]  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row, derived in zip(document["rows"], summary["rows"], strict=True):
        systems = row["systems"]
        ours = next((systems[name] for name in ("optfuse", *COMPILED) if name in systems), {})
        theirs = systems.get("inductor", {})
        cells = [
            row["row"],
            *(_time(systems.get(name)) for name in asked),
            _number(derived["speedup"], "x"),
            _pair(ours, "gpu_ms", "triton_ms"),
            _pair(theirs, "gpu_ms", "triton_ms"),
            _number(ours.get("predicted_ms")),
            f"{_number(_giga(ours.get('peak_bytes')))} / {_number(_giga(theirs.get('peak_bytes')))}",
            f"{_number(ours.get('compile_s'))} / {_number(theirs.get('compile_s'))}",
            _verdict(derived, ours),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *_overall(summary)])


def _overall(summary: Mapping[str, Any]) -> list[str]:
    lines = [
        f"Speed against the best peer: geomean {_number(summary['geomean_speedup'], 'x')} over "
        f"{summary['measured_rows']} rows, worst {_number(summary['worst_speedup'], 'x')}. Inductor's Triton time over "
        f"ours: {_number(summary['geomean_triton_ratio'], 'x')}. Peak memory, Inductor over ours: "
        f"{_number(summary['geomean_peak_memory_ratio'], 'x')}. Cold compile, Inductor over ours: "
        f"{_number(summary['geomean_compile_ratio'], 'x')}."
    ]
    for kind, facts in summary["prediction"].items():
        if facts["kernels"]:
            lines.append(
                f"Predicted against measured, {kind} kernels ({facts['kernels']}): Spearman "
                f"{_number(facts['spearman'])}, median relative error {_percent(facts['median_relative_error'])}, "
                f"sum {_number(facts['predicted_ms'])} ms predicted, {_number(facts['measured_ms'])} ms measured."
            )
    if summary["large_kernels"]:
        lines.append(
            f"Own kernels that move more than 16 MB: {summary['large_kernels']}, together "
            f"{_number(summary['large_kernels_copy_ratio'], 'x')} the time of copies; "
            f"{summary['large_kernels_slower_than_limit']} take more than {COPY_LIMIT}x."
        )
    for kernel in summary["furthest_from_copy"]:
        lines.append(
            f"- {kernel['row']}, {kernel['graph']} {kernel['position']} {kernel['name']} "
            f"({kernel['x']} x {kernel['r']}): "
            f"{kernel['measured_us']:.0f} us, a copy {kernel['copy_us']:.0f} us, {kernel['copy_ratio']:.2f}x"
        )
    for row in summary["rows"]:
        lines += [f"- {row['row']}, {system}: failed: {reason}" for system, reason in row["failed"].items()]
    return lines


def kernels_csv(kernels: Iterable[Mapping[str, Any]]) -> str:
    """The kernel table: one line a kernel or library call of ours."""
    rows = list(kernels)
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {key: f"{value:.4f}" if isinstance(value, float) else value for key, value in row.items()} for row in rows
        )
    return out.getvalue()


def _time(facts: Mapping[str, Any] | None) -> str:
    if facts is None:
        return ""
    if facts["status"] != "ok":
        return "failed"
    return f"{facts['median_ms']:.3f} ({facts['low_ms']:.3f}-{facts['high_ms']:.3f})"


def _verdict(derived: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    if derived["wrong"]:
        return "wrong: " + ", ".join(derived["wrong"])
    found = ours.get("check")
    if not found:
        return ""
    if found.get("passed") is None:
        return f"{found['distance_to_eager']:.1e} from eager"
    return f"{found['error']:.1e}, eager {found['eager_error']:.1e}"


def _pair(facts: Mapping[str, Any], first: str, second: str) -> str:
    return f"{facts[first]:.2f}, {facts[second]:.2f}" if first in facts else ""


def _number(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.2f}{unit}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _giga(value: float | None) -> float | None:
    return None if value is None else value / 1e9
