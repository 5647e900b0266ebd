"""``torch.compile(model, backend="optfuse")`` as its users meet it: training, graph breaks, sizes, odd operators."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import optfuse
from optfuse.errors import InvalidOptionError
from optfuse.runtime.environment import mode
from optfuse.torch_compile.backend import backend

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")

OPTIONS = {"time_limit": 5, "workers": 1}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()  # noqa: SLF001 - its public face
    torch.manual_seed(0)


@dataclass
class Compiler:
    """``compiled(function)`` compiles a function; ``runs`` has what the backend made, one a graph."""

    runs: list[Any] = field(default_factory=list)

    def __call__(self, function: Any, **more: Any) -> Any:
        """The compiled function."""
        return torch.compile(function, backend=self._spy, options=OPTIONS, **more)

    def _spy(self, graph: Any, inputs: Any, **more: Any) -> Any:
        self.runs.append(backend(graph, inputs, **more))
        return self.runs[-1]

    def names(self) -> list[str]:
        """The names of all schedules."""
        return [schedule.name for run in self.runs for schedule in run.record.schedules]


@pytest.fixture
def compiled() -> Compiler:
    return Compiler()


def planned(compiled: Compiler) -> bool:
    """Whether every graph was scheduled."""
    return not [pair for run in compiled.runs for pair in run.record.unplanned]


class Block(nn.Module):
    """A transformer's block in small, with a batch norm for its statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.qkv = nn.Linear(12, 36)
        self.statistics = nn.BatchNorm1d(12)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).view(2, 7, 3, 3, 4).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 7, 12)
        x = F.silu(self.statistics(x.flatten(0, 1)))
        return F.cross_entropy(self.head(x), labels)


def test_a_training_loop_is_eagers(compiled: Compiler) -> None:
    model = Block().train()
    other = copy.deepcopy(model)
    x, labels = torch.randn(2, 7, 12), torch.randint(0, 5, (14,))
    histories = []
    for module, function in ((model, compiled(model)), (other, other)):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        history = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = function(x, labels)
            loss.backward()
            optimizer.step()
            history.append(loss.item())
        histories.append(history)
    assert histories[0][-1] < histories[0][0]
    torch.testing.assert_close(torch.tensor(histories[0]), torch.tensor(histories[1]), rtol=1e-4, atol=1e-5)
    for (name, value), wanted in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    assert compiled.names() == ["compiled0.forward", "compiled0.backward"]


def test_training_then_inference(compiled: Compiler) -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
    fast = compiled(model)
    x = torch.randn(4, 5)
    model.train()
    fast(x).sum().backward()
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    assert compiled.names()[-1].endswith(".inference")


def test_graph_breaks(compiled: Compiler) -> None:
    def broken(x: Tensor) -> Tensor:
        y = torch.softmax(x, -1)
        if y.sum() > 0:  # the trace stops here, and goes on below
            y = y * 2
        print(end="")
        return y.sum(0)

    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(broken)(x), broken(x))
    assert len(compiled.runs) >= 2


@pytest.mark.slow
def test_sizes_that_change_compile_again_and_each_is_right(compiled: Compiler) -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.LayerNorm(8))
    fast = compiled(model)
    for rows in (1, 3, 8, 3):
        x = torch.randn(rows, 5, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        fast(x).square().sum().backward()
        model(y).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)


