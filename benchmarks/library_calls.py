"""A table of the operators that are library calls, over model files.

    python benchmarks/library_calls.py models/*.py

captures each model at its small size, for inference and, where it trains, a training step. Nothing is solved or run.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from optfuse.compiler.frontend.captured import Captured
from optfuse.compiler.frontend.inference import capture
from optfuse.compiler.frontend.training import capture_training
from optfuse.compiler.frontend.zoo import ModelFile, load_model_file
from optfuse.compiler.ir.nodes import LibraryCall
from optfuse.compiler.stages import lowered
from optfuse.errors import OptfuseError

#: The most models that a row names.
NAMED = 4
PARTS = ("inference", "forward", "backward")


def calls(file: ModelFile) -> dict[str, Counter[str]]:
    """By graph of a model: how often it calls which operator. Whatever cannot be captured is said and left out."""
    model = file.model("small")
    args, kwargs = file.inputs("small")
    graphs: list[Captured] = [capture(model, args, kwargs, name=file.name)]
    if file.trains:
        args, kwargs = file.inputs("small", train=True)
        try:
            graphs += capture_training(model, args, kwargs, name=file.name)
        except OptfuseError as error:
            print(f"{file.name}: {error}", file=sys.stderr)
    return {part: _calls(graph) for part, graph in zip(PARTS, graphs, strict=False)}


def _calls(captured: Captured) -> Counter[str]:
    return Counter(op.target for op in lowered(captured).ops if isinstance(op, LibraryCall))


def table(found: Mapping[str, Mapping[str, Counter[str]]]) -> list[str]:
    """The rows of the table, the most frequent operator first. ``found``: by model, then by graph."""
    by_model = {model: sum(parts.values(), Counter[str]()) for model, parts in found.items()}
    total = sum(by_model.values(), Counter[str]())
    lines = [f"| operator | {' | '.join(PARTS)} | models |", "|---|" + "---|" * len(PARTS) + "---|"]
    for target, _ in sorted(total.items(), key=lambda row: (-row[1], row[0])):
        counts = [sum(parts.get(part, Counter[str]())[target] for parts in found.values()) for part in PARTS]
        having = sorted(((n[target], model) for model, n in by_model.items() if n[target]), key=lambda row: -row[0])
        named = ", ".join(f"{model} {n}" for n, model in having[:NAMED])
        more = f", {len(having) - NAMED} more" if len(having) > NAMED else ""
        name = target.removesuffix(".default").replace(".", "::", 1)
        lines.append(f"| `{name}` | {' | '.join(map(str, counts))} | {named}{more} |")
    return lines


def main(paths: Iterable[str]) -> None:
    """Print the table of some model files."""
    files: Sequence[ModelFile] = [load_model_file(path) for path in paths]
    print("\n".join(table({file.name: calls(file) for file in files})))


if __name__ == "__main__":
    main(sys.argv[1:])
