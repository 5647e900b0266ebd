"""GraphNet samples: metas are parsed, never run; graphs are captured as any model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from optfuse.compiler.frontend import capture
from optfuse.compiler.frontend.graphnet import load_sample, read_metas
from optfuse.errors import ModelFileError

MODEL = """
import torch
from torch import device

class GraphModule(torch.nn.Module):
    def forward(
        self,
        L_self_modules_fc_parameters_weight_: torch.nn.parameter.Parameter,
        s0: torch.SymInt,
        L_x_: torch.Tensor,
        L_self_buffers_scale_: torch.Tensor,
        L_ids_: torch.Tensor,
    ):
        y = torch.nn.functional.linear(L_x_, L_self_modules_fc_parameters_weight_, None)
        shift = torch.arange(s0, device=device(type='cuda', index=0))
        z = y * L_self_buffers_scale_ + shift[:, None].to(device="cuda:0")
        return (z.index_select(0, L_ids_),)
"""
METAS = """
class Program_weight_tensor_meta_w:
    name = "L_self_modules_fc_parameters_weight_"
    shape = [3, 4]
    dtype = "torch.float32"
    device = "cuda:0"
    mean = -0.5
    std = 0.01
    data = None

class Program_weight_tensor_meta_s0:
    name = "s0"
    shape = []
    dtype = "torch.int64"
    device = "cpu"
    mean = None
    std = None
    data = [5]

class Program_weight_tensor_meta_x:
    name = "L_x_"
    shape = [5, 4]
    dtype = "torch.float32"
    mean = float("nan")
    std = None
    max_val = 0.5
    data = None

class Program_weight_tensor_meta_scale:
    name = "L_self_buffers_scale_"
    shape = [3]
    dtype = "torch.float32"
    data = [1.0, float("-inf"), -2.5]

class Program_weight_tensor_meta_ids:
    name = "L_ids_"
    shape = [70]
    dtype = "torch.int64"
    min_val = 2
    max_val = 4
"""


def sample(folder: Path, model: str = MODEL, metas: str = METAS) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.py").write_text(model)
    (folder / "weight_meta.py").write_text(metas)
    (folder / "input_meta.py").write_text("")
    return folder


def test_a_sample_runs_and_is_captured(tmp_path: Path) -> None:
    file = load_sample(sample(tmp_path / "net"))
    model, (args, kwargs) = file.model(), file.inputs()

    assert (file.name, file.dtype, file.trains) == ("net", torch.float32, True)
    assert [name for name, _ in model.named_parameters()] == ["L_self_modules_fc_parameters_weight_"]
    size, x, ids = args
    assert (size, x.shape, kwargs) == (5, (5, 4), {})
    assert float(x.max()) <= 0.5
    assert set(ids.tolist()) == {2, 3, 4}
    weight = model.get_parameter("L_self_modules_fc_parameters_weight_")
    assert weight.mean().item() == pytest.approx(-0.5, abs=0.02)
    assert model.get_buffer("L_self_buffers_scale_").tolist() == [1.0, float("-inf"), -2.5]
    assert model(*args)[0].shape == (70, 3)
    captured = capture(model, args, kwargs, name="net.inference")
    assert {source.kind for source in captured.inputs} == {"parameter", "buffer", "user"}


def test_metas_are_not_run(tmp_path: Path) -> None:
    (tmp_path / "weight_meta.py").write_text("raise SystemExit('ran')\n" + METAS)
    assert len(read_metas(tmp_path / "weight_meta.py")) == 5


@pytest.mark.parametrize(
    ("metas", "message"),
    [
        (METAS.replace("[3, 4]", "list(range(3))"), "plain values only"),
        (METAS.replace('"torch.int64"', '"torch.int65"'), "malformed: AttributeError"),
        (METAS.replace("L_x_", "L_y_"), "says nothing of L_x_"),
        ("class A(:", "does not load: SyntaxError"),
    ],
)
def test_metas_that_are_wrong(tmp_path: Path, metas: str, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        load_sample(sample(tmp_path / "net", metas=metas))


@pytest.mark.parametrize(
    ("model", "message"), [("import nothing_such", "ModuleNotFoundError"), ("x = 1", "no class GraphModule")]
)
def test_models_that_are_wrong(tmp_path: Path, model: str, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        load_sample(sample(tmp_path / "net", model=model))


def test_numbers_of_the_module_are_numbers(tmp_path: Path) -> None:
    """torch.compile makes symbols and tensors of integers and floats that a module keeps."""
    model = """
import torch

class GraphModule(torch.nn.Module):
    def forward(
        self,
        L_x_: torch.Tensor,
        L_self_num_prefix_tokens: torch.SymInt,
        L_self_norm_eps: torch.Tensor,
        L_self_scaling: torch.Tensor,
        L_self_buffers_scale_: torch.Tensor,
    ):
        l_self_norm_eps = L_self_norm_eps
        eps = l_self_norm_eps.item()
        y = torch.nn.functional.layer_norm(L_x_, (4,), None, None, eps)
        y = y.masked_fill(y < -9.0, torch.tensor(-9.0)) * L_self_scaling.item()
        return (y[L_self_num_prefix_tokens:] * L_self_buffers_scale_,)
"""
    values = {
        "L_x_": ("[5, 4]", "torch.float32", None),
        "L_self_num_prefix_tokens": ("[]", "torch.int64", [2]),
        "L_self_norm_eps": ("[]", "torch.float64", [0.5]),
        "L_self_scaling": ("[]", "torch.float64", None),
        "L_self_buffers_scale_": ("[]", "torch.float32", [3.0]),
    }
    metas = "".join(
        f'class M{k}:\n    name = "{name}"\n    shape = {shape}\n    dtype = "{dtype}"\n    data = {data}\n'
        + ("    mean = 0.25\n    std = 0.0\n" if name == "L_self_scaling" else "")
        for k, (name, (shape, dtype, data)) in enumerate(values.items())
    )
    file = load_sample(sample(tmp_path / "net", model, metas))
    net, (args, kwargs) = file.model(), file.inputs()
    assert [name for name, _ in net.named_buffers()] == ["L_self_buffers_scale_"]
    captured = capture(net, args, kwargs, name="net.inference")
    assert len(captured.inputs) == 2
    torch.testing.assert_close(net(*args)[0], torch.nn.functional.layer_norm(args[0], (4,), eps=0.5)[2:] * 0.75)