def test_dynamic_sizes_on_request(compiled: Compiler) -> None:
    fast = compiled(lambda x: torch.softmax(x, -1) * x.shape[0], dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(fast(x), torch.softmax(x, -1) * rows)


def test_numbers_that_change(compiled: Compiler) -> None:
    fast = compiled(lambda x, scale: x.exp() * scale)
    x = torch.randn(3, 4)
    for scale in (2, 3, 4.5, 5.5):
        torch.testing.assert_close(fast(x, scale), x.exp() * scale)


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("aten.sort.default", lambda x: torch.sort((x * 2).repeat(1, 30), dim=-1)[0]),
        ("aten.nanmedian.dim", lambda x: torch.nanmedian(x + 1, 0).values * 2),
        ("aten._fft_r2c.default", lambda x: torch.fft.rfft(x).abs() + 1),
        ("aten.topk.default", lambda x: torch.topk(x.exp().flatten().repeat(99), 2).values.sum()),
        ("aten._linalg_svd.default", lambda x: torch.linalg.svdvals(x) + 1),
        ("aten._cdist_forward.default", lambda x: torch.cdist(x, x + 1)),
    ],
)
def test_operators_without_a_rule_are_called_and_told(
    compiled: Compiler, caplog: pytest.LogCaptureFixture, name: str, function: Callable[..., Any]
) -> None:
    x = torch.randn(4, 6)
    with caplog.at_level(logging.INFO, logger="optfuse"):
        torch.testing.assert_close(compiled(function)(x), function(x), rtol=1e-4, atol=1e-5)
    assert name in {op for run in compiled.runs for op in run.record.library_ops}
    assert name in caplog.text
    assert "; decided before the solver: " in caplog.text


def test_gradients_through_operators_without_a_rule(compiled: Compiler) -> None:
    def function(x: Tensor) -> Tensor:
        return (torch.sort(x.exp(), dim=-1).values.cumsum(-1) * torch.fft.rfft(x).abs().sum()).mean()

    x = torch.randn(4, 6, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    compiled(function)(x).backward()
    function(y).backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)


def branching(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda y: y.exp() + 1, lambda y: y - 1, (x,))


def repeated(x: Tensor) -> Tensor:
    from torch._higher_order_ops.while_loop import while_loop

    start = torch.zeros((), dtype=torch.int64, device=x.device)
    return while_loop(lambda k, y: k < 3, lambda k, y: (k + 1, y * 2), (start, x))[1]


def scanned(x: Tensor) -> Tensor:
    from torch._higher_order_ops.scan import scan

    return scan(lambda carry, y: (carry + y, carry * y), torch.zeros(6), x)[1]


def flexible(x: Tensor) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    heads = x.repeat(32, 1).view(1, 1, 128, 6).repeat(1, 2, 1, 3)[..., :16]
    return flex_attention(heads, heads, heads, score_mod=lambda score, b, h, i, j: score + (i - j))  # type: ignore[return-value]


@torch.library.custom_op("optfuse_tests::doubled_in_place", mutates_args=("x",))
def doubled_in_place(x: Tensor) -> Tensor:
    """Returns what it read and writes twice that."""
    before = x.clone()
    x.mul_(2)
    return before


@doubled_in_place.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def written(x: Tensor) -> Tensor:
    y = x.exp()
    return doubled_in_place(y) + y


def written_input(x: Tensor) -> Tensor:
    return doubled_in_place(x) + x


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (branching, "cond"),
        (repeated, "while_loop"),
        (scanned, "scan"),
        (flexible, "flex_attention"),
        (written, "auto_functionalized"),
        (written_input, "auto_functionalized"),
    ],
)
def test_what_only_torch_can_run_costs_itself_and_nothing_else(
    compiled: Compiler, function: Callable[[Tensor], Tensor], name: str
) -> None:
    def surrounded(x: Tensor) -> Tensor:
        return torch.softmax(function(x.sin() * 2 + 1), -1) * 2

    fast = compiled(surrounded)
    for x in (torch.randn(4, 6), torch.randn(4, 6) - 9):
        torch.testing.assert_close(fast(x), surrounded(x), rtol=1e-4, atol=1e-5)
    assert planned(compiled)
    (schedule,) = [schedule for run in compiled.runs for schedule in run.record.schedules]
    assert [op.split(".")[1].startswith(name) for op in schedule.library_ops if op.startswith("optfuse_opaque")] == [
        True
    ]
    assert sum(kernel.scheme > 0 for kernel in schedule.solution.kernels) >= 2, "before it and after it"


