"""Drop each optional rewrite before the solver in turn, and write what that costs as a Markdown table.

    python benchmarks/pass_ablation.py models/*.py [--train] [--time-limit 5] [--size bench] [--out TABLE.md]

Optional rewrites are the decisions and dominances of ``simplify.pass_list``, dots (``matmul_variants``), and the
decisions of ``frontend.passes.listed``. Parameters have no memory. Without a rewrite of the frontend only those models
are captured again whose graph it changes. The objective is that of a solve with one worker, whose limit counts seconds
of processor time; a rewrite that the model of cost cannot see, such as a faster form of a library call, shows as a
small change.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

time.monotonic = time.process_time  # before anything of optfuse or ortools looks at the clock

from optfuse.compiler import stages  # noqa: E402
from optfuse.compiler.frontend import passes  # noqa: E402
from optfuse.compiler.frontend.fake_weights import fake_parameters  # noqa: E402
from optfuse.compiler.frontend.graph.captured import Captured  # noqa: E402
from optfuse.compiler.frontend.passes.listed import FRONTEND_PASSES, FrontendPass  # noqa: E402
from optfuse.compiler.frontend.tracing.inference import capture  # noqa: E402
from optfuse.compiler.frontend.tracing.training import capture_training  # noqa: E402
from optfuse.compiler.frontend.zoo import Size, load_model_file  # noqa: E402
from optfuse.compiler.simplify.pass_list import PASSES  # noqa: E402
from optfuse.solver.control.options import SolveOptions  # noqa: E402
from optfuse.solver.solve import solve  # noqa: E402

DEVICE = "h200"
DOTS = "with_dots"


@dataclass(frozen=True)
class Run:
    """One graph's solve: objective in picoseconds, launches, and whether it is proven."""

    objective: int
    kernels: int
    proven: bool


def captures(path: Path, size: Size, train: bool) -> tuple[Captured, ...]:
    """The graphs of a model file: one for inference, two for a training step."""
    entry = load_model_file(path)
    args, kwargs = entry.inputs(size, train=train)
    with fake_parameters():
        model = entry.model(size).train(train)
    if train:
        return capture_training(model, args, dict(kwargs), name=entry.name)
    return (capture(model, args, dict(kwargs), name=entry.name),)


def solved(graphs: Sequence[Captured], limit: float) -> dict[str, Run]:
    """The solve of each graph."""
    found = {}
    for graph in graphs:
        result = solve(stages.fusion_problem(graph, DEVICE).instance, SolveOptions(time_limit=limit, workers=1))
        found[graph.name] = Run(result.objective, len(result.solution.kernels), result.status == "OPTIMAL")
    return found


@contextmanager
def put(places: Sequence[tuple[Any, str]], value: Any) -> Iterator[None]:
    """Within it, the attributes at these places have another value."""
    before = [getattr(owner, name) for owner, name in places]
    for owner, name in places:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name), old in zip(places, before, strict=True):
            setattr(owner, name, old)


def without_rewrite(name: str) -> Any:
    """A context in which a rewrite of the loop graph does not run."""
    if name == DOTS:
        return put([(stages, DOTS)], lambda graph, device: graph)
    return put([(stages, "PASSES")], tuple(each for each in PASSES if each.name != name))


