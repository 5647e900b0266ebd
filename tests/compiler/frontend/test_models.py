"""Ten of the models of ``models/`` at small size: captured inference and training against eager.

One of each kind is quick: ``tests/oracle/test_models.py`` captures others and runs them to the end in every run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from optfuse.compiler.frontend import Captured, capture, train_module
from optfuse.compiler.frontend.zoo import ModelFile, load_model_file
from tests.compiler.frontend.running import assert_same, call, copied, run_graph, targets

pytest.importorskip("transformers")

MODELS = ("bert", "convnext", "gpt2", "llama", "mlp", "mobilenetv2", "resnet", "swin", "t5", "vit")
ATTENDING = {"bert", "gpt2", "llama", "swin", "t5", "vit"}
#: Their learned position bias is a mask that needs a gradient, for which torch has no operator on the CPU.
BIASED = {"swin", "t5"}


def models(*quick: str) -> list[Any]:
    """The models; all but the quick ones are slow."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in MODELS]


def load(name: str) -> ModelFile:
    return load_model_file(Path(__file__).parents[3] / "models" / f"{name}.py")


@pytest.mark.spread(2, 1)
@pytest.mark.parametrize("name", models("convnext", "mlp"))
def test_inference_like_eager(name: str) -> None:
    file = load(name)
    model = file.model("small", torch.float32)
    args, kwargs = file.inputs("small", torch.float32)
    captured = capture(model, args, kwargs, name=f"{name}.inference")
    with torch.no_grad():
        assert_same(call(captured, model, args, kwargs), model(*args, **kwargs), rtol=1e-4, atol=1e-4)
    found = targets(captured)
    assert ("aten.scaled_dot_product_attention.default" in found) == (name in ATTENDING)
    assert found["aten.bmm.default"] <= 1  # some versions of Llama multiply positions by frequencies so
    for node in captured.graph.graph.nodes:
        if "scaled_dot_product" in str(node.target):  # the mask of T5 and Swin is their bias, no other needs one
            assert len(node.all_input_nodes) == 3 or name in BIASED


@pytest.mark.slow
@pytest.mark.parametrize("name", models("bert"))
def test_training_like_eager(name: str) -> None:
    file = load(name)
    # Float64, since batch norm over few values is ill-conditioned; float32 where torch's own attention is what counts.
    dtype = torch.float32 if name in ATTENDING else torch.float64
    model = _without_dropout(file.model("small", dtype)).train()
    eager = copied(model)
    args, kwargs = file.inputs("small", dtype, train=True)
    graphs: dict[str, Captured] = {}

    def compile_graph(captured: Captured) -> Any:
        graphs[captured.name] = captured
        return run_graph(captured)

    step = train_module(model, args, kwargs, compile_graph, name=name)
    actual, expected = step(*args, **kwargs), eager(*args, **kwargs)
    assert_same(actual["loss"], expected["loss"], rtol=1e-4, atol=1e-5)
    actual["loss"].backward()
    expected["loss"].backward()
    for (path, ours), theirs in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), path
        if theirs.grad is not None:
            assert (ours.grad - theirs.grad).norm() <= 1e-3 * theirs.grad.norm() + 1e-4, path
    assert_same(dict(model.named_buffers()), dict(eager.named_buffers()), rtol=1e-4, atol=1e-5)
    for captured in graphs.values():
        found = str(targets(captured))
        assert ("scaled_dot_product" in found) == (name in ATTENDING - {"swin"})
        assert ("optfuse.attention" in found) == (name in BIASED)
        assert targets(captured)["aten.bmm.default"] <= 1  # some versions of Llama multiply positions by frequencies so


def _without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    """Dropout and stochastic depth off: eager and a captured graph draw different numbers."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "drop_prob"):
            module.drop_prob = 0.0
    return model
