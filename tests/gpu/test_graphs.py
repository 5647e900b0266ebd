"""CUDA graphs on a GPU: results that are held, gradients that add up, several forward calls, random numbers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import optfuse
from optfuse.runtime.recorder import CudaRecorder
from optfuse.torch_compile.backend import backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("graphs_at_once"),
]

OPTIONS = optfuse.SolveOptions(time_limit=5, workers=8)
#: Calls after which a graph is recorded.
LAYOUT_COPY = 6


class Net(nn.Module):
    """Two products with a norm, an activation and, if wanted, dropout in between.

    What is saved for the backward graph is large enough to be left where it is rather than copied.
    """

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(64, 128), nn.LayerNorm(128), nn.Linear(128, 32)
        self.drop = nn.Dropout(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.drop(torch.nn.functional.gelu(self.norm(self.first(x)))))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().cuda()


def fresh(k: int) -> torch.Tensor:
    return torch.randn(4096, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(k))


def trained(net: nn.Module, choice: Any) -> Any:
    return optfuse.optimize(net.train(), (fresh(0),), train=True, options=OPTIONS, name="net").compile(  # type: ignore[union-attr]
        cudagraphs=choice
    )


def test_results_that_are_held_stay(net: Net) -> None:
    program = optfuse.optimize(net.eval(), (fresh(0),), options=OPTIONS, name="net").compile()  # type: ignore[union-attr]
    with torch.no_grad():
        held = [(program(fresh(k)), net(fresh(k))) for k in range(8)]
    for got, wanted in held:
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert program.graphs[0].replays == 2


def test_parameters_that_change_in_place_and_that_are_replaced_count(net: Net) -> None:
    program = optfuse.optimize(net.eval(), (fresh(0),), options=OPTIONS, name="net").compile()  # type: ignore[union-attr]
    for k in range(12):
        with torch.no_grad():
            net.second.bias.add_(1)
            if k == 5:
                net.first.weight = nn.Parameter(net.first.weight.detach().clone() * 2)
            torch.testing.assert_close(program(fresh(k)), net(fresh(k)), rtol=1e-4, atol=1e-5)
    assert program.graphs[0].recordings >= 2


@pytest.mark.parametrize("choice", [True, "auto"])
def test_training_steps(net: Net, choice: Any) -> None:
    program, other = trained(net, choice), copy.deepcopy(net)
    mine, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (net, other))
    for k in range(2 * LAYOUT_COPY):
        for call, optimizer in ((program, mine), (other, theirs)):
            out = call(fresh(k))
            optimizer.zero_grad()
            out.square().mean().backward()
            optimizer.step()
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)
    assert all(graph.replays > LAYOUT_COPY // 2 for graph in program.graphs), program.graphs


class Wide(nn.Module):
    """Several sums of one large value that lies in memory between kernels: temporaries of many times its result."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((1024, 1), scale))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value = torch.tanh(x * self.scale)
        for _ in range(3):  # over rows, then over columns: no kernel holds both
            value = value - value.mean(0, keepdim=True)
            value = torch.tanh(value - value.mean(1, keepdim=True))
        return value.sum(1)


def test_programs_share_the_memory_of_temporaries_and_not_of_results() -> None:
    torch.cuda.empty_cache()
    models = [Wide(0.5 + k).cuda().eval() for k in range(6)]
    x = torch.randn(1024, 8192, device="cuda")  # so large that it is read where it lies
    programs = [optfuse.optimize(m, (x,), options=OPTIONS, name="wide").compile() for m in models]  # type: ignore[union-attr]
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        pairs = list(zip(programs, models, strict=True))
        held = [(program(x * k), model(x * k)) for k in range(6) for program, model in pairs]
        for got, wanted in held:
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)
        assert all(program.graphs[0].replays for program in programs)
        del held, got, wanted
        assert torch.cuda.memory_allocated() - before < 4 * x.nbytes  # six of their own would be more
        for model in models:  # all recordings but those of the last programs go, and come again
            model.scale = nn.Parameter(model.scale.detach() + 1)
        for k in range(LAYOUT_COPY):
            for program, model in pairs:
                torch.testing.assert_close(program(x * k), model(x * k), rtol=1e-3, atol=1e-3)
    assert all(program.graphs[0].recordings >= 2 for program in programs), [p.graphs for p in programs]