def test_inputs_that_an_operator_writes_are_written(compiled: Compiler) -> None:
    x = torch.randn(4, 6)
    y = x.clone()
    torch.testing.assert_close(compiled(written_input)(x), written_input(y))
    torch.testing.assert_close(x, y)


@pytest.mark.spread(2)
@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_checkpointed_regions(compiled: Compiler, drop: float) -> None:
    """The random numbers of a region that is computed again in backward are those of its first time."""

    def region(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(lambda y: F.dropout(y.exp(), drop).tanh() * y, x, use_reentrant=False)  # type: ignore[return-value]

    x = torch.randn(40, 50, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    got = compiled(region)(x)
    got.sum().backward()
    assert x.grad is not None
    # where a value was dropped, its gradient is zero, and nowhere else
    assert torch.equal(x.grad == 0, got == 0)
    assert planned(compiled)
    if not drop:
        wanted = region(y)
        wanted.sum().backward()
        torch.testing.assert_close((got, x.grad), (wanted, y.grad))
    else:
        assert 0.4 < (got == 0).float().mean() < 0.6


def test_results_of_subgraphs_share_no_memory(compiled: Compiler) -> None:
    """An operator may return what it was given; the program's memory must not be."""

    @torch.library.custom_op("optfuse_tests::kept_or_made", mutates_args=("log",))
    def kept_or_made(x: Tensor, log: Tensor) -> Tensor:
        log.add_(1)
        return x + 0 * log

    kept_or_made.register_fake(lambda x, log: torch.empty_like(x))

    def function(x: Tensor, log: Tensor) -> tuple[Tensor, Tensor]:
        y = kept_or_made(x * 2, log)
        return y + 1, y.sum(0)

    log = torch.zeros(6)
    x = torch.randn(4, 6)
    got = compiled(function)(x, log)
    assert log.tolist() == [1.0] * 6
    torch.testing.assert_close(got, function(x, torch.zeros(6)))


def test_custom_operators_that_write(compiled: Compiler) -> None:
    @torch.library.custom_op("optfuse_tests::increment", mutates_args=("x",))
    def increment(x: Tensor) -> None:
        x.add_(1)

    def function(x: Tensor) -> Tensor:
        y = x.exp()
        increment(y)
        return y * 2

    x = torch.randn(4)
    torch.testing.assert_close(compiled(function)(x), function(x))


def test_sizes_that_depend_on_data(compiled: Compiler) -> None:
    def function(x: Tensor) -> Tensor:
        return (x * 2)[x > 0].sum() + torch.unique(x.round()).numel()

    x = torch.randn(5, 6)
    torch.testing.assert_close(compiled(function)(x), function(x))


def test_complex_values(compiled: Compiler) -> None:
    x = torch.randn(4, 6)

    def rotated(x: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(x.view(4, 3, 2)) * torch.polar(torch.ones(3), torch.ones(3)))

    torch.testing.assert_close(compiled(rotated)(x), rotated(x))
    assert "aten.mul.Tensor" not in {op for run in compiled.runs for op in run.record.library_ops}


@pytest.mark.parametrize("dim", [0, 1])
def test_complex_results_have_the_strides_of_eager_ones(dim: int, compiled: Compiler) -> None:
    x = torch.randn(5, 6, 7)

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.fft.ifft(x, n=8, dim=dim), torch.fft.rfft2(x).movedim(0, 2).clone()

    torch.testing.assert_close(compiled(f)(x), f(x), check_stride=True)


def test_gradients_of_complex_products_are_kernels(compiled: Compiler) -> None:
    z, x = torch.randn(3, 4, 2), torch.randn(3, 4, requires_grad=True)

    def function(x: Tensor) -> Tensor:
        turned = torch.view_as_complex(z) * torch.polar(torch.ones_like(x), x)
        return torch.view_as_real(turned).square() * torch.arange(2)

    wanted = torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(compiled(function)(x).sum(), x), wanted)
    assert {op for run in compiled.runs for op in run.record.library_ops} <= {
        "aten.view_as_real.default",
        "aten.view_as_complex.default",
    }


@pytest.mark.spread(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_dropout_in_half_types_keeps_the_share_that_is_asked_for(
    compiled: Compiler, dtype: torch.dtype, rate: float
) -> None:
    """Of numbers in bfloat16 another share exceeds a rate: of a half, 49.6% exceed 0.5."""
    torch.manual_seed(0)
    x = torch.ones(1_000_000, dtype=dtype, requires_grad=True)
    dropped = compiled(lambda x: F.dropout(x, rate))(x)
    dropped.sum(dtype=torch.float32).backward()
    kept = dropped != 0
    assert abs(kept.double().mean().item() - (1 - rate)) < 4 * (rate * (1 - rate) / 1e6) ** 0.5
    assert torch.equal(x.grad != 0, kept)
    assert torch.equal(dropped[kept].unique(), torch.tensor([1 / (1 - rate)], dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_uniform_numbers_of_half_types_are_rounded_ones(compiled: Compiler, dtype: torch.dtype) -> None:
    """As a GPU draws them: numbers of float32, rounded, and those that are then the upper end are the lower one."""
    torch.manual_seed(0)
    x = torch.ones(1_000_000, dtype=dtype)
    numbers = compiled(lambda x: torch.rand_like(x) * 1)(x)
    scaled = compiled(lambda x: torch.empty_like(x).uniform_(-1, 3))(x)
    rounded = torch.rand(1_000_000).to(dtype)
    rounded[rounded == 1] = 0
    for bound in (0.01, 0.25, 0.5, 0.75, 0.99):
        shares = [(found.double() > bound).double().mean().item() for found in (numbers, (scaled.float() + 1) / 4)]
        wanted = (rounded.double() > bound).double().mean().item()
        assert abs(shares[0] - wanted) < 6 * (wanted * (1 - wanted) / 1e6) ** 0.5
        assert abs(shares[1] - wanted) < 5e-3
    assert numbers.max() < 1
    assert scaled.max() < 3
    assert scaled.min() == -1


def test_random_numbers_follow_the_seed(compiled: Compiler) -> None:
    fast = compiled(lambda x: (F.dropout(x, 0.5), torch.rand_like(x), torch.randn(3)))
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(fast(torch.ones(40, 5)))
    for a, b, c in zip(*results, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    again = fast(torch.ones(40, 5))
    assert not torch.equal(again[1], results[2][1])
    assert not torch.equal(*[draw[1][:20] for draw in (results[0], results[2])])


def test_higher_derivatives_and_inputs_that_need_gradients(compiled: Compiler) -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    fast = compiled(lambda x, w: (x * w).sigmoid().sum(1))
    got = torch.autograd.grad(fast(x, w).sum(), (x, w))
    wanted = torch.autograd.grad((x * w).sigmoid().sum(), (x, w))
    torch.testing.assert_close(got, wanted)


def test_saved_values_survive_later_calls(compiled: Compiler) -> None:
    fast = compiled(lambda x: x.exp().tanh().sum())
    x, y = (torch.randn(4, requires_grad=True) for _ in range(2))
    first, second = fast(x), fast(y)
    second.backward()
    first.backward()
    for z in (x, y):
        (wanted,) = torch.autograd.grad(z.exp().tanh().sum(), z)
        torch.testing.assert_close(z.grad, wanted)


def test_backward_twice_over_a_kept_graph(compiled: Compiler) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 4))
    x = torch.randn(3, 4, requires_grad=True)
    loss = compiled(model)(x).tanh().sum()
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    (second,) = torch.autograd.grad(loss, x)
    (wanted,) = torch.autograd.grad(model(x).tanh().sum(), x)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, wanted)


def test_parameters_in_bf16_with_autocast(compiled: Compiler) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
    x = torch.randn(3, 8)
    fast = compiled(model)
    with torch.autocast("cpu", torch.bfloat16):
        got, wanted = fast(x), model(x)
    assert got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    fast = torch.compile(nn.Linear(3, 2), backend="optfuse", options={"time_limt": 3})
    with pytest.raises(Exception, match="did you mean 'time_limit'") as caught:
        fast(torch.randn(1, 3))
    chain = [caught.value, caught.value.__cause__, getattr(caught.value, "inner_exception", None)]
    assert any(isinstance(error, InvalidOptionError) for error in chain)


def test_a_module_keeps_its_identity(compiled: Compiler) -> None:
    model = nn.Linear(3, 2)
    fast = compiled(model)
    fast(torch.randn(1, 3)).sum().backward()
    assert next(iter(fast.parameters())) is model.weight
    assert model.weight.grad is not None


def test_sparse_gradients(compiled: Compiler) -> None:
    model = nn.Embedding(5, 3, sparse=True)
    other = copy.deepcopy(model)
    fast = compiled(model)
    for function in (fast, other):
        function(torch.tensor([1, 4, 1])).exp().sum().backward()
    assert model.weight.grad is not None
    assert other.weight.grad is not None
    assert model.weight.grad.is_sparse
    torch.testing.assert_close(model.weight.grad.to_dense(), other.weight.grad.to_dense())
    assert [name for run in compiled.runs for name, _ in run.record.unplanned] == ["compiled0.backward"]


def test_sparse_inputs(compiled: Compiler) -> None:
    def product(a: Tensor, x: Tensor) -> Tensor:
        return torch.sparse.mm(a, x) * 2

    a, x = torch.eye(4).to_sparse(), torch.randn(4, 3)
    torch.testing.assert_close(compiled(product)(a, x), product(a, x))


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "function",
    [
        lambda z: z.conj().imag + 1,
        lambda z: torch.view_as_real(z.conj().resolve_conj()) * 2,
        lambda z: z.mH @ z,
        lambda z: (z.conj(), z.imag * 2),
    ],
)
def test_conjugates_and_negatives(compiled: Compiler, function: Callable[..., Any]) -> None:
    z = torch.randn(3, 4, dtype=torch.complex64)
    torch.testing.assert_close(compiled(function)(z), function(z))


def test_custom_operators_are_library_calls(compiled: Compiler) -> None:
    @torch.library.custom_op("optfuse_tests::halved", mutates_args=())
    def halved(x: Tensor) -> Tensor:
        return x / 2

    @halved.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    x = torch.randn(4)
    torch.testing.assert_close(compiled(lambda x: halved(x.exp()) + 1)(x), x.exp() / 2 + 1)
    assert "optfuse_tests.halved.default" in {op for run in compiled.runs for op in run.record.library_ops}


@pytest.mark.spread(2)
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_modes_without_gradients(compiled: Compiler, context: Callable[[], Any]) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.GELU())
    fast = compiled(model)
    for rows in (2, 5):
        x = torch.randn(rows, 4)
        with context():
            got, wanted = fast(x), model(x)
        torch.testing.assert_close(got, wanted)
        assert (got.requires_grad, got.is_inference()) == (wanted.requires_grad, wanted.is_inference())


