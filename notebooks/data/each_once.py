"""The MLP's backward graph as it is before cheap values are computed by their readers: for the notebook about memory.

python notebooks/data/each_once.py, from the root of the repository.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from optfuse.compiler.codegen.library_calls import takes_out
from optfuse.compiler.extract.extraction import extract
from optfuse.compiler.frontend.graph.captured import donated_inputs
from optfuse.compiler.frontend.tracing.training import capture_training
from optfuse.compiler.frontend.zoo import load_model_file
from optfuse.compiler.simplify.split_reductions import split_reductions
from optfuse.compiler.stages import lowered
from optfuse.problem.device_files import load_device
from optfuse.problem.instance import Instance
from optfuse.problem.serialize import save_instance

HERE = Path(__file__).parent


def each_once() -> Instance:
    """All the stages before the solver, but for ``inline_cheap``."""
    entry, device = load_model_file("models/mlp.py"), load_device("h200")
    args, kwargs = entry.inputs("full", train=True)
    _, backward = capture_training(entry.model("full").train(), args, kwargs, name=entry.name)
    graph = split_reductions(lowered(backward), device)
    donated = donated_inputs(backward, graph.inputs)
    instance = extract(graph, device, donated=donated, allocates=lambda call: not takes_out(call)).instance
    return replace(instance, ops=tuple(replace(op, source="") for op in instance.ops))  # paths of this machine


if __name__ == "__main__":
    save_instance(each_once(), HERE / "mlp.backward.each_once.json.gz")
