"""The figures of a batch over the zoo, in the pages that state them.

    optfuse batch models --out runs/zoo --solvers greedy,cpsat,inductor --jobs 2 --time-limit 10
    python benchmarks/zoo.py runs/zoo [MORE...]

rewrites what stands between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->`` in ``docs/results.md``,
``index.md``, ``faq.md`` and ``batch.md``. Figures that the run has no rows for stay
as they are. With ``--print`` nothing is written.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from textwrap import fill
from typing import Any

from performance import filled

from optfuse.batch.store import read_table
from optfuse.problem.serialize import load_instance
from optfuse.solver.joint.peak_bound import least_peak_bound

Row = Mapping[str, Any]

DOCS = Path(__file__).parents[1] / "docs"
#: The models of the tables that have a line a graph.
MAIN = ("mlp", "gpt2", "bert", "llama", "t5", "vit", "swin", "convnext", "resnet", "mobilenetv2")
PARTS = ("inference", "forward", "backward")
#: Less than this share of a peak is nothing to trade.
ROOM = 0.01
WIDTH = 120


class Zoo:
    """The rows of runs by graph and solver, the last run's where several have them.

    ``comparisons`` are what is known of Inductor's answers.
    """

    def __init__(self, runs: Sequence[Path]) -> None:
        found = [{**row, "run": run} for run in runs for row in read_table(run).to_pylist()]
        self.by_name: dict[tuple[str, str], Row] = {(row["graph"], row["solver"]): row for row in found}
        self.rows: list[Row] = list(self.by_name.values())
        self.solved = [row for row in self.rows if row["solver"] == "cpsat" and row["outcome"] == "ok"]
        self.comparisons: dict[str, dict[str, Any]] = {
            row["graph"]: json.loads((row["run"] / row["plan"] / "comparison.json").read_text(encoding="utf-8"))
            for row in self.rows
            if row["solver"] == "inductor" and row["outcome"] == "ok"
        }

    def main(self) -> list[Row]:
        """CP-SAT's rows of the ten main models, in the order of the tables."""
        names = [f"{model}.{part}" for model in MAIN for part in PARTS]
        rows = {row["graph"]: row for row in self.solved}
        return [rows[name] for name in names if name in rows]

    def part(self, part: str) -> list[Row]:
        """CP-SAT's rows of inference, forward or backward graphs."""
        return [row for row in self.solved if row["graph"].endswith(f".{part}")]


def price(row: Row) -> float:
    """By what share greedy's schedule is dearer than the one found."""
    return row["greedy_objective"] / row["objective"] - 1 if row["objective"] else 0.0


def graphs_text(zoo: Zoo) -> str:
    """A line a graph of the main models: greedy against CP-SAT."""
    rows = zoo.main()
    if not rows:
        return ""
    proven = [row for row in rows if row["proven"]]
    ties = [row for row in rows if row["objective"] == row["greedy_objective"]]
    lines = [
        f"{len(proven)} of {len(rows)} graphs are proven optimal under the model; the longest solve took "
        f"{max(row['solve_s'] for row in rows):.1f} s, and {len(ties)} are ties.",
        "",
        "| graph | ops | kernels | greedy, µs | optfuse, µs | saved | status | gap | seconds |",
        "|" + "---|" * 9,
    ]
    lines += [
        f"| {row['graph']} | {row['ops']:.0f} | {row['kernels']:.0f} | {us(row['greedy_objective'])} "
        f"| {us(row['objective'])} | {row['saved']:.1%} | {row['status']} | {row['gap']:.1%} | {row['solve_s']:.1f} |"
        for row in rows
    ]
    return "\n".join(lines)


def inductor_text(zoo: Zoo) -> str:
    """Inductor, greedy and CP-SAT side by side: a line a graph, then all pairs of ops pooled."""
    rows = [row for row in zoo.main() if row["graph"] in zoo.comparisons]
    if not rows:
        return ""
    every = [row for row in zoo.solved if row["graph"] in zoo.comparisons]
    pooled = [
        _pooled(zoo, f"{title}, {part or 'all'}", [row for row in some if row["graph"].endswith(part)])
        for title, some in (("ten models", rows), ("whole zoo", every))
        for part in (*PARTS, "")
    ]
    lines = [
        "| graph | ops | launches | kernels | µs | GB moved | agreement | computed once | Rand | repeated | split "
        "| unmapped |",
        "|" + "---|" * 12,
        *(_compared(zoo, row) for row in rows),
        "",
        "| pairs of all graphs pooled | graphs | agreement | computed once | Inductor here, ms | greedy, ms "
        "| solver, ms |",
        "|" + "---|" * 7,
        *(line for line in pooled if line),
        "",
        _fidelity(zoo),
    ]
    return "\n".join(lines)


