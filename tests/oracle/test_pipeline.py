"""The whole pipeline on what real models do beside arithmetic: in-place writes, aliases, and what the answer says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import optfuse
from optfuse.errors import CaptureError, InvalidInputError, InvalidOptionError
from optfuse.runtime.environment import mode
from tests.oracle.judging import OPTIONS, assert_all_pass, check, judge_program
from tests.programs import made, randn

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")


# --- in-place writes ----------------------------------------------------------------------------------------------


def test_input_written_in_place() -> None:
    def step(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2).add_(y)
        y[1:, ::2] = x[1:, ::2].exp()
        return x.sum(0) - y

    check(step, randn(5, 7), randn(5, 7))


def test_input_written_through_a_view_and_returned() -> None:
    def step(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before = x * 3
        x.view(-1)[3:9].zero_()
        x.t()[2].add_(1)
        return before, x, x[1]

    check(step, randn(4, 6))


def test_old_value_of_a_written_input_is_returned() -> None:
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        old = x.clone()
        view = old[1:]
        x.copy_(x.flip(0))
        return view, old + x

    check(step, randn(5, 3))


def test_swapped_inputs() -> None:
    def step(x: Tensor, y: Tensor) -> None:
        old = x.clone()
        x.copy_(y)
        y.copy_(old)

    check(step, randn(5, 3), randn(3, 5).t())


def test_discontiguous_input_written_in_place() -> None:
    check(lambda x: x.add_(1).sum(1), randn(6, 4).t())
    check(lambda x: x.mul_(2).sum(), randn(9, 8)[1:7:2, ::3])


def test_written_input_in_another_layout_than_captured() -> None:
    program = made(lambda x: x.add_(1).sum(0), randn(4, 6))
    with pytest.raises(InvalidInputError, match="written in place"):
        program(randn(6, 4).t())


def test_cache_of_keys() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.zeros(2, 9, 4))
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

        def forward(self, new: Tensor, position: Tensor) -> Tensor:
            self.keys.index_copy_(1, position, new)
            self.seen.add_(new.shape[1])
            return torch.softmax(new @ self.keys.transpose(1, 2), -1) @ self.keys

    model = Cached()
    check(model, randn(2, 3, 4), torch.tensor([4, 0, 7]))
    program = made(model, randn(2, 3, 4), torch.tensor([4, 0, 7]))
    program(torch.ones(2, 3, 4), torch.tensor([1, 2, 3]))
    program(torch.ones(2, 3, 4), torch.tensor([1, 2, 8]))
    assert model.seen == 6
    assert model.keys[0, :, 0].tolist() == [0, 1, 1, 1, 0, 0, 0, 0, 1]


def test_batch_statistics_and_count() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5, momentum=0.3), nn.ReLU()).train()
    check(model, randn(2, 3, 8, 9))
    check(model, randn(2, 3, 8, 9), train=True)


def test_buffer_written_but_not_read() -> None:
    class Recorder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            self.last.copy_(x.sum(0))
            return x * 2

    check(Recorder(), randn(3, 4))


def test_graph_of_nothing_but_a_write() -> None:
    check(lambda x: x.zero_(), randn(3, 4))
    check(lambda x, y: (x.copy_(y), None)[1], randn(3, 4), randn(3, 4))


# --- aliases of inputs and outputs ----------------------------------------------------------------------------------


def test_views_of_inputs_returned() -> None:
    def views(x: Tensor) -> tuple[Tensor, ...]:
        return x[1:], x.t(), x.view(2, -1), x[:, ::2], x.expand(3, 4, 6), x.unbind(1)[2]

    check(views, randn(4, 6))
    x = randn(4, 6)
    for got, wanted in zip(made(views, randn(4, 6))(x), views(x), strict=True):
        assert (got.data_ptr(), got.stride()) == (wanted.data_ptr(), wanted.stride())


def test_views_of_results_returned() -> None:
    def views(x: Tensor) -> tuple[Tensor, ...]:
        y = x.exp()
        return y, y.t(), y[2], y.view(-1)[5:7]

    check(views, randn(4, 6))
    outputs = made(views, randn(4, 6))(randn(4, 6))
    for got, wanted in zip(outputs, views(randn(4, 6)), strict=True):
        assert got.stride() == wanted.stride()


def test_one_tensor_returned_twice() -> None:
    def twice(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x + 1
        return y, y, x

    check(twice, randn(4, 6))
    x = randn(4, 6)
    first, second, same = made(twice, randn(4, 6))(x)
    assert first is second or first.data_ptr() == second.data_ptr()
    assert same.data_ptr() == x.data_ptr()


def test_input_given_twice() -> None:
    x = randn(4, 6)
    check(lambda a, b: a @ b.t() + a.sum(), x, x)
    program = made(lambda a, b: a + b, x, x)
    with pytest.raises(CaptureError, match="twice"):
        program(randn(4, 6), randn(4, 6))


def test_input_given_twice_and_written() -> None:
    def step(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return a * b

    x = randn(4, 6)
    check(step, x, x)


def test_inputs_that_share_memory() -> None:
    memory = randn(8, 6)
    check(lambda a, b: a + b.sum(0), memory[:4], memory[2:])


class Aliased(nn.Module):
    """Two buffers in one memory, of which one may be written."""

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.register_buffer("base", randn(4, 3))
        self.register_buffer("row", self.base[1])
        self.writes = writes

    def forward(self, x: Tensor) -> Tensor:
        if self.writes:
            self.base.add_(1)
        return self.row * x + self.base


def test_buffers_that_share_memory() -> None:
    check(Aliased(writes=False), randn(3))
    with pytest.raises(CaptureError, match=r"base shares memory with row") as caught:
        made(Aliased(writes=True), randn(3))
    assert "\n" not in str(caught.value)


def test_program_keeps_no_result() -> None:
    program = made(lambda x: (x.exp().sum(0), x.sigmoid()), randn(4, 6))
    first = program(randn(4, 6))
    kept = [out.clone() for out in first]
    program(torch.zeros(4, 6))
    for out, value in zip(first, kept, strict=True):
        assert torch.equal(out, value)


def test_shared_parameters() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, 6)
            self.head = nn.Linear(6, 11, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids: Tensor) -> Tensor:
            return F.cross_entropy(self.head(torch.tanh(self.table(ids))), ids)

    torch.manual_seed(0)
    model = Tied()
    for train in (False, True):
        check(model, torch.tensor([1, 5, 5, 10]), train=train)


# --- the answer itself ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> optfuse.Schedule:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 17), nn.GELU(), nn.LayerNorm(17), nn.Linear(17, 3), nn.Softmax(-1))
    return optfuse.optimize(model, (randn(5, 9),), options=OPTIONS, name="net")


def test_certificate(found: optfuse.Schedule) -> None:
    assert found.name == "net"
    assert found.status == "OPTIMAL"
    assert found.bound <= found.objective <= found.greedy_objective
    assert found.gap == 0.0
    assert found.summary()["kernels"] == len(found.solution.kernels) == len(found.to_pandas())


def test_a_certificate_says_what_was_decided_before(found: optfuse.Schedule) -> None:
    calls = {"aten.mm": 2}
    (decision,) = found.decisions
    assert (decision.kind, decision.count, dict(decision.parts)) == ("decision", 2, calls)
    assert found.certificate == (
        "proven optimal for the stated model of cost and legality; "
        "decided before the solver: 2 operators given to libraries (aten.mm 2)"
    )
    assert found.summary()["decisions"] == ["2 operators given to libraries (aten.mm 2)"]


def test_a_rewrite_that_is_dominance_is_named_under_a_cap_alone() -> None:
    class Sums(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return x.sum(0), y.sum(0)

    tensors = (torch.zeros(4096, 8), torch.zeros(4096, 8))
    free = optfuse.optimize(Sums(), tensors, options=OPTIONS)
    capped = optfuse.optimize(Sums(), tensors, options=replace(OPTIONS, peak_memory="1GiB"))
    assert free.graph == capped.graph
    assert [str(decision) for decision in free.decisions] == ["2 reductions split"]
    assert [str(decision) for decision in capped.decisions] == ["2 reductions split", "1 second stage joined to others"]


def test_nothing_decided() -> None:
    found = optfuse.optimize(nn.GELU(), (randn(5, 7),), options=OPTIONS)
    assert found.decisions == ()
    assert found.certificate.endswith("; decided before the solver: nothing")


def test_table(found: optfuse.Schedule) -> None:
    table = found.to_pandas()
    assert list(table.columns) == [
        "ops", "kind", "scheme", "bytes_read", "bytes_written", "predicted_us", "bound_by", "live_bytes",
    ]  # fmt: skip
    assert math.isclose(table["predicted_us"].sum(), found.objective / 1e6, rel_tol=1e-6)
    assert found.report().count("\n") > len(table)


def test_source_stands_alone(found: optfuse.Schedule) -> None:
    assert "optfuse" not in "".join(line for line in found.source.splitlines() if "import" in line)
    compile(found.source, "kernels.py", "exec")


def test_solvers_agree_on_results() -> None:
    model = nn.Sequential(nn.GELU(), nn.Softmax(-1))
    x = randn(5, 7)
    for solver in ("cpsat", "greedy", "exhaustive"):
        options = optfuse.SolveOptions(solver=solver, time_limit=5, workers=1)
        check(model, x, options=options)


def test_same_source_every_time() -> None:
    options = optfuse.SolveOptions(time_limit=5, workers=1, deterministic=True)
    model = nn.Sequential(nn.LayerNorm(7), nn.GELU(), nn.Linear(7, 3))
    first, second = (optfuse.optimize(model, (randn(5, 7),), options=options).source for _ in range(2))
    assert first == second


def test_later_weights_count() -> None:
    model = nn.Linear(5, 3)
    program = made(model, randn(4, 5))
    with torch.no_grad():
        model.weight.zero_()
        model.bias.fill_(2)
    assert torch.equal(program(randn(4, 5)), torch.full((4, 3), 2.0))


def test_other_arguments_are_refused() -> None:
    program = made(nn.Linear(5, 3), randn(4, 5))
    with pytest.raises(InvalidInputError, match=r"float32\[3, 5\].*made for float32\[4, 5\]"):
        program(randn(3, 5))
    with pytest.raises(InvalidInputError, match="float64"):
        program(randn(4, 5).double())
    with pytest.raises(CaptureError, match=r"the arguments \(args\[0\]\), not \(args\[0\], args\[1\]\)"):
        program(randn(4, 5), randn(4, 5))
    with pytest.raises(CaptureError, match=r"not \(args\[0\], kwargs\['scale'\]\)"):
        program(randn(4, 5), scale=randn(4, 5))
    for other in (3.0, "x", None, randn(4, 5).numpy()):
        with pytest.raises(CaptureError):
            program(other)
    with pytest.raises(InvalidInputError, match="on meta"):
        program(randn(4, 5).to("meta"))


@pytest.mark.parametrize(
    ("more", "message"),
    [({"device": "h2000"}, "h2000"), ({"device": "/no/such/file.json"}, "no/such/file")],
)
def test_unknown_device(more: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        optfuse.optimize(nn.Linear(5, 3), (randn(4, 5),), **more)


def test_arguments_must_be_a_tuple() -> None:
    with pytest.raises(CaptureError, match=r"write \(x,\)"):
        optfuse.optimize(nn.Linear(5, 3), randn(4, 5))


def test_gradient_mode_of_the_caller_does_not_matter() -> None:
    model, x = nn.Linear(5, 3), randn(4, 5)
    program = made(model, x)
    with torch.enable_grad():
        assert not program(x).requires_grad
    with torch.no_grad():
        assert not program(x.requires_grad_()).requires_grad
    assert_all_pass(judge_program(program, model, (randn(4, 5),), {}, train=False))
