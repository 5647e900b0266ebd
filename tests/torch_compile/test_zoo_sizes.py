"""Every model of the zoo under ``dynamic=True`` at three sizes: results are eager's, of one schedule for all."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from optfuse.compiler.frontend.zoo import load_model_file
from tests.torch_compile.test_torch_compile import Compiler, compiled
from tests.torch_compile.zoo_sizes import LENGTHS, Axis, Call, dimensions, furthest, outcome, resized

__all__ = ["compiled"]

MODELS = Path(__file__).parents[2] / "models"
#: An optimizer's step has no batch; graphs whose edges name nodes by their numbers may not lose some.
NAMES = sorted(path.stem for path in MODELS.glob("*.py") if path.stem not in {"adamw", "gat", "gcn"})
CASES: list[tuple[str, Axis]] = [*((name, "batch") for name in NAMES), *((name, "length") for name in LENGTHS)]

#: Models of which each size has a schedule of its own, or some, and why.
BY_SIZE = {
    **dict.fromkeys(
        [(name, "batch") for name in ("bart", "densenet", "marian", "mobilenetv2", "t5")],
        "training: the example's batch is so small that decisions hold for it alone; larger ones have a range",
    ),
    ("diffusion_unet", "batch"): "what made sizes differ is mended, and this one has not run to its end since",
    ("mamba", "length"): "torch unrolls the scan by its length: a trace, and a schedule, for each",
}

#: Models whose batch norms see two elements, so that gradients in float32 are rounding errors alone.
IN_FLOAT64 = frozenset({"mobilenetv2"})


def still(model: torch.nn.Module) -> torch.nn.Module:
    """The model without draws."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "attention_dropout", "hidden_dropout", "drop_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(("name", "axis"), CASES, ids=[f"{name}-{axis}" for name, axis in CASES])
@pytest.mark.spread(200, 56)
def test_models_at_sizes_that_change(compiled: Compiler, name: str, axis: Axis, train: bool) -> None:
    entry = load_model_file(MODELS / f"{name}.py")
    if train and not entry.trains:
        pytest.skip("does not train")
    dtype = torch.float64 if name in IN_FLOAT64 else torch.float32
    model = still(entry.model("small", torch.float32).to(dtype).train(train)).requires_grad_(train)
    inputs: Call = pytree.tree_map(partial(cast, dtype=dtype), entry.inputs("small", torch.float32, train=train))
    dims = dimensions(name, inputs, axis)
    key = next(iter(dims))
    hint = (inputs[0][key] if isinstance(key, int) else inputs[1][key]).shape[dims[key]]
    fast = compiled(model, dynamic=True)
    for size in (hint, hint + 3, hint + 1):
        now = resized(inputs, dims, size)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        wanted = outcome(model, model, now, train)
        for name_, buffer in model.named_buffers():
            buffer.data.copy_(buffers[name_])
        apart, where = furthest(outcome(fast, model, now, train), wanted)
        assert apart < 1e-4, where
    left = [pair for run in compiled.runs for pair in (*run.record.unplanned, *run.record.by_size)]
    assert left == [] or (name, axis) in BY_SIZE
