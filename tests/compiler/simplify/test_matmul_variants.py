"""Products of matrices as kernels of our own: which are offered, what the solver chooses, and what they compute."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from optfuse.api import optimize
from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.ir.alternatives import variants_of
from optfuse.compiler.ir.graph_json import graph_from_json, graph_to_json
from optfuse.compiler.ir.interpreter import interpret
from optfuse.compiler.ir.nodes import Dot, LibraryCall, Load, LoopNest, Store, ivar, rvar
from optfuse.compiler.ir.printer import print_nest
from optfuse.compiler.ir.traversal import dot_in
from optfuse.compiler.ir.verify_nest import verify_nest
from optfuse.compiler.stages import fusion_problem
from optfuse.errors import InvalidGraphError
from optfuse.problem.checker import check
from optfuse.problem.choose_alternatives import choosing
from optfuse.problem.validate import validate
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve
from tests.compiler.ir.graphs import buffer, nest

ROWS = 50176


class Mlp(nn.Module):
    """A narrow projection with a residual, as a stage of a hierarchical vision transformer has it."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.out = nn.Linear(inner, width, dtype=torch.bfloat16)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return residual + self.out(x)


class Pixels(nn.Module):
    """An inverted residual's convolutions of one pixel, with a depthwise one between them."""

    def __init__(self) -> None:
        super().__init__()
        self.widen = nn.Conv2d(16, 96, 1, bias=False)
        self.depthwise = nn.Conv2d(96, 96, 3, padding=1, groups=96)
        self.narrow = nn.Conv2d(96, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(nn.functional.hardswish(self.depthwise(nn.functional.relu6(self.widen(x)))))


def problem_of(model: nn.Module, *args: Tensor):
    return fusion_problem(capture(model.eval(), args, {}, name="model"), "h200")


def mlp_problem(width: int = 128, inner: int = 64):
    empty = torch.empty(ROWS, inner, dtype=torch.bfloat16), torch.empty(ROWS, width, dtype=torch.bfloat16)
    return problem_of(Mlp(width, inner), *empty)


def test_a_short_product_is_offered_both_ways_and_the_dot_takes_its_consumers() -> None:
    extraction = mlp_problem()
    instance = extraction.instance
    validate(instance)
    (variant,) = instance.variants
    (call,), (dot,) = variant.alternatives
    assert isinstance(extraction.graph.ops[call], LibraryCall)
    assert instance.ops[dot].name == f"{instance.ops[call].name}_dot"
    result = solve(instance, SolveOptions(time_limit=10))
    assert result.status == "OPTIMAL"
    assert not check(instance, result.solution)
    (kernel,) = result.solution.kernels
    assert dot in kernel.ops
    assert len(kernel.ops) > 1


def test_the_best_choice_is_the_better_of_both_problems_without_variants() -> None:
    instance = mlp_problem().instance
    (variant,) = instance.variants
    options = SolveOptions(time_limit=10)
    each = [solve(choosing(instance, ops)[0], options).objective for ops in variant.alternatives]
    result = solve(instance, options)
    assert (result.objective, result.bound) == (min(each), min(each))
    assert each[1] < each[0], "the dot saves a pass over the residual's size"


def test_long_sums_and_partial_tiles_are_left_to_the_library() -> None:
    assert not mlp_problem(768, 3072).instance.variants
    assert not mlp_problem(96, 96).instance.variants


@pytest.mark.parametrize(("device", "count"), [("h200", 1), ("without", 0)])
def test_a_device_says_whether_there_are_dots(tmp_path, device: str, count: int) -> None:
    import json
    from dataclasses import asdict, replace

    from optfuse.problem.device_files import load_device

    path = tmp_path / "device.json"
    facts = load_device("h200")
    path.write_text(json.dumps(asdict(facts if device == "h200" else replace(facts, dot_percent=0))))
    x = torch.empty(ROWS, 64, dtype=torch.bfloat16)
    made = fusion_problem(capture(Mlp(64, 64), (x, x), {}, name="model"), str(path))
    assert len(made.instance.variants) == count


def test_of_products_whose_results_meet_in_a_sum_two_are_offered() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(64, 64, bias=False, dtype=torch.bfloat16) for _ in range(5))

        def forward(self, *xs: Tensor) -> Tensor:
            return sum((part(x) for part, x in zip(self.parts[1:], xs[1:], strict=True)), self.parts[0](xs[0]))

    xs = [torch.empty(ROWS, 64, dtype=torch.bfloat16) for _ in range(5)]
    assert len(problem_of(Sum(), *xs).instance.variants) == 2