@pytest.mark.parametrize("choice", [True, "auto"])
def test_gradients_add_up_over_several_forward_calls(net: Net, choice: Any) -> None:
    program, other = trained(net, choice), copy.deepcopy(net)
    for k in range(LAYOUT_COPY):
        for call, owner in ((program, net), (other, other)):
            owner.zero_grad(set_to_none=True)
            if k % 2:  # all forward calls first
                losses = [call(fresh(10 * k + j)).square().mean() for j in range(3)]
                for loss in losses:
                    loss.backward()
            else:
                for j in range(3):
                    call(fresh(10 * k + j)).square().mean().backward()
        for p, q in zip(net.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5)


def test_gradients_that_are_kept_are_not_overwritten(net: Net) -> None:
    program = trained(net, "auto")
    kept: list[torch.Tensor] = []
    for k in range(LAYOUT_COPY):
        net.zero_grad(set_to_none=True)
        program(fresh(k)).square().mean().backward()
        assert net.first.weight.grad is not None
        kept.append(net.first.weight.grad)
    other = copy.deepcopy(net)
    for k, gradient in enumerate(kept):
        other.zero_grad(set_to_none=True)
        other(fresh(k)).square().mean().backward()
        torch.testing.assert_close(gradient, other.first.weight.grad, rtol=1e-3, atol=1e-5)


def test_random_numbers_differ_between_replays_and_follow_the_seed() -> None:
    net = Net(0.5).cuda().train()
    program = trained(net, True)

    def draws() -> list[torch.Tensor]:
        torch.manual_seed(5)
        found = []
        for _ in range(3):
            net.zero_grad(set_to_none=True)
            out = program(fresh(0))
            found.append(out.detach().clone())
            out.square().mean().backward()
        return found

    for _ in range(LAYOUT_COPY):
        draws()
    first, again = draws(), draws()
    assert all(graph.replays for graph in program.graphs)
    assert not torch.equal(first[0], first[1])
    assert all(map(torch.equal, first, again))


def test_torch_compile_takes_the_option(net: Net) -> None:
    for choice in (True, "auto", False):
        torch.compiler.reset()
        compiled = torch.compile(net.eval(), backend=backend, options={"time_limit": 5, "cudagraphs": choice})
        with torch.no_grad():
            for k in range(LAYOUT_COPY):
                torch.testing.assert_close(compiled(fresh(k)), net(fresh(k)), rtol=1e-4, atol=1e-5)


@torch.library.custom_op("optfuse_gpu_tests::largest", mutates_args=())
def largest(x: torch.Tensor) -> torch.Tensor:
    """The largest element, found on the host: no CUDA graph can hold this."""
    return torch.tensor(max(x.flatten().tolist()), device=x.device)


@largest.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(())


