"""One schedule for a range of sizes, through torch.compile: inference with a batch that changes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import RoFormerConfig, RoFormerForMaskedLM

from optfuse.compiler.ir.nodes import LibraryCall, views
from optfuse.compiler.ir.sizes import Size
from optfuse.torch_compile.backend import backend
from tests.torch_compile.test_torch_compile import Compiler, compiled

__all__ = ["compiled"]

WIDTH = 16


class Block(nn.Module):
    """Norm, attention and a feed-forward part: products, views, reductions and library calls."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, WIDTH)
        return x + self.down(F.gelu(self.up(x)))


class Images(nn.Module):
    """A convolution with batch norm, pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.convolution(x)).relu().mean((2, 3)))


def rows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.softmax(-1) * 2, x.sum(0), (x.flatten(0, 1) > 0).to(x.dtype)


def numbers(x: Tensor) -> Tensor:
    return x * torch.arange(x.shape[0]).view(-1, 1) + (torch.arange(5) * x.shape[0])


def rolled(x: Tensor) -> tuple[Tensor, Tensor]:
    """By more than its size, either way: remainders of negative numbers."""
    return x.roll([-37, 10], [0, 1]), x.roll([5])


CASES: list[tuple[Any, tuple[int, ...]]] = [
    (Block(), (6, WIDTH)),
    (Images(), (3, 9, 9)),
    (rows, (4, 7)),
    (numbers, (5,)),
    (rolled, (4,)),
]


def marked(*shape: int, axes: tuple[int, ...] = (0,)) -> Tensor:
    x = torch.randn(*shape)
    for axis in axes:
        torch._dynamo.mark_dynamic(x, axis)  # noqa: SLF001 - its public face
    return x


def schedules(compiled: Compiler) -> list[str]:
    """Names of the schedules, where no graph was compiled for each size by itself."""
    assert [pair for run in compiled.runs for pair in (*run.record.by_size, *run.record.unplanned)] == []
    return compiled.names()


def columns(x: Tensor) -> tuple[Tensor, ...]:
    """Strides that change: transposed, padded, flattened and turned."""
    return x.mT.softmax(-1), x.flatten(1) * 2, F.pad(x, (1, 2)), x.mean((0, 1)), x.flip(1) + x.mT.mT


def moved(x: Tensor) -> tuple[Tensor, Tensor]:
    return F.pad(x, (1, 2)) * 2, x.mT.flatten(1) + 1


def masked(x: Tensor) -> Tensor:
    """Attention of few heads over one of keys, under a mask that is no pattern."""
    length = x.shape[1]
    allowed = torch.arange(length)[None, :] * 3 % 5 <= torch.arange(length)[:, None]
    q = x.view(x.shape[0], length, 2, WIDTH // 2).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q[:, :1], q[:, :1], allowed[None, None], enable_gqa=True)


LENGTHS = (5, 16, 7, 20, 9, 33)


@pytest.mark.spread(6, 5)
@pytest.mark.parametrize("axes", [(1,), (0, 1)], ids=["length", "both"])
@pytest.mark.parametrize("function", [Block(), columns, masked], ids=["block", "columns", "mask"])
def test_schedules_serve_ranges_of_lengths(compiled: Compiler, function: Any, axes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    function = function.eval() if isinstance(function, nn.Module) else function
    fast = compiled(function)
    with torch.no_grad():
        for length in LENGTHS:
            x = marked(2 + length % 5 if 0 in axes else 3, length, WIDTH, axes=axes)
            torch.testing.assert_close(fast(x), function(x), rtol=1e-4, atol=1e-5)
    # a softmax over the length holds rows up to a power of two
    assert len(schedules(compiled)) <= (1 if isinstance(function, nn.Module) else 4)


@pytest.mark.slow
@pytest.mark.parametrize("axes", [(0,), (0, 1)], ids=["batch", "both"])
def test_training_steps_serve_ranges(compiled: Compiler, axes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = Block()
    fast = compiled(model)
    for length in LENGTHS[:4]:
        x = marked(2 + length % 5, length if 1 in axes else 6, WIDTH, axes=axes)
        found = []
        for step in (fast, model):
            model.zero_grad()
            loss = step(x).pow(2).mean()
            loss.backward()
            found.append([loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert schedules(compiled) == ["compiled0.forward", "compiled0.backward"]


def test_sizes_of_zero_and_one_are_traced_by_themselves(compiled: Compiler) -> None:
    fast = compiled(moved, dynamic=True)
    with torch.no_grad():
        for length in (4, 1, 6, 0, 5, 1, 0, 8):
            x = torch.randn(3, length, 7)
            torch.testing.assert_close(fast(x), moved(x))
    assert len(compiled.runs) == 3
    assert len(schedules(compiled)) <= 3


@pytest.mark.spread(5, 3)
@pytest.mark.parametrize(("function", "shape"), CASES, ids=["block", "images", "rows", "numbers", "rolled"])
def test_schedules_serve_ranges_of_batches(compiled: Compiler, function: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    function = function.eval() if isinstance(function, nn.Module) else function
    fast = compiled(function)
    with torch.no_grad():
        for batch in (3, 7, 2, 20, 5, 33, 3):
            x = marked(batch, *shape)
            torch.testing.assert_close(fast(x), function(x), rtol=1e-4, atol=1e-5)
    assert [pair for run in compiled.runs for pair in run.record.by_size] == []
    # a sum over the batch is another loop where there are few terms, and torch.compile may trace once more
    assert sum(len(run.record.schedules) for run in compiled.runs) <= 2


@pytest.mark.slow
def test_means_of_as_many_elements_as_a_size_says(compiled: Compiler) -> None:
    fast = compiled(lambda x: F.group_norm(x, 2))
    for height in (3, 4, 7):
        x = marked(2, 4, height, 3, axes=(2,))
        torch.testing.assert_close(fast(x), F.group_norm(x, 2))
    assert set(schedules(compiled)) == {"compiled0.inference"}  # one a power of two, that rows are held up to


def test_variances_with_a_fraction_as_their_correction_have_a_range(compiled: Compiler) -> None:
    def spread(x: Tensor) -> tuple[Tensor, ...]:
        return x.var(0, correction=1.3), x.std(0, correction=2)

    fast = compiled(spread)
    with torch.no_grad():
        for batch in (6, 9, 7):
            x = marked(batch, 3)
            torch.testing.assert_close(fast(x), spread(x))
    assert len(schedules(compiled)) == 1


def test_a_decision_that_depends_on_the_size_makes_another_range(compiled: Compiler) -> None:
    def function(x: Tensor) -> Tensor:
        return x.view(-1, 4) * 2 if x.shape[0] % 4 == 0 else x * 3

    fast = compiled(function)
    with torch.no_grad():
        for batch in (4, 8, 12, 5, 6, 7, 16):
            x = marked(batch)
            torch.testing.assert_close(fast(x), function(x))


def test_what_the_trace_has_asked_of_a_size_is_known_in_the_check(compiled: Compiler) -> None:
    """That there is a row 2 makes ``2 % rows`` the number 2."""
    fast = compiled(lambda x, y: torch.select_scatter(x * 2, y, 0, 2))
    with torch.no_grad():
        for batch in (5, 6, 9, 7):
            x, y = marked(batch, 4), torch.randn(4)
            torch.testing.assert_close(fast(x, y), torch.select_scatter(x * 2, y, 0, 2))
    assert len(schedules(compiled)) == 1


def rounded(x: Tensor) -> tuple[Tensor, ...]:
    """Sizes that torch computes by floats."""
    n = x.shape[0]
    wider = F.interpolate(x[None, None], scale_factor=(1.7, 0.5), mode="nearest")
    return wider, x[: math.ceil(n / 3)] * 2, x[math.floor(n * 0.25) :].cos(), x[: int(0.6 * n)].sum(0)


def measured(x: Tensor) -> tuple[Tensor, ...]:
    """Sizes that are distances, rounded to the nearest, and multiples below."""
    n, m = x.shape
    return x[: abs(n - m)] * abs(n - m), x[: round(n / 4)] + 1, x[round(0.5 * n) :].cos(), x[: n & -4].sum(0) * (n & 3)


@pytest.mark.parametrize(
    ("function", "columns", "batches"),
    [(rounded, 6, (20, 19, 26, 10, 15, 23)), (measured, 16, (20, 19, 26, 10, 23, 11))],
)
def test_sizes_that_are_computed_by_floats_distances_and_bits_have_a_range(
    compiled: Compiler, function: Callable[[Tensor], tuple[Tensor, ...]], columns: int, batches: Sequence[int]
) -> None:
    fast = compiled(function)
    with torch.no_grad():
        for batch in batches:
            x = marked(batch, columns)
            torch.testing.assert_close(fast(x), function(x))
    assert len(schedules(compiled)) <= 3


def test_a_graph_that_has_no_range_is_compiled_size_by_size_and_says_why(compiled: Compiler) -> None:
    def roots(x: Tensor) -> Tensor:
        return x[: int(math.sqrt(x.shape[0]))] + 1

    fast = compiled(roots)
    with torch.no_grad():
        for batch in (9, 26, 17):
            x = marked(batch, 3)
            torch.testing.assert_close(fast(x), roots(x))
    (run,) = compiled.runs
    names, reasons = zip(*run.record.by_size, strict=True)
    assert set(names) == {"compiled0"}
    assert all("is no product of a size and a fraction" in reason for reason in reasons)
    assert len(run.record.schedules) == 3


def test_windows_of_one_memory_move_with_the_size(compiled: Compiler) -> None:
    def windows(x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        return y[1:], y[:-1], y.t()

    fast = compiled(windows)
    with torch.no_grad():
        for batch in (4, 6, 5, 6):
            x = marked(batch, 3)
            got, wanted = fast(x), windows(x)
            torch.testing.assert_close(got, wanted)
            for results in (got, wanted):
                results[0].mul_(2)
            torch.testing.assert_close(got, wanted)
    assert schedules(compiled) == ["compiled0.inference"]


def test_ranges_can_be_left_out() -> None:
    made: list[Any] = []

    def spy(graph: Any, inputs: Any, **more: Any) -> Any:
        made.append(backend(graph, inputs, **more))
        return made[-1]

    fast = torch.compile(rows, backend=spy, options={"ranges": False})
    with torch.no_grad():
        for batch in (3, 4):
            x = marked(batch, 4, 7)
            torch.testing.assert_close(fast(x), rows(x))
    assert len(made[0].record.schedules) == 2


@pytest.mark.slow
def test_a_float_that_is_a_symbol_keeps_its_value_in_a_range(compiled: Compiler) -> None:
    """Under ``dynamic=True`` Dynamo makes symbols of floats, too; each value has ranges of its own."""

    def scaled(x: Tensor, factor: float) -> Tensor:
        return (x * factor).softmax(-1) + factor

    fast = compiled(scaled, dynamic=True)
    with torch.no_grad():
        for factor in (2.5, 0.5, 2.5):
            for rows in (4, 7, 9):
                x = torch.randn(rows, 6)
                torch.testing.assert_close(fast(x, factor), scaled(x, factor))
    assert len(schedules(compiled)) == 2
    made = [schedule for run in compiled.runs for schedule in run.record.schedules]
    assert all(len(schedule.graph.inputs) == 1 for schedule in made)  # Dynamo hands the float over as a tensor


def test_integers_that_are_no_sizes_keep_their_values_and_equal_sizes_change_together(compiled: Compiler) -> None:
    """Among the symbols of ``dynamic=True``: -100, 0, and a label for each row of the logits."""

    def loss(logits: Tensor, labels: Tensor, ignored: int, kept: int) -> Tensor:
        rows = logits[:, slice(-kept, None)].flatten(0, 1)
        return F.cross_entropy(rows, F.pad(labels, (0, 1), value=ignored)[:, 1:].flatten(), ignore_index=ignored)

    fast = compiled(loss, dynamic=True)
    for batch, length in ((2, 9), (3, 9), (4, 7)):
        logits, labels = torch.randn(batch, length, 11, requires_grad=True), torch.randint(0, 11, (batch, length))
        found = [torch.autograd.grad(call(logits, labels, -100, 0), logits) for call in (fast, loss)]
        torch.testing.assert_close(*found)
    assert schedules(compiled) == ["compiled0.forward", "compiled0.backward"]


def test_an_integer_that_changes_is_an_argument(compiled: Compiler) -> None:
    def placed(x: Tensor, place: int) -> Tensor:
        return x * place + torch.arange(place, place + x.shape[0]).view(-1, 1)

    fast = compiled(placed, dynamic=True)
    with torch.no_grad():
        for rows, place in ((4, 0), (4, 3), (5, 7), (6, 11), (4, 12), (7, 19), (4, 20), (5, 21), (6, 22), (7, 23)):
            x = torch.randn(rows, 3)
            torch.testing.assert_close(fast(x, place), placed(x, place))
    # of 0, of the first number, and of all later ones
    assert len(schedules(compiled)) <= 3


def counts(x: Tensor) -> tuple[Tensor, int, float, bool]:
    return x * 2, x.shape[0] * x.shape[1] - 1, x.shape[0] / 2, x.shape[0] > 4


class Scaled(torch.autograd.Function):
    """A forward pass that computes nothing and keeps two numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, number: int) -> Tensor:
        ctx.numbers = number, x.shape[0]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        number, rows = ctx.numbers
        return gradients[0] * number * rows, None