def test_double_backward_is_refused_in_words(compiled: Compiler) -> None:
    x = torch.randn(4, requires_grad=True)
    (grad,) = torch.autograd.grad(compiled(lambda x: x.exp().sum())(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        grad.sum().backward()


def exchange(x: Tensor, y: Tensor) -> None:
    """Only writes."""
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


def running(x: Tensor, y: Tensor) -> Tensor:
    """Reads what it overwrites, before and after."""
    before = x.sum()
    x.mul_(2).add_(y)
    y.copy_(x[0])
    return before * x.sum(1)


@pytest.mark.spread(2)
@pytest.mark.parametrize("function", [exchange, running])
@pytest.mark.parametrize("train", [False, True])
def test_tensors_are_written_in_place(function: Any, train: bool, compiled: Compiler) -> None:
    weight = torch.ones(5, requires_grad=train)

    def work(x: Tensor, y: Tensor) -> Any:
        return function(x, y), weight * 2

    tensors = [torch.randn(5, 5), torch.randn(5) if function is running else torch.randn(5, 5)]
    mine, theirs = copy.deepcopy(tensors), copy.deepcopy(tensors)
    run = compiled(work)
    for _ in range(2):
        got, wanted = run(*mine), work(*theirs)
        torch.testing.assert_close((got, mine), (wanted, theirs))


@pytest.mark.spread(3)
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.tensor(2.0) + 1,
        lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + 1,
        lambda x: x.masked_fill(torch.tensor([True, False, False, True]), 0.0).exp(),
    ],
)
def test_constants_that_the_models_code_makes(compiled: Compiler, function: Callable[..., Any], train: bool) -> None:
    x = torch.randn(3, 4, requires_grad=train)
    y = x.detach().clone().requires_grad_(train)
    got, wanted = compiled(function)(x), function(y)
    torch.testing.assert_close(got, wanted)
    if train:
        got.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert planned(compiled)


