"""The models, inference and training step: the emitted programs against eager and float64.

One of each kind is in ``make test``; with the marker "slow" there are all of them, the first ten in both dtypes, the
others in their own.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn

import optfuse
from optfuse.compiler.frontend.zoo import load_model_file
from optfuse.runtime.environment import mode
from tests.oracle.judging import assert_all_pass, judge

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")

MODELS = Path(__file__).parents[2] / "models"
NAMES = ("mlp", "gpt2", "bert", "llama", "t5", "vit", "swin", "convnext", "resnet", "mobilenetv2")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}

#: What is quick enough for every run; the rest is slow.
FAST = {
    ("mlp", "train", "bf16"),
    ("resnet", "infer", "fp32"),
}
CASES = [
    pytest.param(*case, marks=() if case in FAST else pytest.mark.slow, id="-".join(case))
    for case in product(NAMES, ("infer", "train"), DTYPES)
]
OTHERS = sorted({path.stem for path in MODELS.glob("*.py")} - set(NAMES))
#: One of each kind, at their quickest.
FAST_OTHERS = {"dlrm", "gat", "rms_norm_fp8"}
OTHER_CASES = [
    pytest.param(
        name, work, marks=() if name in FAST_OTHERS and work == "infer" else pytest.mark.slow, id=f"{name}-{work}"
    )
    for name, work in product(OTHERS, ("infer", "train"))
]
OPTIONS = optfuse.SolveOptions(time_limit=3, workers=1)


def drop_nothing(model: nn.Module) -> None:
    """Turn every dropout off: which elements go would differ between dtypes."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):  # noqa: SLF001 - the one name for all of them
            module.p = 0.0
        if hasattr(module, "drop_prob"):
            module.drop_prob = 0.0


@pytest.mark.parametrize(("name", "work", "dtype"), CASES)
def test_results_gradients_and_statistics(name: str, work: str, dtype: str) -> None:
    train = work == "train"
    file = load_model_file(MODELS / f"{name}.py")
    model = file.model("small", DTYPES[dtype]).train(train)
    drop_nothing(model)
    args, kwargs = file.inputs("small", DTYPES[dtype], train=train)
    rows = judge(model, args, kwargs, train=train, options=OPTIONS)
    assert_all_pass(rows)
    if train:
        compared = {row.name.removeprefix("gradient of ") for row in rows if row.name.startswith("gradient of ")}
        assert compared == {key for key, value in model.named_parameters() if value.requires_grad}


@pytest.mark.parametrize(("name", "work"), OTHER_CASES)
def test_results_of_the_others(name: str, work: str) -> None:
    train = work == "train"
    file = load_model_file(MODELS / f"{name}.py")
    if train and not file.trains:
        pytest.skip("has no training step")
    if train and name == "lstm":
        pytest.skip("on the CPU this is refused: the library's LSTM hides what its gradient needs")
    model = file.model("small").train(train)
    drop_nothing(model)
    args, kwargs = file.inputs("small", train=train)
    assert_all_pass(judge(model, args, kwargs, train=train, options=OPTIONS))


class Scaled(nn.Module):
    """Rows over their largest element, as quantizers scale them, behind a chain that gradients compute again."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(33, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.silu(self.norm(x))
        return y.float() / y.abs().amax(-1, keepdim=True).float()


def test_the_gradient_of_a_largest_element_finds_it() -> None:
    x = torch.randn(7, 33, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    assert_all_pass(judge(Scaled().train(), (x,), train=True, options=OPTIONS))