def test_results_that_are_numbers_are_those_of_the_sizes_that_come(compiled: Compiler) -> None:
    fast = compiled(counts, dynamic=True)
    for size in (5, 6, 3, 7):
        x = torch.randn(size, 3)
        found, expected = fast(x), counts(x)
        assert found[1:] == expected[1:]
        assert [type(number) for number in found[1:]] == [int, float, bool]
    kept = compiled(lambda x, number: (Scaled.apply(x, number), number + 1), dynamic=True)
    for size, number in ((3, 2), (4, 7), (5, 8)):
        x = torch.randn(size, requires_grad=True)
        result, following = kept(x, number)
        assert (type(following), following) == (int, number + 1)
        torch.testing.assert_close(torch.autograd.grad(result.sum(), x)[0], torch.full((size,), float(size * number)))


def test_a_size_that_a_guard_holds_leaves_a_range_of_the_others(compiled: Compiler) -> None:
    def pairs(x: Tensor) -> Tensor:
        return x.unflatten(1, (2, 1))[:, :, 0].softmax(0) if x.shape[1] == 2 else x

    fast = compiled(pairs, dynamic=True)
    with torch.no_grad():
        for rows in (5, 7, 6):
            x = torch.randn(rows, 2)
            torch.testing.assert_close(fast(x), pairs(x))
    assert schedules(compiled) == ["compiled0.inference"]


