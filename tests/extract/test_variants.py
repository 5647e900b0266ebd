"""Ways to run a reduction as variants: what is offered, that it is a valid problem, and what it is worth."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from optfuse.errors import InvalidGraphError
from optfuse.extract.build import extract_variants
from optfuse.extract.device import load_device
from optfuse.extract.variants import MOST_SHARES, reduction_variants, riders, riding
from optfuse.frontend.inference import capture
from optfuse.ir.interpreter import interpret
from optfuse.ir.nodes import LoopGraph, LoopNest, Runs
from optfuse.ir.serialize import graph_from_json, graph_to_json
from optfuse.ir.verify import verify
from optfuse.pipeline import fusion_problem, lowered
from optfuse.problem.checker import check
from optfuse.problem.validate import validate
from optfuse.solve.options import SolveOptions
from optfuse.solve.solve import solve

DEVICE = load_device("h200")
ROWS, COLUMNS = 16384, 512


class Norm(nn.Module):
    """A row normalisation, and the column sum of what it yields: the gradient of a norm's weight, in short."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scaled = x * torch.rsqrt((x * x).mean(1, keepdim=True))
        return scaled, scaled.sum(0)


def norm() -> LoopGraph:
    return lowered(capture(Norm(), (torch.empty(ROWS, COLUMNS),), {}, name="norm"))


def test_a_column_sum_is_whole_split_or_rides() -> None:
    found, _ = extract_variants(norm(), DEVICE, "all")
    validate(found.instance)
    (variant,) = [v for v in found.instance.variants if len(v.alternatives) == 3]
    names = [[found.instance.ops[op].name for op in ops] for ops in variant.alternatives]
    whole = names[0][0]
    assert names == [[whole], [f"{whole}_partial", f"{whole}_combine"], [f"{whole}_ride", f"{whole}_rows"]]


def test_a_rider_runs_where_rows_are_walked_and_leaves_one_row_a_program() -> None:
    found, _ = extract_variants(norm(), DEVICE, "all")
    instance = found.instance
    rider = next(k for k, op in enumerate(instance.ops) if op.name.endswith("_ride"))
    run = found.graph.ops[rider].runs.length  # type: ignore[union-attr]
    for offer in instance.ops[rider].offers:
        scheme = instance.schemes[offer.scheme]
        assert (scheme.x, scheme.r) == (ROWS, COLUMNS)
        (write,) = offer.writes
        assert write.bytes == -(-ROWS // run) * COLUMNS * 4
        assert -(-ROWS // run) <= MOST_SHARES * DEVICE.saturating_programs
    outgoing = [edge for edge in instance.edges if edge.src == rider]
    assert outgoing
    assert all(not edge.schemes for edge in outgoing)
    assert any(edge.schemes for edge in instance.edges if edge.dst == rider)


def test_alternatives_feed_the_same_users_and_never_each_other() -> None:
    class Used(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.exp(x.sum(0)) + x.mean()

    graph = lowered(capture(Used(), (torch.empty(ROWS, COLUMNS),), {}, name="used"))
    instance = extract_variants(graph, DEVICE, "all")[0].instance
    for variant in instance.variants:
        feeding = []
        for ops in variant.alternatives:
            others = {op for other in variant.alternatives if other != ops for op in other}
            assert not any(edge.src in ops and edge.dst in others for edge in instance.edges)
            feeding.append({edge.dst for edge in instance.edges if edge.src in ops and edge.dst not in ops})
        assert all(users == feeding[0] for users in feeding)


def test_riding_pays() -> None:
    captured = capture(Norm(), (torch.empty(ROWS, COLUMNS),), {}, name="norm")
    options = SolveOptions(workers=1, time_limit=20)
    by_rule = solve(fusion_problem(captured, "h200").instance, options)
    free = fusion_problem(captured, "h200", "all").instance
    chosen = solve(free, options)
    assert by_rule.status == chosen.status == "OPTIMAL"
    assert check(free, chosen.solution) == ()
    assert any(free.ops[op].name.endswith("_ride") for kernel in chosen.solution.kernels for op in kernel.ops)
    assert chosen.objective < by_rule.objective


@pytest.mark.parametrize("shape", [(500, 12), (7, 83, 12)])
def test_riding_computes_the_same_and_is_plain_data(shape: tuple[int, ...]) -> None:
    class Sums(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            rows = tuple(range(x.ndim - 1))
            return (x * 2).sum(rows), x.exp().mean(rows)

    few = replace(DEVICE, saturating_programs=5)
    graph = lowered(capture(Sums(), (torch.empty(shape),), {}, name="sums"))
    named = {op.name for op in graph.ops if isinstance(op, LoopNest) and op.reductions}
    ridden = riding(graph, few, named)
    verify(ridden)
    assert riders(ridden) == named
    assert graph_from_json(graph_to_json(ridden)) == ridden
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    for got, expected in zip(interpret(ridden, [x]), interpret(graph, [x], double=True), strict=True):
        torch.testing.assert_close(got, expected, check_dtype=False)


@pytest.mark.parametrize(
    ("runs", "fault"), [(Runs(2, 4), "runs of 4 over 2 of 2"), (Runs(1, 3), r"which has \d+ elements")]
)
def test_runs_that_fit_no_nest_are_refused(runs: Runs, fault: str) -> None:
    few = replace(DEVICE, saturating_programs=5)
    graph = riding(norm(), few, {"sum_1"})
    ops = tuple(replace(op, runs=runs) if isinstance(op, LoopNest) and op.runs else op for op in graph.ops)
    with pytest.raises(InvalidGraphError, match=fault):
        verify(replace(graph, ops=ops))


@pytest.mark.parametrize(("kinds", "most"), [("emittable", 2), ("all", 3)])
def test_kinds(kinds: str, most: int) -> None:
    variants = reduction_variants(norm(), DEVICE, kinds).variants  # type: ignore[arg-type]
    assert max(len(alternatives) for _, alternatives in variants) == most