def parity(x: Tensor) -> tuple[Tensor, Tensor]:
    """Reads the bits of what it overwrites."""
    odd = (x.view(torch.int32) & 1).sum()
    x.mul_(2)
    return odd, x.view(torch.int32) + 1


def parts(z: Tensor) -> tuple[Tensor, Tensor]:
    """Reads a complex tensor as a real one before and after it is overwritten."""
    real = torch.view_as_real(z)
    before = (real + 1).sum()
    z.mul_(2)
    return before, real.sum(0)


@pytest.mark.parametrize(("function", "dtype"), [(parity, torch.float32), (parts, torch.complex64)])
def test_views_by_another_dtype_of_what_is_written(compiled: Compiler, function: Any, dtype: torch.dtype) -> None:
    x = torch.randn(4, 6, dtype=dtype)
    y = x.clone()
    torch.testing.assert_close(compiled(function)(x), function(y))
    torch.testing.assert_close(x, y)
    assert planned(compiled)


@pytest.mark.spread(3)
@pytest.mark.parametrize("function", [torch.zeros_like, torch.ones_like, lambda x: torch.full_like(x, 3.0) + 1])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 1, 2), (3, 2, 1, 0)])
def test_tensors_like_others_have_their_strides(compiled: Compiler, function: Any, order: tuple[int, ...]) -> None:
    x = torch.randn(2, 3, 4, 5).permute(order)
    got, wanted = compiled(function)(x), function(x)
    torch.testing.assert_close(got, wanted)
    assert got.stride() == wanted.stride()