@contextmanager
def replaced(name: str, module: str, by: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Within it, a rewrite of the frontend is another function, made of it, wherever it is called."""
    function = getattr(import_module(f"optfuse.compiler.frontend.{module}"), name)
    users = [found for key, found in sys.modules.items() if key.startswith("optfuse.compiler.frontend") and found]
    places = [(user, name) for user in users if getattr(user, name, None) is function]
    other = by(function)
    listed = tuple(other if each is function else each for each in passes.PASSES)
    with put(places, other), put([(passes, "PASSES")], listed):
        yield


def unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    """A rewrite that returns its graph as it is."""
    return lambda graph, *_, **__: graph


def effective(path: Path, size: Size, train: bool, rewrites: Sequence[FrontendPass]) -> list[FrontendPass]:
    """The rewrites of the frontend that change a graph of a model."""
    found: set[str] = set()

    def watching(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def watched(function: Callable[..., Any]) -> Callable[..., Any]:
            def run(graph: Any, *rest: Any, **named: Any) -> Any:
                before = _text(graph)
                after = function(graph, *rest, **named)
                if _text(graph if after is None else after) != before:
                    found.add(name)
                return after

            return run

        return watched

    with ExitStack() as stack:
        for each in rewrites:
            stack.enter_context(replaced(each.name, each.module, watching(each.name)))
        captures(path, size, train)
    return [each for each in rewrites if each.name in found]


def _text(graph: Any) -> str:
    """A graph's nodes as text, whatever holds the graph."""
    while hasattr(graph, "graph"):
        graph = graph.graph
    return str(graph)


class Table:
    """What was found without each rewrite, by graph."""

    def __init__(self) -> None:
        self.pairs: dict[str, list[tuple[str, Run, Run]]] = defaultdict(list)
        self.failed: dict[str, list[str]] = defaultdict(list)

    def note(self, name: str, whole: dict[str, Run], other: dict[str, Run]) -> None:
        """Keep the graphs that differ without a rewrite."""
        self.pairs[name] += [(graph, run, other[graph]) for graph, run in whole.items() if other[graph] != run]

    def row(self, name: str) -> str:
        """A rewrite's row: graphs that change, the change of their sum, the least and the most, kernels, proofs."""
        pairs = self.pairs[name]
        percents = sorted((100 * (other.objective / run.objective - 1), graph) for graph, run, other in pairs)
        before, after = (sum(pair[k].objective for pair in pairs) for k in (1, 2))
        kernels = sum(other.kernels - run.kernels for _, run, other in pairs)
        proofs = sum(other.proven - run.proven for _, run, other in pairs)
        least, most = (f"{percents[k][0]:+.2f}% {percents[k][1]}" if pairs else "" for k in (0, -1))
        change = f"{100 * (after / before - 1):+.2f}%" if before else "0"
        cells = (name, len(pairs), change, least, most, f"{kernels:+d}", f"{proofs:+d}", len(self.failed[name]))
        return "| " + " | ".join(map(str, cells)) + " |"

    def text(self) -> str:
        """The rows of the rewrites that change a graph or cannot be dropped."""
        names = [DOTS, *(each.name for each in PASSES), *(each.name for each in FRONTEND_PASSES)]
        lines = [
            "| without | graphs that change | objective | least | most | kernels | proofs | cannot be dropped |",
            "|---|---:|---:|---:|---:|---:|---:|---:|",
            *(self.row(name) for name in names if self.pairs[name] or self.failed[name]),
        ]
        return "\n".join(lines)


def measure(path: Path, size: Size, train: bool, limit: float, table: Table) -> None:
    """Solve a model with all rewrites and without each."""
    optional = [each for each in FRONTEND_PASSES if each.kind == "decision" and each.module != "torch_bridge"]
    graphs = captures(path, size, train)
    whole = solved(graphs, limit)
    print(f"{path.stem}: {sum(run.objective for run in whole.values()) / 1e6:,.1f} us", file=sys.stderr, flush=True)
    for name in (DOTS, *(each.name for each in PASSES if each.kind != "normal form")):
        with without_rewrite(name):
            table.note(name, whole, solved(graphs, limit))
    for each in effective(path, size, train, optional):
        try:
            with replaced(each.name, each.module, unchanged):
                table.note(each.name, whole, solved(captures(path, size, train), limit))
        except Exception as error:  # later rewrites may count on an earlier one
            table.failed[each.name].append(path.stem)
            print(f"{path.stem} without {each.name}: {error}"[:200], file=sys.stderr, flush=True)


def main() -> None:
    """Measure, and print the table after each model or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.py")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--size", choices=("full", "bench", "small"), default="full")
    parser.add_argument("--time-limit", type=float, default=5.0, metavar="S")
    parser.add_argument("--out", type=Path, metavar="TABLE.md")
    options = parser.parse_args()
    table = Table()
    for path in options.models:
        try:
            measure(path, options.size, options.train, options.time_limit, table)
        except Exception as error:  # a model that needs another library
            print(f"{path.stem}: {type(error).__name__}: {error}"[:200], file=sys.stderr, flush=True)
        if options.out:
            options.out.write_text(table.text() + "\n")
    print(table.text())


if __name__ == "__main__":
    main()