class Cut(nn.Module):
    """Layers before and after a step that waits for the device; both halves draw numbers and write a buffer."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(64, 128), nn.LayerNorm(128), nn.Linear(128, 32)
        self.drop = nn.Dropout(p)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.drop(torch.nn.functional.gelu(self.norm(self.first(x))))
        self.seen[0] += 1
        top = torch.ops.optfuse_gpu_tests.largest(y[:64].detach())
        z = self.second(self.norm(torch.sin(y) / top) + y)
        self.seen[1] += top
        return self.drop(torch.nn.functional.gelu(z)), top


def compiled(net: nn.Module, choice: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(net, backend=backend, options={"time_limit": 5, "cudagraphs": choice, "strict": True})


@pytest.mark.parametrize("choice", [True, "auto"])
def test_a_cut_program_computes_what_a_whole_one_does(choice: Any) -> None:
    torch.manual_seed(0)
    net = Cut().cuda().eval()
    other, fast, held = copy.deepcopy(net), compiled(net, choice), []
    with torch.no_grad():
        for k in range(2 * LAYOUT_COPY):
            got, wanted = fast(fresh(k)), other(fresh(k))
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(net.seen, other.seen, rtol=1e-4, atol=1e-5)
            held.append((got, wanted))
    if choice == "auto":
        for got, wanted in held:
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    else:
        statistics = optfuse.compiled_graphs()[-1].calls
        assert statistics is not None
        assert statistics.graphs == 2
        assert statistics.replays > LAYOUT_COPY


def test_a_cut_program_draws_anew_in_each_replay_and_follows_the_seed() -> None:
    net = Cut(0.5).cuda().train()
    fast = compiled(net, True)

    def draws() -> list[torch.Tensor]:
        torch.manual_seed(5)
        with torch.no_grad():
            return [fast(fresh(0))[0].clone() for _ in range(3)]

    for _ in range(3):
        draws()
    first, again = draws(), draws()
    assert not torch.equal(first[0], first[1])
    assert all(map(torch.equal, first, again))
    zeros = (first[0] == 0).float().mean().item()
    assert 0.45 < zeros < 0.55


def test_a_cut_training_step_has_eager_gradients() -> None:
    torch.manual_seed(0)
    net = Cut().cuda().train()
    other, fast = copy.deepcopy(net), compiled(net, True)
    mine, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (net, other))
    for k in range(2 * LAYOUT_COPY):
        for call, optimizer in ((fast, mine), (other, theirs)):
            out, _ = call(fresh(k))
            optimizer.zero_grad()
            out.square().mean().backward()
            optimizer.step()
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


def test_a_recording_keeps_out_of_memory_that_an_earlier_one_writes() -> None:
    """The earlier one is replayed between the later one and the reader of its results."""
    x = torch.ones(1 << 20, device="cuda")
    recorder = CudaRecorder(x.device)
    earlier, _ = recorder.record(lambda: [((x * 2) + 1).sum()])  # type: ignore[list-item]
    later, results = recorder.record(lambda: [x * 3, x * 4])
    for step in (*later, *earlier):
        step.run()
    for value, wanted in zip(results, (x * 3, x * 4), strict=True):
        torch.testing.assert_close(value, wanted)


def test_a_table_keeps_out_of_memory_that_its_recording_writes() -> None:
    x = torch.ones(64, dtype=torch.int64, device="cuda")
    recorder = CudaRecorder(x.device)

    def call() -> list[Any]:
        (x * 2).sum()  # a temporary that is free when the table is made
        return [recorder.table(list(range(64)), x.device) + 0]

    steps, (result,) = recorder.record(call)
    for _ in range(2):
        for step in steps:
            step.run()
        assert isinstance(result, torch.Tensor)
        assert result.tolist() == list(range(64))


def test_a_recording_that_fails_leaves_random_numbers_and_memory_as_they_were() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    x = torch.ones(1 << 20, device=device)

    def waits() -> list[torch.Tensor]:
        y = x * 2
        return [y + float(y.sum())]  # the host cannot wait for what only a graph will compute

    recorder = CudaRecorder(device)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="captur"):
            recorder.record(waits)
        torch.randn(4, device=device)
    steps, (result,) = recorder.record(lambda: [x * 2 + torch.rand_like(x)])
    for step in steps:
        step.run()
    assert bool((result > 2).any())
    assert bool((result <= 3).all())
    freed = torch.empty(64 << 20, dtype=torch.uint8, device=device)
    place = freed.data_ptr()
    side = torch.cuda.Stream()
    freed.record_stream(side)
    del freed  # is free once what the other stream does is done, which is not asked while a capture is under way
    torch.cuda.synchronize()
    assert torch.empty(64 << 20, dtype=torch.uint8, device=device).data_ptr() == place
