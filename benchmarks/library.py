"""Tables and the cactus plot of the library of instances, from what ``optfuse solve`` says of them.

    python benchmarks/library_records.py instances/*.json* --time-limit 30 --out records.json
    python benchmarks/library.py records.json [MORE.json...] --out docs

writes ``docs/library.md`` and ``docs/library.svg``. Records of ``optfuse solve --json`` serve as well.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

Record = Mapping[str, Any]

SECONDS = (0.1, 0.3, 1, 3, 10, 30, 60)
HEURISTICS = ("program", "dfs", "bfs", "lpmf")
HEAD = """# The library of instances: what is proven, and what greedy fusion loses

Made by `benchmarks/library.py` from one solve of each file in [instances](../instances/README.md), with `workers=2` and
a limit of 30 s (`best_known.csv` has what earlier runs knew better). Seconds are of whole solves, the order and the
arena included, and of processor time, both workers counted, the limit too (`benchmarks/library_records.py`): other
processes had the cores at the same time. Everything is under the stated model of cost.

![How many are proven after how many seconds](library.svg)
"""


def kind_of(record: Record) -> str:
    """Inference, forward or backward for models, the family for generated instances."""
    name, _, kind = str(record["name"]).rpartition(".")
    if kind == "generated":
        return name.split("-")[0]
    return kind if name else "inference"


def loss(record: Record) -> float:
    """How much dearer greedy's schedule is than the one found."""
    return record["greedy_objective"] / record["objective"] - 1


def proven(records: Iterable[Record]) -> list[Record]:
    """Those with a proof."""
    return [record for record in records if record["status"] == "OPTIMAL"]


def greedy_seconds(record: Record) -> float:
    """When greedy was done."""
    return next(seconds for seconds, stage, *_ in record["progress"] if stage == "greedy")


def greedy_best(records: Iterable[Record]) -> list[Record]:
    """Those where greedy's schedule is proven best."""
    return [record for record in proven(records) if record["greedy_objective"] == record["objective"]]


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table, numbers to the right."""
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def kinds_table(records: Sequence[Record]) -> str:
    """A row a kind: how many, how many proven, what greedy loses."""
    kinds: dict[str, list[Record]] = {}
    for record in records:
        kinds.setdefault(kind_of(record), []).append(record)
    rows = []
    for kind, members in [*kinds.items(), ("all", list(records))]:
        sure = proven(members)
        losses = [loss(record) for record in members]
        rows.append(
            (
                kind,
                len(members),
                f"{min(r['ops'] for r in members):,} to {max(r['ops'] for r in members):,}",
                len(sure),
                f"{median(r['wall_s'] for r in members):.2f}",
                f"{max(r['gap'] for r in members):.2%}",
                f"{median(losses):.2%}",
                f"{max(losses):.2%}",
                len(greedy_best(members)),
            )
        )
    heads = "kind|instances|ops|proven|median s|worst gap|greedy dearer by: median|most|greedy proven best".split("|")
    return table(heads, rows)


def seconds_table(records: Sequence[Record]) -> str:
    """How many are proven by so many seconds."""
    heads = ["", *(f"{limit:g} s" for limit in SECONDS), "never"]
    times = [record["wall_s"] for record in proven(records)]
    greedy = [greedy_seconds(record) for record in greedy_best(records)]
    rows = [
        ("proven", *(sum(t <= limit for t in times) for limit in SECONDS), len(records) - len(times)),
        ("greedy has it", *(sum(t <= limit for t in greedy) for limit in SECONDS), len(records) - len(greedy)),
    ]
    return table(heads, rows)


def open_table(records: Sequence[Record]) -> str:
    """What is not proven, the widest gap first."""
    left = sorted((r for r in records if r["status"] != "OPTIMAL"), key=lambda r: -r["gap"])
    rows = [(r["name"], f"{r['ops']:,}", f"{r['gap']:.2%}", f"{loss(r):.2%}", f"{r['wall_s']:.0f}") for r in left]
    return table(["instance", "ops", "gap", "greedy dearer by", "s"], rows)


def losses_table(records: Sequence[Record], most: int = 15) -> str:
    """Where greedy loses most."""
    rows = [
        (
            r["name"],
            f"{r['greedy_objective'] / 1e6:,.1f}",
            f"{r['objective'] / 1e6:,.1f}",
            f"{loss(r):.2%}",
            f"{r['gap']:.2%}",
        )
        for r in sorted(records, key=loss, reverse=True)[:most]
        if loss(r) > 0
    ]
    return table(["instance", "greedy us", "found us", "greedy dearer by", "gap"], rows)


def memory_table(records: Sequence[Record]) -> tuple[str, str]:
    """A sentence on the best of the four heuristics, and a row each on how far it is from the least peak at worst."""
    known = [r for r in records if r["peak_memory_proven"] and len(r["peak_memory_by_heuristic"]) == len(HEURISTICS)]
    over = {
        name: [r["peak_memory_by_heuristic"][name] / r["peak_memory_bytes"] - 1 for r in known] for name in HEURISTICS
    }
    best = [min(r["peak_memory_by_heuristic"].values()) / r["peak_memory_bytes"] - 1 for r in known]
    rows = [
        (name, sum(value == 0 for value in values), f"{median(values):.2%}", f"{max(values):.2%}")
        for name, values in [*over.items(), ("best of the four", best)]
    ]
    sentence = (
        f"The least peak memory over all orders of the chosen kernels is proven for {len(known)} of {len(records)} "
        f"instances; the best of the four orders that Inductor picks from has it in {sum(b == 0 for b in best)} of "
        "them.\n"
    )
    return sentence, table(["order", "has the least peak", "above it: median", "most"], rows)


def document(records: Sequence[Record]) -> str:
    """The whole of ``library.md``."""
    sentence, memory = memory_table(records)
    sections = [
        HEAD,
        "## By kind\n\n" + kinds_table(records),
        "## Proven by so many seconds\n\n" + seconds_table(records),
        "## Where greedy loses most\n\n" + losses_table(records),
        "## Not proven\n\n" + open_table(records),
        f"## Peak memory\n\n{sentence}\n{memory}",
    ]
    return "\n".join(sections)


def save_cactus(records: Sequence[Record], path: Path) -> None:
    """How many instances are proven after how many seconds, and how many greedy has solved by then, unknowingly."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "optfuse"
    figure, axes = plt.subplots(figsize=(7, 4))
    curves = {
        "proven by CP-SAT": [r["wall_s"] for r in proven(records)],
        "greedy has the optimum (proven later)": [greedy_seconds(r) for r in greedy_best(records)],
    }
    for label, times in curves.items():
        ordered = sorted(max(0.01, t) for t in times)
        axes.step(ordered, range(1, len(ordered) + 1), where="post", label=label)
    axes.axhline(len(records), color="0.7", linewidth=0.8)
    axes.set(xscale="log", xlabel="seconds", ylabel="instances", ylim=(0, math.ceil(1.25 * len(records))))
    axes.legend(loc="upper left", frameon=False)
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)


def main() -> None:
    """Read records, write the document and the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    found: dict[str, Record] = {}
    for path in arguments.records:
        loaded = json.loads(path.read_text())
        for record in loaded if isinstance(loaded, list) else [loaded]:
            found[record["name"]] = record
    records = [found[name] for name in sorted(found, key=lambda name: (kind_of(found[name]), name))]
    (arguments.out / "library.md").write_text(document(records))
    save_cactus(records, arguments.out / "library.svg")


if __name__ == "__main__":
    main()
