"""Models of the zoo at changing sizes: which dimensions are the batch and the length, and a check against eager."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from optfuse.compiler.frontend.zoo import load_model_file
from tests.torch_compile.test_torch_compile import Compiler
from tests.without_dropout import without_dropout

Axis = Literal["batch", "length"]
Call = tuple[tuple[Any, ...], Mapping[str, Any]]

#: Dimensions that are not the first one, by model and by the input's name or position.
BATCHES: dict[str, dict[int | str, int]] = {"dlrm": {0: 0, 1: 1, "clicks": 0}}
#: Language models, whose ids and masks have the length as their second dimension.
LENGTHS = (
    *("albert", "bart", "bert", "deberta", "distilbert", "falcon", "gemma3", "gpt2", "gptneox", "llama", "lstm"),
    *("mamba", "mamba2", "marian", "mistral", "mixtral", "modernbert", "olmoe", "opt", "phi3", "qwen3", "qwen3_moe"),
    "t5",
)

MODELS = Path(__file__).parents[2] / "models"
#: An optimizer's step has no batch; graphs whose edges name nodes by their numbers may not lose some.
NAMES = sorted(path.stem for path in MODELS.glob("*.py") if path.stem not in {"adamw", "gat", "gcn"})
CASES: list[tuple[str, Axis]] = [*((name, "batch") for name in NAMES), *((name, "length") for name in LENGTHS)]

#: Models of which each size has a schedule of its own, and why.
BY_SIZE = {
    ("mamba", "length"): "torch unrolls the scan by its length: a trace, and a schedule, for each",
}

#: Models with products of groups, of which transformers' own in float32 have a backward that no trace can follow.
GROUPED, UNTRACEABLE = frozenset({"mixtral", "olmoe", "qwen3_moe"}), "a backward that reads the values of tensors"

#: Models whose batch norms see two elements, so that gradients in float32 are rounding errors alone.
IN_FLOAT64 = frozenset({"mobilenetv2"})


def _moved(value: Any, dtype: torch.dtype, device: str) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.to(device, dtype) if value.is_floating_point() else value.to(device)


def check_at_sizes(compiled: Compiler, name: str, axis: Axis, train: bool, device: str, *, most: float) -> None:
    """Hold the compiled model to eager's outcome at the example's size and two larger ones, of one schedule a graph.

    Args:
        compiled: Compiles the model, and knows its schedules.
        name: The model's file in the zoo.
        axis: What changes.
        train: Whether gradients are compared, too.
        device: Where it runs.
        most: The largest distance that passes, relative to the largest value of its kind.
    """
    entry = load_model_file(MODELS / f"{name}.py")
    if train and not entry.trains:
        pytest.skip("does not train")
    dtype = torch.float64 if name in IN_FLOAT64 else torch.float32
    model = without_dropout(entry.model("small", torch.float32).to(device, dtype).train(train)).requires_grad_(train)
    example = entry.inputs("small", torch.float32, train=train)
    inputs: Call = pytree.tree_map(partial(_moved, dtype=dtype, device=device), example)
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
        assert apart < most, f"{where} is {apart:.1e} from eager's at {size}"
    left = [pair for run in compiled.runs for pair in (*run.record.unplanned, *run.record.by_size)]
    left = [(graph, reason) for graph, reason in left if name not in GROUPED or not reason.endswith(UNTRACEABLE)]
    assert left == [] or (name, axis) in BY_SIZE, left


def dimensions(name: str, inputs: Call, axis: Axis) -> dict[int | str, int]:
    """The dimension of each tensor among the inputs, by position or keyword, that is the batch or the length."""
    args, kwargs = inputs
    tensors = {key: value for key, value in (*enumerate(args), *kwargs.items()) if isinstance(value, Tensor)}
    if axis == "length":
        return {key: 1 for key, value in tensors.items() if value.ndim > 1}
    known = {key: dim for key, dim in BATCHES.get(name, {}).items() if key in tensors}
    return known or dict.fromkeys(tensors, 0)


def resized(inputs: Call, dims: Mapping[int | str, int], size: int) -> Call:
    """The inputs with another size of these dimensions: what they hold is repeated."""
    args, kwargs = inputs

    def other(key: int | str, value: Any) -> Any:
        if key not in dims:
            return value
        return value.index_select(dims[key], torch.arange(size, device=value.device) % value.shape[dims[key]])

    return tuple(other(k, x) for k, x in enumerate(args)), {key: other(key, x) for key, x in kwargs.items()}


def outcome(call: Any, owner: torch.nn.Module, inputs: Call, train: bool) -> dict[str, Tensor]:
    """Outputs and gradients by name."""
    owner.zero_grad(set_to_none=True)
    args, kwargs = inputs
    with torch.set_grad_enabled(train):
        leaves = [x for x in pytree.tree_leaves(call(*args, **kwargs)) if isinstance(x, Tensor)]
    found = {f"output {k}": x.detach().clone() for k, x in enumerate(leaves)}
    if train:
        leaves[0].float().sum().backward()
        found |= {f"gradient of {n}": p.grad.clone() for n, p in owner.named_parameters() if p.grad is not None}
    return found


def furthest(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> tuple[float, str]:
    """The largest distance of two outcomes, relative to the largest value of its kind, and where it is."""
    assert found.keys() == wanted.keys()
    scales: dict[str, float] = {}
    for name, value in wanted.items():
        kind = name if name.startswith("output") else "gradient"
        scales[kind] = max(scales.get(kind, 1e-6), float(value.double().abs().max()) if value.numel() else 0.0)
    apart = {
        name: float((found[name].double() - value.double()).abs().max())
        / scales[name if name.startswith("output") else "gradient"]
        for name, value in wanted.items()
        if value.numel()
    }
    worst = max(apart, key=lambda name: apart[name])
    return apart[worst], worst
