import numpy as np
import pytest
import torch

from optfuse.compiler.ir.interpreter import interpret
from optfuse.compiler.ir.nodes import LibraryCall
from optfuse.compiler.ops import philox
from tests.compiler.lower.eager import lowered, nests

N = 4096


def run(function, *inputs, seed=0):
    """The graph's outputs after ``torch.manual_seed(seed)``."""
    graph, constants = lowered(function, *inputs)
    torch.manual_seed(seed)
    return interpret(graph, [x.clone() for x in inputs], constants)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_rand_is_uniform(dtype):
    (out,) = run(lambda x: torch.rand_like(x), torch.empty(N, dtype=dtype))
    assert out.dtype == dtype
    values = out.double()
    assert 0 <= values.min() < 0.02
    assert 0.98 < values.max() < 1
    assert abs(values.mean() - 0.5) < 0.02


def test_uniform_within_bounds():
    (out,) = run(lambda x: torch.ops.aten.uniform.default(x, -2.0, 6.0), torch.empty(N))
    assert -2 <= out.min() < -1.9
    assert 5.9 < out.max() < 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_randn_is_normal(dtype):
    out, shifted = run(
        lambda x: (torch.randn_like(x), torch.ops.aten.normal_functional.default(x, 3.0, 0.5)),
        torch.empty(N, dtype=dtype),
    )
    assert abs(out.double().mean()) < 0.06
    assert abs(out.double().std() - 1) < 0.05
    assert abs(shifted.double().mean() - 3) < 0.03
    assert abs(shifted.double().std() - 0.5) < 0.03


def quantiles(name, *parameters, dtype):
    """The 10%, 50% and 90% quantiles of the distribution through loops and in eager, both from fixed seeds."""

    def drawn(x):
        return getattr(torch.ops.aten, name).default(x, *parameters)

    graph, _ = lowered(drawn, torch.empty(N, dtype=dtype))
    assert [op.name for op in graph.ops if isinstance(op, LibraryCall)] == ["random_seed"]
    (out,) = run(drawn, torch.empty(N, dtype=dtype))
    assert out.dtype == dtype
    torch.manual_seed(1)
    expected = drawn(torch.empty(1 << 18))
    at = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    return out.double().quantile(at), expected.double().quantile(at)


@pytest.mark.spread(7)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("exponential", ()),
        ("exponential", (2.5,)),
        ("geometric", (0.02,)),
        ("cauchy", (1.0, 3.0)),
        ("log_normal", (0.5, 0.25)),
    ],
)
def test_distributions_have_eager_quantiles(name, parameters, dtype):
    found, expected = quantiles(name, *parameters, dtype=dtype)
    torch.testing.assert_close(found, expected, rtol=0.12, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_exponential_is_never_zero_and_geometric_at_least_one(dtype, monkeypatch):
    monkeypatch.setattr(philox, "rand", lambda _, offset: np.zeros(offset.shape, np.float32))
    (out,) = run(lambda x: torch.ops.aten.exponential.default(x), torch.empty(N, dtype=dtype))
    assert out.min() > 0
    (out,) = run(lambda x: torch.ops.aten.geometric.default(x, 0.5), torch.empty(N, dtype=dtype))
    assert out.min() == 1


def test_geometric_integers_are_a_library_call():
    graph, _ = lowered(lambda x: torch.ops.aten.geometric.default(x, 0.5), torch.empty(8, dtype=torch.int64))
    assert [op.target for op in graph.ops if isinstance(op, LibraryCall)] == ["aten.geometric.default"]


def test_bernoulli():
    probabilities = torch.tensor([0.0, 1.0, 0.3]).repeat(N, 1)
    out, fixed = run(lambda p: (torch.ops.aten.bernoulli.default(p), torch.ops.aten.bernoulli.p(p, 0.8)), probabilities)
    assert set(out.unique().tolist()) == {0.0, 1.0}
    assert out[:, 0].sum() == 0
    assert out[:, 1].sum() == N
    assert abs(out[:, 2].mean() - 0.3) < 0.04
    assert abs(fixed.mean() - 0.8) < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_keeps_and_scales(dtype):
    x = torch.randn(64, 64).to(dtype)
    out, mask = run(lambda x: torch.ops.aten.native_dropout.default(x, 0.25, True), x)
    assert mask.dtype == torch.bool
    assert abs(mask.float().mean() - 0.75) < 0.03
    torch.testing.assert_close(out, (x.float() * mask / 0.75).to(dtype))


def test_dropout_of_everything_and_of_nothing():
    x = torch.randn(8, 8)
    out, mask = run(lambda x: torch.ops.aten.native_dropout.default(x, 1.0, True), x)
    assert out.abs().sum() == 0
    assert not mask.any()
    out, mask = run(lambda x: torch.ops.aten.native_dropout.default(x, 0.0, True), x)
    assert torch.equal(out, x)
    assert mask.all()


def test_manual_seed_decides():
    def noise(x):
        return torch.rand_like(x), torch.rand_like(x)

    first, second = run(noise, torch.empty(N), seed=1)
    again, _ = run(noise, torch.empty(N), seed=1)
    other, _ = run(noise, torch.empty(N), seed=2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.05


def test_a_second_run_draws_other_numbers():
    graph, _ = lowered(lambda x: torch.rand_like(x), torch.empty(8))
    torch.manual_seed(0)
    (first,), (second,) = interpret(graph, [torch.empty(8)]), interpret(graph, [torch.empty(8)])
    assert not torch.equal(first, second)


def test_one_seed_serves_all_random_ops_of_a_graph():
    graph, _ = lowered(lambda x: torch.rand_like(x) + torch.randn(3, 4) + torch.bernoulli(x, 0.5), torch.empty(3, 4))
    seeds = [op for op in graph.ops if isinstance(op, LibraryCall)]
    assert [(op.name, op.target, op.random) for op in seeds] == [("random_seed", "aten.randint.default", True)]
    assert len(nests(graph)) >= 4


def test_numbers_belong_to_logical_positions_whatever_the_layout():
    def noise(x):
        return torch.rand_like(x)

    x = torch.empty(6, 5)
    assert torch.equal(run(noise, x)[0], run(noise, x.t().contiguous().t())[0])


def test_integers_and_permutations_are_library_calls():
    graph, _ = lowered(lambda x: x + torch.randint(0, 5, (3,)) + torch.randperm(3), torch.zeros(3, dtype=torch.int64))
    calls = [op for op in graph.ops if isinstance(op, LibraryCall)]
    assert all(op.random for op in calls)
    assert len(calls) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("normal", [False, True])
def test_a_number_of_a_seed_is_the_same_tensor_in_loops_and_as_traced(normal, dtype):
    def drawn(seed):
        return torch.ops.optfuse.seeded_random(seed, 3, normal, [6, 5], [1, 6], dtype)

    seed = torch.tensor(1234567890123)
    (found,) = run(drawn, seed)
    expected = drawn(seed)
    assert found.stride() == expected.stride() == (1, 6)
    assert torch.equal(found, expected)
    assert not torch.equal(found, torch.ops.optfuse.seeded_random(seed, 4, normal, [6, 5], [1, 6], dtype))


def test_a_steps_seed_is_not_that_of_other_draws():
    def noise(x):
        seed = torch.ops.optfuse.step_seed(x)
        return torch.ops.optfuse.seeded_random(seed, 0, False, [N], [1], torch.float32), torch.rand_like(x)

    ours, others = run(noise, torch.empty(N))
    assert not torch.equal(ours, others)
