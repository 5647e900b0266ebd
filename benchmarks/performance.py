"""The tables of ``docs/lab/notebook/performance.md``, from what ``optfuse bench --json`` wrote.

    optfuse bench models/gpt2.py ... --both --size bench --json rows.json
    optfuse bench models/gpt2.py ... --train --size bench --only thesis --json thesis.json
    python benchmarks/performance.py rows.json thesis.json [MORE.json...] --page docs/lab/notebook/performance.md

Documents are merged, the later one's figures first. A table for which they have no figures stays as it is.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from optfuse.lab.bench.summary import COPY_LIMIT, LARGE_BYTES, markdown, prediction, summarize
from optfuse.lab.bench.thesis import thesis, thesis_markdown

Document = dict[str, Any]

#: Systems of the table of rows.
MAIN = ("eager", "inductor", "inductor-graphs", "optfuse", "optfuse-graphs")
#: Kernels by name that the table of slow ones has, the largest loss first.
LISTED = 60
#: Longer rows do not stay in registers.
ROW = 16384
KINDS = {"all": "all", "triton": "generated", "library": "library calls"}


def merged(documents: Iterable[Mapping[str, Any]]) -> Document:
    """One document of several: rows by name, systems by name, the kernels of a row from one document."""
    rows: dict[str, Document] = {}
    kernels: dict[str, list[Document]] = {}
    facts: Document = {"versions": {}, "yardstick": {}}
    for document in documents:
        for key in facts:
            facts[key] = document.get(key) or facts[key]
        for row in document["rows"]:
            known = rows.setdefault(row["row"], {**row, "asked": [], "systems": {}})
            known["asked"] = list(dict.fromkeys([*known["asked"], *row["asked"]]))
            better = {
                name: found
                for name, found in row["systems"].items()
                if found["status"] == "ok" or known["systems"].get(name, found)["status"] != "ok"
            }
            known["systems"] |= better
        for name in {kernel["row"] for kernel in document["kernels"]}:
            kernels[name] = [kernel for kernel in document["kernels"] if kernel["row"] == name]
    ordered = sorted(rows.values(), key=lambda row: (bool(row.get("train")), row["row"]))
    return {**facts, "rows": ordered, "kernels": [kernel for found in kernels.values() for kernel in found]}


def rows_table(document: Document) -> str:
    """Every row in every system, and the figures over all of them."""
    chosen = [
        {
            **row,
            "asked": [name for name in row["asked"] if name in MAIN],
            "systems": {name: facts for name, facts in row["systems"].items() if name in MAIN},
        }
        for row in document["rows"]
    ]
    measured = {**document, "rows": [row for row in chosen if "inductor" in row["asked"]]}
    if not measured["rows"]:
        return ""
    text = markdown({**measured, "summary": summarize(measured)})
    return re.split(r"\nPredicted against measured", text)[0].rstrip()


def prediction_table(document: Document) -> str:
    """How well the model tells a kernel's time, over all kernels and row by row."""
    kernels = document["kernels"]
    if not kernels:
        return ""
    lines = [
        "| kernels | number | Spearman | median relative error | predicted, ms | measured, ms |",
        "|" + "---|" * 6,
    ]
    for kind, facts in prediction(kernels, document["yardstick"]).items():
        lines.append(_prediction_line(KINDS[kind], facts))
    for row in dict.fromkeys(kernel["row"] for kernel in kernels):
        own = [kernel for kernel in kernels if kernel["row"] == row]
        lines.append(_prediction_line(row, prediction(own, document["yardstick"])["all"]))
    return "\n".join(lines)


def _prediction_line(name: str, facts: Mapping[str, Any]) -> str:
    if not facts["kernels"]:
        return f"| {name} | 0 | - | - | - | - |"
    rank = "-" if facts["spearman"] is None else f"{facts['spearman']:.3f}"
    error = f"{facts['median_relative_error']:.1%}"
    return (
        f"| {name} | {facts['kernels']} | {rank} | {error} | {facts['predicted_ms']:.2f} | {facts['measured_ms']:.2f} |"
    )


