"""Drop each strategy of the solver in turn and write what that costs as a Markdown table.

    python benchmarks/ablation.py instances/*.json* [--time-limit 10] [--most-ops 2000] [--out TABLE.md]

One worker, one solve at a time. Every second, those of the limit too, is one of processor time, so figures taken beside
other processes can be compared. Without a strategy only those instances are solved again on which it ran: nothing
changes for the others. Instances of generated families are known by their names.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

time.monotonic = time.process_time  # before anything of optfuse or ortools looks at the clock

from optfuse.problem.serialize import load_instance  # noqa: E402
from optfuse.solver import solve_block as strategies  # noqa: E402
from optfuse.solver.control.options import SolveOptions  # noqa: E402
from optfuse.solver.solve import solve  # noqa: E402
from optfuse.solver.solve_block import STRATEGIES, Strategy, Subject  # noqa: E402
from optfuse.solver.strategies.block import BlockResult, Budget  # noqa: E402


@dataclass(frozen=True)
class Run:
    """One solve: cost and bound in picoseconds, processor seconds, and the strategies that ran."""

    cost: int
    bound: int
    seconds: float
    ran: frozenset[str]

    @property
    def proven(self) -> bool:
        """Whether the answer is optimal."""
        return self.cost == self.bound


def solved(path: Path, limit: float, dropped: str | None) -> Run:
    """The solve of an instance without the strategy of a name."""
    ran: set[str] = set()
    strategies.STRATEGIES = tuple(_noted(strategy, ran) for strategy in STRATEGIES if strategy.name != dropped)
    instance = load_instance(path)
    before = time.process_time()
    result = solve(instance, SolveOptions(time_limit=limit, workers=1))
    return Run(result.objective, result.bound, time.process_time() - before, frozenset(ran))


def _noted(strategy: Strategy, ran: set[str]) -> Strategy:
    """The strategy, which notes its name when it runs."""

    def run(subject: Subject, known: BlockResult, budget: Budget) -> BlockResult:
        ran.add(strategy.name)
        return strategy.run(subject, known, budget)

    return replace(strategy, run=run)


def row(name: str, kind: str, whole: Mapping[Path, Run], without: Mapping[Path, Run]) -> str:
    """A row of the table: proofs lost, instances dearer and the worst, bounds lower and the worst, seconds."""
    pairs = [(whole[path], run) for path, run in without.items()]
    dearer = [100 * (run.cost / full.cost - 1) for full, run in pairs if run.cost > full.cost]
    lower = [100 * (1 - run.bound / full.bound) for full, run in pairs if run.bound < full.bound]
    proofs = sum(run.proven for _, run in pairs) - sum(full.proven for full, _ in pairs)
    seconds = sum(run.seconds for _, run in pairs) - sum(full.seconds for full, _ in pairs)
    cells = (name, kind, len(pairs), f"{proofs:+d}", _worst(dearer), _worst(lower), f"{seconds:+.1f}")
    return "| " + " | ".join(map(str, cells)) + " |"


def _worst(percents: Sequence[float]) -> str:
    return f"{len(percents)}, at most {max(percents):.2f}%" if percents else "0"


def table(paths: Iterable[Path], limit: float) -> Iterable[str]:
    """The lines of the table, as they are measured."""
    whole: dict[Path, Run] = {}
    for path in paths:
        whole[path] = solved(path, limit, None)
        print(f"{path.name}: {whole[path].seconds:.2f} s", file=sys.stderr, flush=True)
    proven = sum(run.proven for run in whole.values())
    yield f"{len(whole)} instances, {proven} proven with all strategies.\n"
    yield "| without | instances | ran on | proofs | dearer | bound lower | seconds |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for name in (strategy.name for strategy in STRATEGIES):
        without = {path: solved(path, limit, name) for path, run in whole.items() if name in run.ran}
        for kind, generated in (("models", False), ("generated", True)):
            mine = {path: run for path, run in without.items() if (".generated." in path.name) == generated}
            yield row(name, kind, whole, mine)


def main() -> None:
    """Measure and print, or write to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("instances", nargs="+", type=Path, metavar="INSTANCE.json")
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="S")
    parser.add_argument("--most-ops", type=int, default=2000, metavar="N", help="leave out larger instances")
    parser.add_argument("--out", type=Path, metavar="TABLE.md")
    options = parser.parse_args()
    paths = [path for path in sorted(options.instances) if len(load_instance(path).ops) <= options.most_ops]
    lines: list[str] = []
    for line in table(paths, options.time_limit):
        print(line, flush=True)
        lines.append(line)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
