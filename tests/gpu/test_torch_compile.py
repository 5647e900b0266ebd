"""``torch.compile(model, backend="optfuse")`` on a GPU: every model of the zoo as its users run it.

Inference with weights that need no gradient, with weights that do, and a training step whose loss is taken outside of
the compiled model. Results are held to eager's own error, as in ``test_models``. Run them with ``pytest -m gpu``.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from optfuse.compiler.frontend.zoo import load_model_file
from optfuse.runtime.check.verify import ENOUGH
from optfuse.torch_compile.backend import backend
from tests.gpu.test_models import MODELS, NAMES, distances, moved, outcome
from tests.oracle.judging import in_double
from tests.without_dropout import without_dropout

pytestmark = [
    pytest.mark.usefixtures("exact_products", "graphs_at_once", "fresh_dynamo"),
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

OPTIONS = {"time_limit": 5, "workers": 2}
#: How much larger than eager's an error may be in one draw of the weights, and how many roundings always pass.
FACTOR, ROUNDINGS = 4, 30


class Runs(list[Any]):
    """A backend that keeps what it has compiled."""

    def __call__(self, graph: Any, inputs: Any, **more: Any) -> Any:
        """Compile, and remember."""
        self.append(backend(graph, inputs, **more))
        return self[-1]

    @property
    def left(self) -> list[tuple[str, str]]:
        """Graphs that run as they were traced, with the reasons."""
        return [pair for run in self for pair in run.record.unplanned]


def exact_outcome(model: nn.Module, args: Any, kwargs: Any, train: bool) -> dict[str, torch.Tensor]:
    """What the model gives in double precision."""
    wide = copy.deepcopy(model).double()
    wide_args, wide_kwargs = moved((copy.deepcopy(args), copy.deepcopy(kwargs)), torch.float64)
    found = outcome(in_double(wide), wide, wide_args, wide_kwargs, train)
    return {name: value for name, value in found.items() if value.is_floating_point()}


@pytest.mark.parametrize("kind", ["frozen", "weights", "training"])
@pytest.mark.parametrize("name", NAMES)
def test_model(name: str, kind: str) -> None:
    entry = load_model_file(MODELS / f"{name}.py")
    train = kind == "training"
    model = without_dropout(entry.model("small", entry.dtype).cuda().train(train))
    if kind != "frozen" and not any(True for _ in model.parameters()):
        pytest.skip("has no parameters")
    model.requires_grad_(kind != "frozen")
    args, kwargs = moved(entry.inputs("small", entry.dtype, train=train))
    runs = Runs()
    fast = torch.compile(model, backend=runs, options=OPTIONS)
    state = copy.deepcopy(model.state_dict())
    exact = exact_outcome(model, args, kwargs, train)
    eager = outcome(model, model, *copy.deepcopy((args, kwargs)), train)
    for call in range(3):  # launched, recorded, replayed
        model.load_state_dict(state)
        got = outcome(fast, model, *copy.deepcopy((args, kwargs)), train)
        assert {n: (x.shape, x.dtype, x.device) for n, x in got.items()} == {
            n: (x.shape, x.dtype, x.device) for n, x in eager.items()
        }
        ours, theirs = (distances({n: found[n] for n in exact}, exact) for found in (got, eager))
        eps = {n: torch.finfo(got[n].dtype).eps for n in exact}
        few = {n: 1 + 3 / math.sqrt(x.numel()) if x.numel() < ENOUGH else 1.0 for n, x in exact.items()}
        limits = {n: FACTOR * few[n] * theirs[n] + ROUNDINGS * eps[n] for n in exact}
        wrong = {n: (ours[n], theirs[n]) for n in exact if not ours[n] <= limits[n]}
        assert not wrong, (call, wrong)
    assert runs or name == "lstm"  # torch.compile leaves torch's own recurrent layers to eager execution
    assert not runs.left


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("cache", [False, True])
def test_language_models_by_default_arguments(cache: bool, train: bool) -> None:
    """Transformers' models keep a cache by default, and make constants of their own while they do."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=97,
        use_cache=cache,
    )
    model = transformers.LlamaForCausalLM(config).cuda().train(train).requires_grad_(train)
    ids = torch.randint(0, 97, (2, 16), device="cuda")
    runs = Runs()
    fast = torch.compile(model, backend=runs, options=OPTIONS)
    for _ in range(3):
        with torch.set_grad_enabled(train):
            got, wanted = fast(input_ids=ids).logits, model(input_ids=ids).logits
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        if train:
            (mine,) = torch.autograd.grad(got.square().mean(), model.model.embed_tokens.weight)
            (theirs,) = torch.autograd.grad(wanted.square().mean(), model.model.embed_tokens.weight)
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-6)
    assert not runs.left