def copies_table(document: Document) -> str:
    """Generated kernels that move more than 16 MB and take more than 1.1 times a copy's time, with a cause."""
    large = [
        kernel
        for kernel in document["kernels"]
        if kernel["kind"] == "triton"
        and kernel["read_bytes"] + kernel["write_bytes"] > LARGE_BYTES
        and kernel["copy_us"] > 0
    ]
    if not large:
        return ""
    slow = [kernel for kernel in large if kernel["copy_ratio"] > COPY_LIMIT]
    groups: dict[tuple[Any, ...], list[Document]] = {}
    for kernel in slow:
        name = re.sub(r"^k\d+_", "", kernel["name"])
        key = (kernel["row"], kernel["graph"], name, kernel["scheme"], kernel["x"], kernel["r"], cause(kernel))
        groups.setdefault(key, []).append(kernel)
    ordered = sorted(groups.items(), key=lambda item: -_lost(item[1]))
    measured, copied = (sum(kernel[key] for kernel in large) for key in ("measured_us", "copy_us"))
    lines = [
        f"{len(large)} generated kernels move more than 16 MB. Together they take {measured / copied:.3f} times as "
        f"long as copies; {len(slow)} of them take more than {COPY_LIMIT} times.",
        "",
        "| cause | kernels | lost against copies, ms |",
        "|---|---|---|",
    ]
    by_cause: dict[str, list[Document]] = {}
    for kernel in slow:
        by_cause.setdefault(cause(kernel), []).append(kernel)
    for what, found in sorted(by_cause.items(), key=lambda item: -_lost(item[1])):
        lines.append(f"| {what} | {len(found)} | {_lost(found) / 1e3:.3f} |")
    lines += [
        "",
        f"The {min(LISTED, len(ordered))} kinds of them that lose most:",
        "",
        "| row | kernel | points x reduced | launches | us | a copy, us | ratio | model, us | cause |",
        "|" + "---|" * 9,
    ]
    for (row, graph, name, _, x, r, what), found in ordered[:LISTED]:
        half = graph.rpartition(".")[2] if "." in graph else ""
        mean = [sum(kernel[key] for kernel in found) / len(found) for key in ("measured_us", "copy_us", "predicted_us")]
        lines.append(
            f"| {row.removesuffix(' training')} {half} | {name} | {x} x {r} | {len(found)} | {mean[0]:.1f} "
            f"| {mean[1]:.1f} | {mean[0] / mean[1]:.2f} | {mean[2]:.1f} | {what} |"
        )
    return "\n".join(lines)


def _lost(kernels: Sequence[Mapping[str, Any]]) -> float:
    return sum(kernel["measured_us"] - kernel["copy_us"] for kernel in kernels)


def cause(kernel: Mapping[str, Any]) -> str:
    """Why a kernel is slower than a copy, as far as the model, its ops and the shape tell."""
    copied = kernel["copy_us"]
    column = re.search(r"r\[.*:(\d+)\]$", kernel["scheme"])
    if "rand_like" in kernel["ops"]:
        return "random numbers (Philox), not priced"
    if kernel["compute_us"] > max(kernel["memory_us"], copied):
        return "arithmetic (erf, tanh), priced"
    if column and column[1] != "1" and kernel["r"] > 1:
        return "sum over columns"
    if kernel["memory_us"] > COPY_LIMIT * copied:
        return "access that is not contiguous, priced"
    if kernel["r"] == 1:
        return "index arithmetic, not priced"
    return "row longer than a tile, read twice" if kernel["r"] > ROW else "row reduction"


def filled(page: str, tables: Mapping[str, str]) -> str:
    """The page with each table in its place: between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``."""

    def table(match: re.Match[str]) -> str:
        text = tables.get(match[1], "")
        return f"<!-- figures: {match[1]} -->\n\n{text}\n\n<!-- end of figures -->" if text else match[0]

    return re.sub(r"<!-- figures: (\w+) -->.*?<!-- end of figures -->", table, page, flags=re.DOTALL)


def main() -> None:
    """Read the documents and rewrite the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="+", type=Path)
    parser.add_argument("--page", type=Path, required=True)
    given = parser.parse_args()
    document = merged(json.loads(path.read_text(encoding="utf-8")) for path in given.documents)
    tables = {
        "rows": rows_table(document),
        "prediction": prediction_table(document),
        "copies": copies_table(document),
        "thesis": thesis_markdown(thesis(document)),
    }
    given.page.write_text(filled(given.page.read_text(encoding="utf-8"), tables), encoding="utf-8")
    print("filled:", ", ".join(name for name, text in tables.items() if text) or "nothing")


if __name__ == "__main__":
    main()