def test_convolutions_of_one_pixel_are_products() -> None:
    x = torch.empty(32, 16, 56, 56, dtype=torch.bfloat16, memory_format=torch.channels_last)
    model = Pixels().bfloat16().to(memory_format=torch.channels_last)
    instance = problem_of(model, x).instance
    assert len(instance.variants) == 2
    result = solve(instance, SolveOptions(time_limit=10))
    assert result.status == "OPTIMAL"
    assert any(instance.ops[op].name.endswith("_dot") for kernel in result.solution.kernels for op in kernel.ops)


@pytest.mark.slow
def test_what_is_emitted_computes_what_eager_does() -> None:
    torch.manual_seed(0)
    x = torch.randn(24, 16, 56, 56, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    model = Pixels().bfloat16().to(memory_format=torch.channels_last).eval()
    schedule = optimize(model, (x,))
    assert "tl.dot(" in schedule.source
    torch.compiler.reset()
    with torch.no_grad():
        got, eager = torch.compile(model, backend="optfuse")(x), model(x)
        exact = model.double()(x.double())
    assert (got.double() - exact).norm() <= 1.2 * (eager.double() - exact).norm()
    assert got.stride() == eager.stride()


def test_variants_are_found_again_in_a_graph_that_was_written() -> None:
    extraction = mlp_problem()
    again = graph_from_json(graph_to_json(extraction.graph))
    assert again == extraction.graph
    assert variants_of(again) == tuple(variant.alternatives for variant in extraction.instance.variants)


# --- the expression itself


def dot_nest(rows: int = 5, columns: int = 3, terms: int = 4, dtype: str = "bfloat16") -> LoopNest:
    element = Dot(Load("a", ivar(0) * terms + rvar(0), dtype), Load("b", rvar(0) * columns + ivar(1), dtype), terms)
    return nest("ab", (rows, columns), Store("ab", ivar(0) * columns + ivar(1), element))


BUFFERS = {
    b.name: b
    for b in (
        buffer("a", 5, 4, dtype="bfloat16", kind="input"),
        buffer("b", 4, 3, dtype="bfloat16", kind="input"),
        buffer("ab", 5, 3),
    )
}


def test_a_dot_is_read_as_a_product() -> None:
    made = dot_nest()
    verify_nest(made, BUFFERS)
    assert "dot(a[4*i0 + r0], b[i1 + 3*r0] for r0 < 4)" in print_nest(made)
    assert dot_in(made) is not None


def test_a_dot_is_interpreted_as_a_product() -> None:
    from optfuse.compiler.ir.nodes import LoopGraph, View

    a, b = torch.randn(5, 4).bfloat16(), torch.randn(4, 3).bfloat16()
    out = View("ab", (5, 3), (3, 1))
    graph = LoopGraph("g", tuple(BUFFERS.values()), ("a", "b"), (), (dot_nest(),), (out,))
    (got,) = interpret(graph, [a, b])
    assert torch.equal(got, a.float() @ b.float())


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        (dot_nest(dtype="float32"), "loads float32|a product of float32"),
        (dot_nest(terms=5), "reaches"),
    ],
)
def test_wrong_dots_are_refused(made: LoopNest, fault: str) -> None:
    with pytest.raises(InvalidGraphError, match=fault):
        verify_nest(made, BUFFERS)
