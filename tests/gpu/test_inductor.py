"""Inductor asked on a machine with a GPU, where nothing is pretended: run with ``pytest -m gpu``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from optfuse.compiler.frontend.tracing.training import capture_training
from optfuse.compiler.frontend.zoo import load_model_file
from optfuse.compiler.stages import fusion_problem
from optfuse.inductor.compare import compare, inductor_answer
from optfuse.inductor.graph_record import graph_record
from optfuse.inductor.process import run_inductor
from optfuse.problem.checker import check
from optfuse.solver.baseline.greedy import greedy
from tests.inductor.models import KERNELS, small

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MODELS = Path(__file__).parent.parent.parent / "models"


def test_the_kernels_of_a_small_model_are_those_of_the_pretended_gpu() -> None:
    captured, extraction = small()
    answer = inductor_answer(extraction, run_inductor(graph_record(captured)))
    instance = extraction.instance
    loops = [{instance.ops[op].name for op in kernel} for kernel in answer.mapped.kernels if kernel]
    assert loops == list(KERNELS)
    assert answer.groups.device == torch.cuda.get_device_name(0)


@pytest.mark.parametrize("name", ["mlp", "gpt2", "resnet", "swin"])
def test_training_graphs_are_mapped(name: str) -> None:
    entry = load_model_file(MODELS / f"{name}.py")
    args, kwargs = entry.inputs("small", train=True)
    for captured in capture_training(entry.model("small").train(), args, kwargs, name=name):
        extraction = fusion_problem(captured, "h200")
        answer = inductor_answer(extraction, run_inductor(graph_record(captured)))
        assert check(extraction.instance, answer.solution) == ()
        compared = compare(extraction, answer, greedy(extraction.instance), {})
        assert compared.fusible > 0.8 * sum(op.kind == "loop" for op in extraction.instance.ops)