def of_sizes(x: Tensor) -> tuple[Tensor, ...]:
    """Floats that are computed of sizes, and tensors filled with them."""
    n = x.numel() / x.shape[1]
    return x * (n / (n - 1)), torch.full((2,), n / 3), x.sum() / n + 1 / n


class Statistics(nn.Module):
    """A batch norm that estimates a variance of all images' pixels: a factor n / (n - 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x).relu()


def test_floats_of_sizes_are_computed_in_kernels(compiled: Compiler) -> None:
    fast = compiled(of_sizes)
    for size in (4, 7, 29, 2):
        x = marked(size, 5)
        torch.testing.assert_close(fast(x), of_sizes(x))
    assert schedules(compiled) == ["compiled0.inference"]


def test_a_size_may_be_that_of_no_buffer(compiled: Compiler) -> None:
    """The gradient of a mean is one number, divided by a size and expanded to it."""
    fast = compiled(lambda x: x.sum() / x.shape[0])
    for size in (4, 7, 29, 2):
        x = marked(size).requires_grad_()
        fast(x).backward()
        torch.testing.assert_close(x.grad, torch.full((size,), 1 / size))
    assert schedules(compiled) == ["compiled0.forward", "compiled0.backward"]


def test_running_statistics_serve_a_range_of_batches(compiled: Compiler) -> None:
    model, other = Statistics().train(), Statistics().train()
    fast = compiled(model)
    for size in (5, 3, 4):
        x = marked(size, 16, 19, 19)
        torch.testing.assert_close(fast(x), other(x))
        torch.testing.assert_close(model.norm.running_var, other.norm.running_var)
    assert schedules(compiled) == ["compiled0.forward", "compiled0.backward"]


def test_a_batch_as_large_as_the_channels_is_in_the_range(compiled: Compiler) -> None:
    """The pass that lets go of the pooled input compares it with weights, too: without a guard."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(16, 8, 1)
    )
    fast = compiled(model)
    for size in (20, 16):
        fast(marked(size, 3, 9, 9)).square().mean().backward()
    assert schedules(compiled) == ["compiled0.forward", "compiled0.backward"]