@pytest.mark.parametrize(
    "function",
    [
        lambda: torch.arange(7) + 1,
        lambda: torch.linspace(0, 1, 7) * 2,
        lambda: (torch.arange(3), torch.arange(3, device="cuda") * 2),
        lambda: torch.ones(3).cumsum(0),
    ],
)
def test_tensors_without_a_device_stay_on_the_host(function: Any) -> None:
    got, wanted = torch.compile(function, backend="optfuse", options=OPTIONS)(), function()
    torch.testing.assert_close(got, wanted)  # devices included


def test_functions_of_the_hosts_tensors_run() -> None:
    x = torch.randn(5)
    torch.testing.assert_close(torch.compile(lambda x: x.exp() + 1, backend="optfuse")(x), x.exp() + 1)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes(mode: str) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)).cuda()
    fast, x = torch.compile(model, backend="optfuse", mode=mode), torch.randn(8, 64, device="cuda")
    for _ in range(4):
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_more_than_two_thousand_million_points(dynamic: bool) -> None:
    a = torch.ones(1, 1 << 16, dtype=torch.int8, device="cuda")
    b = torch.ones(1 << 16, 1, dtype=torch.int8, device="cuda")
    a[-1, -1] = b[-1, -1] = 2
    largest = torch.compile(lambda a, b: (a + b).max(), backend="optfuse", options=OPTIONS, dynamic=dynamic)
    assert largest(a, b) == 4
    sums = torch.compile(lambda a, b: a[:, :50_001] + b, backend="optfuse", options=OPTIONS, dynamic=dynamic)(a, b)
    assert sums[:-1].eq(2).all()
    assert sums[-1].eq(3).all()


def test_graphs_with_constants_on_the_gpu_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    counters = torch._dynamo.utils.counters["aot_autograd"]  # noqa: SLF001
    before = counters["autograd_cache_saved"]

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor([2, 3], device="cuda") + 1

    x = torch.randn(4, 2, device="cuda")  # of a training step torch 2.11 keeps none with a constant
    found = torch.compile(scaled, backend="optfuse")(x)
    torch.testing.assert_close(found, scaled(x))
    assert counters["autograd_cache_saved"] == before + 1


def test_division_by_a_negative_zero() -> None:
    x = torch.randn(100, device="cuda")
    divided = torch.compile(lambda x: (x / -0.0, x.new_full((), -0.0) / x), backend="optfuse", options=OPTIONS)
    torch.testing.assert_close(divided(x), (x / -0.0, torch.full_like(x, -0.0) / x))


def test_checkpointed_dropout_draws_the_same_numbers_again() -> None:
    """Numbers follow from a seed that the forward graph draws and keeps, so that both graphs are scheduled."""

    def region(x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(
            lambda y: nn.functional.dropout(y.exp(), 0.5).tanh() * y, x, use_reentrant=False
        )  # type: ignore[return-value]

    runs = Runs()
    fast = torch.compile(region, backend=runs, options=OPTIONS)
    dropped = []
    for _ in range(4):
        x = torch.randn(300, 400, device="cuda", requires_grad=True)
        got = fast(x)
        got.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad == 0, got == 0)
        dropped.append((got == 0).flatten())
    assert all(0.45 < one.float().mean() < 0.55 for one in dropped)
    assert not torch.equal(dropped[2], dropped[3])
    assert not runs.left