def test_compiled_autograd(compiled: Compiler) -> None:
    """The backward pass of a whole step is one graph, whose saved values come in a list."""
    from torch._dynamo import compiled_autograd

    model = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 2))
    x = torch.randn(3, 4)
    with compiled_autograd._enable(compiled):  # noqa: SLF001 - as torch's own tests do
        model(x).square().sum().backward()
    got = [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    model(x).square().sum().backward()
    torch.testing.assert_close(got, [p.grad for p in model.parameters()])
    assert compiled.names()


def test_what_became_of_each_graph_can_be_asked(compiled: Compiler) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.softmax(branching(x.sin()) @ x.t(), -1)

    before = len(optfuse.compiled_graphs())
    x = torch.randn(4, 6)
    compiled(function)(x)
    compiled(lambda x: x[x > 0])(x)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):  # noqa: SLF001 - its public face
        compiled(lambda x: (x > 0).nonzero() + 1)(x)
    found = optfuse.compiled_graphs()[before:]
    assert found[0].name == "compiled0.inference"
    assert found[0].status == "OPTIMAL"
    assert found[0].predicted_us > 0
    assert found[0].kernels >= 2
    assert found[0].library_calls == {"aten.mm.default": 1}
    assert [name.split("_")[0] for name in found[0].opaque] == ["cond"]
    assert not found[0].why_not
    assert [(graph.name, bool(graph.why_not)) for graph in found[-3:]] == [
        ("compiled0.part1.inference", False),
        ("compiled0.part2", True),
        ("compiled0.part3.inference", False),
    ]
