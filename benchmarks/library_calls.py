"""A table of the operators that are library calls, over model files, by predicted time.

    python benchmarks/library_calls.py models/*.py [--size full] [--device h200] [--without mm,convolution]

captures each model without memory for its parameters, for inference and, where it trains, a training step, and prices
each call by itself. Nothing is solved or run. ``--without`` leaves out operators whose name contains one of the words.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from optfuse.compiler.frontend.fake_weights import fake_parameters
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.frontend.tracing.training import capture_training
from optfuse.compiler.frontend.zoo import ModelFile, Size, known_size, load_model_file
from optfuse.compiler.ir.nodes import LibraryCall
from optfuse.compiler.stages import fusion_problem
from optfuse.errors import OptfuseError
from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import ALONE

#: The most models that a row names.
NAMED = 4
PARTS = ("inference", "forward", "backward")


@dataclass
class Calls:
    """What an operator's calls take: how often it is called by part, and picoseconds by model."""

    count: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    ps: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def total(self) -> int:
        """Picoseconds of all models."""
        return sum(self.ps.values())


def graphs_of(file: ModelFile, size: Size) -> dict[str, Captured]:
    """The graphs of a model, by part. Whatever cannot be captured is said and left out."""
    found: dict[str, Captured] = {}
    for train in (False, True) if file.trains else (False,):
        args, kwargs = file.inputs(size, train=train)
        with fake_parameters():
            model = file.model(size).train(train)
        try:
            if train:
                graphs = capture_training(model, args, dict(kwargs), name=file.name)
                found |= dict(zip(PARTS[1:], graphs, strict=True))
            else:
                found[PARTS[0]] = capture(model, args, dict(kwargs), name=file.name)
        except OptfuseError as error:
            print(f"{file.name}: {error}", file=sys.stderr)
    return found


def add_calls(found: dict[str, Calls], model: str, part: str, graph: Captured, device: str) -> None:
    """Count and price the library calls of a graph."""
    problem = fusion_problem(graph, device)
    for k, op in enumerate(problem.graph.ops):
        if isinstance(op, LibraryCall):
            calls = found.setdefault(op.target, Calls())
            calls.count[part] += 1
            calls.ps[model] += kernel_cost(problem.instance, (k,), ALONE)


def table(found: Mapping[str, Calls]) -> list[str]:
    """The rows of the table, the operator that takes longest first."""
    lines = [f"| operator | {' | '.join(PARTS)} | us | models, us |", "|---|" + "---|" * (len(PARTS) + 2)]
    for target, calls in sorted(found.items(), key=lambda row: (-row[1].total, row[0])):
        having = sorted(calls.ps.items(), key=lambda row: -row[1])
        named = ", ".join(f"{model} {ps / 1e6:,.0f}" for model, ps in having[:NAMED])
        more = f", {len(having) - NAMED} more" if len(having) > NAMED else ""
        name = target.removesuffix(".default").replace(".", "::", 1)
        counts = " | ".join(map(str, calls.count.values()))
        lines.append(f"| `{name}` | {counts} | {calls.total / 1e6:,.0f} | {named}{more} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of some model files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.py")
    parser.add_argument("--size", default="full")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--without", default="", metavar="WORDS")
    options = parser.parse_args(arguments)
    found: dict[str, Calls] = {}
    for path in options.models:
        try:
            file = load_model_file(path)
            for part, graph in graphs_of(file, known_size(options.size)).items():
                add_calls(found, file.name, part, graph, options.device)
        except Exception as error:  # a model that needs another library
            print(f"{path.stem}: {type(error).__name__}: {error}"[:200], file=sys.stderr, flush=True)
    left_out = [word for word in options.without.split(",") if word]
    print("\n".join(table({name: calls for name, calls in found.items() if not any(w in name for w in left_out)})))


if __name__ == "__main__":
    main()