@pytest.mark.slow
def test_a_batch_may_be_larger_than_the_length(compiled: Compiler) -> None:
    """Axes with equal steps are not compared by their sizes: in RoFormer those of the batch and the length."""
    config = RoFormerConfig(
        **dict.fromkeys(("vocab_size", "max_position_embeddings"), 64),
        **dict.fromkeys(("hidden_size", "embedding_size", "intermediate_size"), 32),
        **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    model = RoFormerForMaskedLM(config)
    fast = compiled(model, dynamic=True)
    for size in ((3, 24), (32, 9)):
        ids = torch.randint(3, 60, size)
        result = fast(input_ids=ids).logits
        torch.testing.assert_close(result, model(input_ids=ids).logits)
        result.square().mean().backward()
    assert schedules(compiled) == ["compiled0.forward", "compiled0.backward"]


class Embedded(nn.Module):
    """A table whose gradient is computed otherwise where fewer rows than it has meet in it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(30, 8), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids)).square().mean()


@pytest.mark.slow
def test_choices_for_speed_are_those_of_the_first_size(compiled: Compiler) -> None:
    """At 2 rows of 9 ids, fewer than the table's; at 4 more."""
    model = Embedded()
    fast = compiled(model)
    for rows in (2, 4, 9, 3):
        ids = torch.randint(0, 30, (rows, 9))
        torch._dynamo.mark_dynamic(ids, 0)  # noqa: SLF001 - its public face
        gradients = []
        for function in (fast, model):
            model.zero_grad()
            function(ids).backward()
            gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        torch.testing.assert_close(*gradients)
    assert schedules(compiled) == ["compiled0.forward", "compiled0.backward"]


def test_gradients_of_a_table_larger_than_its_tokens_serve_a_range(compiled: Compiler) -> None:
    """Their rows are added up at the tokens: there are as many as tokens come."""
    table = nn.Embedding(40_000, 32)
    fast = compiled(table)
    for length in (6, 9, 5):
        tokens = torch.randint(40_000, (2, length))
        torch._dynamo.mark_dynamic(tokens, 1)  # noqa: SLF001 - its public face
        [theirs], [ours] = (
            torch.autograd.grad(run(tokens).square().sum(), list(table.parameters())) for run in (table, fast)
        )
        torch.testing.assert_close(ours, theirs)
    assert schedules(compiled) == ["compiled0.forward", "compiled0.backward"]


def cut(x: Tensor) -> tuple[Tensor, ...]:
    """Sums over images that are cut from larger ones: a part of the sum is an image, or a part of one."""
    y = x[:, 1:15, 1:15] * 2
    return y, y.sum((0, 1, 2)), (y * y).sum((0, 1, 2))


def prime(x: Tensor) -> tuple[Tensor, ...]:
    """Sums over a prime number of tokens of each image: as many parts as tokens."""
    y = x.cos()
    return y, y.sum((0, 1))


@pytest.mark.parametrize(
    ("function", "shape", "parts"), [(cut, (6, 16, 16, 32), "(s*2)"), (prime, (64, 197, 8), "197")]
)
def test_parts_of_long_sums_are_right_at_every_size(
    compiled: Compiler, function: Any, shape: tuple[int, ...], parts: str
) -> None:
    fast, (batch, *rest) = compiled(function), shape
    for images in (batch, batch + 3, 2, 2 * batch + 1):
        x = marked(images, *rest).double()
        torch._dynamo.mark_dynamic(x, 0)  # noqa: SLF001 - its public face
        torch.testing.assert_close(fast(x), function(x))
    assert schedules(compiled) == ["compiled0.inference"]
    [schedule] = compiled.runs[0].record.schedules
    partial = [buffer for buffer in schedule.graph.buffers if "_partial" in buffer.name]
    assert {re.sub(r"s\d+", "s", str(buffer.shape[0])) for buffer in partial} == {parts}


def last_rows(x: Tensor) -> Tensor:
    """A window whose offset is a size's, read beyond its end."""
    return F.pad(x[:, -2:], (0, 0, 1, 0)) + F.pad(x.flatten()[x.shape[0] * 3 :], (2, 0)).sum()


def test_rows_that_64_divides_are_in_one_range_with_others(compiled: Compiler) -> None:
    """Their sum is split into parts of 64 rows, which readers of the rows share: a choice for speed, and no guard."""

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.router = nn.LayerNorm(32), nn.Linear(32, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            normed = self.norm(x)
            return normed, self.router(normed).softmax(-1)

    module = Routed()
    fast = compiled(module)
    for count in (4096, 3966):
        x = marked(count, 32)
        found = []
        for run in (fast, module):
            module.zero_grad()
            normed, shares = run(x)
            (normed.square().sum() + shares.square().sum()).backward()
            found.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert schedules(compiled) == ["compiled0.forward", "compiled0.backward"]


def test_offsets_that_change_are_formulas(compiled: Compiler) -> None:
    fast = compiled(last_rows)
    for size in (4, 7, 3):
        x = marked(size, 6, 3)
        torch.testing.assert_close(fast(x), last_rows(x))
    assert schedules(compiled) == ["compiled0.inference"]


def shifted(tokens: Tensor, targets: Tensor) -> Tensor:
    return (tokens.cumsum(1) - targets).abs().sum(1) + tokens.as_strided((2, 1), (3, 1)).sum()


def test_windows_of_batches_serve_a_range(compiled: Compiler) -> None:
    """All tokens but the last and all but the first, of rows from anywhere: strides are no sizes, and offsets move."""
    fast = compiled(shifted, dynamic=True)
    for first, batch, length, width in (
        (0, 8, 12, 30),
        (8, 7, 12, 30),
        (16, 4, 9, 19),
        (13, 20, 21, 30),
        (3, 17, 12, 25),
    ):
        data = torch.randint(9, (40, width))[first : first + batch]
        tokens, targets = data[:, : length - 1], data[:, 1:length]
        torch.testing.assert_close(fast(tokens, targets), shifted(tokens, targets))
    assert not any("[" in name for name in schedules(compiled))


def test_strides_that_change_are_formulas_in_training_steps(compiled: Compiler) -> None:
    """Each batch is a part of one that is padded to a length and a width of its own."""

    def step(x: Tensor, weight: Tensor) -> Tensor:
        return (x @ weight).relu() + x.sum()

    fast = compiled(step, dynamic=True)
    weight = torch.randn(4, 3).requires_grad_()
    for batch, length, width in ((3, 5, 7), (4, 6, 9), (2, 9, 6), (6, 5, 11)):
        x = torch.randn(batch, length + 2, width)[:, 1:-1, 1:5]
        got, wanted = (torch.autograd.grad(f(x, weight).square().sum(), weight) for f in (fast, step))
        torch.testing.assert_close(got, wanted)
    assert not any("[" in name for name in schedules(compiled))


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_places_in_an_arguments_memory_are_those_of_the_call(dynamic: bool | None) -> None:
    """``as_strided`` counts from the beginning of the memory, wherever the argument begins."""

    def second(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.as_strided((2,), (1,), 3) + 1, x * 2

    fast = torch.compile(second, backend=backend, dynamic=dynamic, options={"time_limit": 5, "workers": 1})
    data = torch.arange(800.0).view(40, 20)
    with torch.no_grad():
        for first, last, width in ((0, 4, 20), (4, 8, 20), (9, 12, 8), (20, 23, 8), (0, 4, 8)):
            x = data[first:last, :width]
            torch.testing.assert_close(fast(x), second(x))


def test_products_of_our_own_serve_a_range_of_rows(compiled: Compiler) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(32, 128).bfloat16()

    def gated(x: Tensor, y: Tensor) -> Tensor:
        return torch.erf(layer(x)) * y

    fast = compiled(gated)
    with torch.no_grad():
        for rows in (4000, 2, 130, 257):
            x, y = (torch.randn(rows, columns).bfloat16() for columns in (32, 128))
            torch._dynamo.mark_dynamic(x, 0)  # noqa: SLF001 - its public face
            torch._dynamo.mark_dynamic(y, 0)  # noqa: SLF001
            torch.testing.assert_close(fast(x, y), gated(x, y), rtol=2e-2, atol=2e-2)
    assert schedules(compiled) == ["compiled0.inference"]
    (schedule,) = compiled.runs[0].record.schedules
    assert "tl.dot(" in schedule.source
    assert not schedule.library_ops


def test_patches_of_images_have_the_filters_size_in_a_range(compiled: Compiler) -> None:
    torch.manual_seed(0)
    patches = nn.Conv2d(3, 16, 4, stride=4).bfloat16().eval()
    fast = compiled(patches, dynamic=True)
    with torch.no_grad():
        for height, width in ((16, 20), (18, 23), (25, 31)):
            x = torch.randn(3, 3, height, width).bfloat16()
            torch.testing.assert_close(fast(x), patches(x), rtol=2e-2, atol=2e-2)
    assert schedules(compiled)
    for schedule in compiled.runs[0].record.schedules:  # the filter's size is a number, no quotient of the image's
        (left, _) = [view for op in schedule.graph.ops if isinstance(op, LibraryCall) for view in views(op)][-2:]
        assert left.shape[1] == 48
        assert not isinstance(left.shape[1], Size)


def branched(x: Tensor) -> Tensor:
    y = x.flatten()[1:] * 2
    return torch.cond(y.sum() > 0, lambda a: a.sin() + a.shape[0] * x.shape[1], lambda a: a.cos(), (y,)).relu()


def looped(x: Tensor) -> Tensor:
    start = (torch.zeros((), dtype=torch.int64), x + x.shape[0])
    _, y = torch._higher_order_ops.while_loop(  # noqa: SLF001 - its public face
        lambda i, _: i < 3, lambda i, y: (i + 1, y * 1.5 + x.shape[1]), start
    )
    return y * 2


@pytest.mark.parametrize(("function", "learns"), [(branched, False), (branched, True), (looped, False)])
def test_control_flow_is_given_the_sizes_of_the_call(compiled: Compiler, function: Any, learns: bool) -> None:
    fast = compiled(function, dynamic=True)
    for shape in ((4, 5), (7, 5), (3, 6)):
        x = torch.randn(shape).requires_grad_(learns)
        results = [run(x) for run in (fast, function)]
        torch.testing.assert_close(*results)
        if learns:
            torch.testing.assert_close(*(torch.autograd.grad(result.sum(), x) for result in results))
    assert not any("[" in name for name in schedules(compiled))


def test_a_range_is_traced_by_torch_once(compiled: Compiler) -> None:
    """The check at other sizes begins behind the trace, which takes most of the time."""
    traces: list[tuple[Any, ...]] = []

    @torch.library.custom_op("optfuse_test::seen", mutates_args=())
    def seen(x: Tensor) -> Tensor:
        return x + 1

    @seen.register_fake
    def _(x: Tensor) -> Tensor:
        traces.append(tuple(x.shape))
        return torch.empty_like(x)

    with torch.no_grad():
        compiled(lambda x: seen(x * 2) * 3)(torch.ones(4, 5))
        fixed = len(traces)
        compiled(lambda x: seen(x * 2) * 3)(marked(4, 5))
    assert len(traces) == 2 * fixed
    assert schedules(compiled)[-1] == "compiled0.inference"


def halved(x: Tensor) -> Tensor:
    """Parts whose sizes are quotients of the length: their number is the same at each length."""
    first, second = x.chunk(2, 1)
    before, behind = x.split([x.shape[1] // 2, x.shape[1] - x.shape[1] // 2], 1)
    return first.sum(1) + (second * 2).relu().sum(1) + (before.sum(1) - behind.sin().sum(1))


def joined(x: Tensor) -> Tensor:
    """Queries, keys and values in one matrix, whose gradient is put together from three."""
    batch, length, _ = x.shape
    q, k, v = torch.cat([x, x * 2, x - 1], -1).view(batch, length, 3, 2, 4).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, 8)


def masked(x: Tensor) -> Tensor:
    """The gradient of rows that are overwritten: a library's call that writes some elements of its argument."""
    rows = x[:, :, 0] > 0
    y = x.clone()
    y[rows] = 0
    return y * 2 + torch.where(rows[..., None], x, -x)


@pytest.mark.parametrize(
    "function", [halved, *(pytest.param(f, marks=pytest.mark.slow, id=f.__name__) for f in (joined, masked))]
)
def test_gradients_of_parts_serve_a_range(compiled: Compiler, function: Any) -> None:
    fast = compiled(function, dynamic=True)
    for length in (5, 8, 13, 6):
        x = torch.randn(2, length, 8).requires_grad_()
        found = [torch.autograd.grad(run(x).sin().sum(), x) for run in (fast, function)]
        torch.testing.assert_close(*found)
    assert schedules(compiled) == ["compiled0.forward", "compiled0.backward"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_nothing_is_written_into_a_result_without_elements(compiled: Compiler, dynamic: bool) -> None:
    fast = compiled(masked, dynamic=dynamic)
    for length in (0, 3):
        x = torch.randn(2, length, 8).requires_grad_()
        found = [torch.autograd.grad(run(x).sin().sum(), x) for run in (fast, masked)]
        torch.testing.assert_close(*found)
    assert [pair for run in compiled.runs for pair in run.record.unplanned] == []