def _compared(zoo: Zoo, row: Row) -> str:
    found = zoo.comparisons[row["graph"]]
    theirs, greedy = zoo.by_name[row["graph"], "inductor"], found["partitions"][1]
    three = (theirs, greedy, row)
    gap = "" if row["proven"] else f" (gap {row['gap']:.1%})"
    cells = [
        row["graph"],
        f"{row['ops']:,.0f}",
        str(found["launches"]),
        " / ".join(f"{each['kernels']:.0f}" for each in three),
        " / ".join(us(each["objective"]) for each in three) + gap,
        " / ".join(f"{each['moved_bytes'] / 1e9:.1f}" for each in three),
        f"{found['agreement']:.1%}",
        f"{found['agreement_once']:.1%}",
        f"{found['rand_index']:.4f}",
        *(str(found[name]) for name in ("repeated", "split", "unmapped")),
    ]
    return f"| {' | '.join(cells)} |"


def _pooled(zoo: Zoo, title: str, rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    found = [zoo.comparisons[row["graph"]] for row in rows]
    cells = [title, str(len(rows))]
    for prefix in ("pairs", "once_pairs"):
        both, *one = (sum(each[f"{prefix}_{side}"] for each in found) for side in ("both", "inductor", "greedy"))
        cells.append(f"{both / max(1, both + sum(one)):.1%}")
    theirs = sum(zoo.by_name[row["graph"], "inductor"]["objective"] for row in rows)
    times = (theirs, sum(row["greedy_objective"] for row in rows), sum(row["objective"] for row in rows))
    return f"| {' | '.join([*cells, *(f'{time / 1e9:.1f}' for time in times)])} |"


def _fidelity(zoo: Zoo) -> str:
    """What could not be mapped, and where Inductor's answer is the cheaper one."""
    found = zoo.comparisons

    def total(name: str) -> str:
        return f"{sum(each[name] for each in found.values()):,}"

    reasons: Counter[str] = Counter()
    for each in found.values():
        reasons.update(each["split_reasons"])
    theirs = {graph: zoo.by_name[graph, "inductor"]["objective"] for graph in found}
    greedy = [graph for graph, each in found.items() if each["partitions"][1]["objective"] > theirs[graph]]
    solver = [row["graph"] for row in zoo.solved if row["objective"] > theirs.get(row["graph"], math.inf)]
    failed = [row["graph"] for row in zoo.rows if row["solver"] == "inductor" and row["outcome"] != "ok"]
    return paragraph(
        f"Over {len(found)} graphs of the zoo {total('unmapped')} of {total('ops')} ops are unmapped, and "
        f"{total('split')} of Inductor's {total('launches')} launches are no kernel here "
        f"({', '.join(f'{count:,} by {reason}' for reason, count in reasons.most_common())}). Greedy is dearer than "
        f"Inductor's mapped partition in {len(greedy)}{named(greedy)}, the solver's answer in "
        f"{len(solver)}{named(solver)}. Of {len(failed)} graphs there is no answer of Inductor's{named(failed)}."
    )


def index_text(zoo: Zoo) -> str:
    """What the zoo says about greedy, as the front page has it."""
    inference, backward = zoo.part("inference"), zoo.part("backward")
    if not (inference and backward):
        return ""
    graphs, models = len(zoo.solved), len({row["source"] for row in zoo.solved})
    best = [row for row in zoo.solved if row["proven"] and row["objective"] == row["greedy_objective"]]
    tight = [row for row in zoo.solved if floor(zoo, row) > (1 - ROOM) * row["peak_memory_bytes"]]
    items = (
        f"**Greedy is often optimal.** Of {graphs} graphs of {models} models its schedule is proven the best one on "
        f"{len(best)}, among them {sum(row in inference for row in best)} of the {len(inference)} inference graphs "
        "([notebook](../notebooks/3_the_zoo.ipynb)).",
        f"**Where it loses, it loses to structure.** Backward graphs are {mean(map(price, backward)):.1%} dearer than "
        f"they need be on average, and up to {max(map(price, backward)):.1%}: a pointwise op can go to the reduction "
        "along rows or to the one along columns, and greedy picks by shared bytes, before it knows what the choice "
        "forces ([notebook](../notebooks/2_where_greedy_loses.ipynb)).",
        f"**Memory has a floor.** On {len(tight)} of the {graphs} graphs no schedule of any partition has a peak that "
        "is 1% lower than that of the cheapest one ([notebook](../notebooks/4_time_against_memory.ipynb)).",
    )
    return "\n".join(paragraph(f"- {item}", hang="  ") for item in items)


def ties_text(zoo: Zoo) -> str:
    """How often greedy is as good for inference."""
    rows = zoo.part("inference")
    if not rows:
        return ""
    ties = [row for row in rows if row["objective"] == row["greedy_objective"]]
    return paragraph(
        f"On {len(ties)} of the {len(rows)} inference graphs of [our zoo](../notebooks/3_the_zoo.ipynb) greedy's "
        f"schedule is as cheap as the best known one, on the others at most {max(map(price, rows)):.1%} dearer. Ties "
        "are shown as ties."
    )


def losses_text(zoo: Zoo) -> str:
    """How large the difference is on backward graphs."""
    rows = zoo.part("backward")
    if not rows:
        return ""
    return paragraph(
        f"On the {len(rows)} backward graphs of the zoo's full-size models greedy is {mean(map(price, rows)):.1%} "
        f"dearer than the best known schedule on average, and up to {max(map(price, rows)):.1%}."
    )


def batch_text(zoo: Zoo) -> str:
    """The run in which CP-SAT solved: rows, what failed, time and memory."""
    rows = [row for row in zoo.rows if row["run"] in {solved["run"] for solved in zoo.solved}]
    times = [row["finished"] for row in rows]
    outcomes = Counter(row["outcome"] for row in rows)
    shares = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    counts = [len({row[name] for row in rows}) for name in ("source", "graph", "solver")]
    proven = sum(bool(row["proven"]) for row in zoo.solved)
    ops, calls = (sum(row[name] for row in zoo.solved) for name in ("ops", "library_calls"))
    minutes = (max(times) - min(times)).total_seconds() / 60
    largest = max(row["peak_rss_bytes"] or 0 for row in rows)
    return paragraph(
        f"{counts[0]} models, {counts[1]} graphs and {counts[2]} solvers are {len(rows)} rows: {shares}. {proven} "
        f"of {len(zoo.solved)} graphs are proven optimal; they have {ops:,.0f} ops, {calls:,.0f} of them library "
        f"calls. Between the first and the last result were {minutes:.0f} minutes; the largest solver process held "
        f"{largest / 2**30:.1f} GiB."
    )


def paragraph(text: str, hang: str = "") -> str:
    """Lines of the documents' width."""
    return fill(text, WIDTH, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False)


def floor(zoo: Zoo, row: Row) -> float:
    """The peak under which no schedule of the graph gets, in bytes."""
    return least_peak_bound(load_instance(row["run"] / row["prepared"] / "instance.json"))


def us(picoseconds: float) -> str:
    """Whole microseconds."""
    return f"{picoseconds / 1e6:,.0f}"


def named(graphs: Sequence[str]) -> str:
    """A few names in brackets."""
    return f" ({', '.join(sorted(graphs))})" if 0 < len(graphs) <= 8 else ""


#: Page, and the text of each of its places.
PAGES: dict[str, dict[str, Callable[[Zoo], str]]] = {
    "results.md": {"graphs": graphs_text, "inductor": inductor_text},
    "index.md": {"zoo": index_text},
    "faq.md": {"ties": ties_text, "losses": losses_text},
    "batch.md": {"batch": batch_text},
}


def main() -> None:
    """Read the runs and rewrite the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--print", action="store_true", dest="dry", help="show the texts, write nothing")
    given = parser.parse_args()
    zoo = Zoo(given.runs)
    for name, places in PAGES.items():
        texts = {place: text(zoo) for place, text in places.items()}
        page = DOCS / name
        before = page.read_text(encoding="utf-8")
        missing = [place for place in places if not re.search(rf"<!-- figures: {place} -->", before)]
        if missing:
            raise SystemExit(
                f"{page}: no place for {', '.join(missing)}: add <!-- figures: NAME --> ... <!-- end of figures -->"
            )
        if given.dry:
            print(f"## {name}\n", *texts.values(), sep="\n")
        else:
            page.write_text(filled(before, texts), encoding="utf-8")
            print(f"{name}:", ", ".join(place for place, text in texts.items() if text) or "nothing")


if __name__ == "__main__":
    main()
