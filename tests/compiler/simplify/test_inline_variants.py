"""Values that are moved: stored by their producers, or computed by their readers, as the price decides."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from optfuse import optimize
from optfuse.compiler.extract.extraction import Extraction, extract
from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.ir.alternatives import first_alternatives, variants_of, written_by
from optfuse.compiler.ir.nodes import LoopGraph
from optfuse.compiler.ir.verify_graph import verify
from optfuse.compiler.stages import fusion_problem
from optfuse.problem.device_files import load_device
from optfuse.problem.rules import barrier, no_fuse, with_rules
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve

DEVICE = load_device("h200")
OPTIONS = SolveOptions(time_limit=20, workers=1)
WIDTH, ROWS = 16, 8192


class Patches(nn.Module):
    """The end of a stage of Swin: a residual that is read twice, and rows that are put side by side and normalized."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, 2 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x)
        x = x + self.down(torch.relu(self.up(x)))
        return self.reduce(self.norm(torch.cat([x[:, 0::2], x[:, 1::2]], -1)))


def extracted(rows: int) -> Extraction:
    return fusion_problem(capture(Patches().eval(), (torch.empty(4, rows, WIDTH),), {}, name="patches"), "h200")


def chosen(graph: LoopGraph, second: bool) -> LoopGraph:
    """The graph with one alternative of each variant alone."""
    out = {op for alternatives in variants_of(graph) for op in alternatives[0 if second else 1]}
    ops = tuple(op for k, op in enumerate(graph.ops) if k not in out)
    made = {name for op in ops for name in written_by(op)}
    kept = tuple(b for b in graph.buffers if b.kind != "temporary" or b.name in made)
    return replace(graph, ops=ops, buffers=kept)


def test_a_value_is_stored_or_computed_by_the_op_that_moves_it() -> None:
    (variant,) = extracted(ROWS).instance.variants
    stored, computed = variant.alternatives
    ops = extracted(ROWS).instance.ops
    assert [ops[op].name for op in computed] == ["cat_computing"]
    assert {"cat", "add"} <= {ops[op].name for op in stored}


def test_the_cheaper_one_of_both_graphs_is_found() -> None:
    extraction = extracted(ROWS)
    graph = extraction.graph
    verify(graph)
    assert first_alternatives(graph)
    whole = solve(extraction.instance, OPTIONS)
    parts = [solve(extract(chosen(graph, second=second), DEVICE).instance, OPTIONS) for second in (False, True)]
    assert [result.status for result in (whole, *parts)] == ["OPTIMAL"] * 3
    assert whole.objective == min(result.objective for result in parts)
    assert parts[0].objective != parts[1].objective
    names = {extraction.instance.ops[op].name for kernel in whole.solution.kernels for op in kernel.ops}
    assert ("cat_computing" in names) == (parts[1].objective < parts[0].objective)
    assert ("cat" in names) != ("cat_computing" in names)


def test_what_is_emitted_computes_what_eager_does() -> None:
    torch.manual_seed(0)
    model, x = Patches().eval(), torch.randn(4, ROWS, WIDTH)
    schedule = optimize(model, (x,))
    assert "cat_computing" in {op.name for op in schedule.extraction.graph.ops}
    with torch.no_grad():
        torch.testing.assert_close(schedule.compile()(x), model(x))


def test_rules_hold_for_both_forms_of_a_reader() -> None:
    instance = extracted(ROWS).instance
    free = solve(instance, OPTIONS).objective
    for rule in (no_fuse("cat", "var_mean"), barrier("cat")):
        ruled = with_rules(instance, (rule,))
        result = solve(ruled, OPTIONS)
        assert result.objective > free
        together = [{instance.ops[op].name for op in kernel.ops} for kernel in result.solution.kernels]
        assert not any("var_mean" in names and names & {"cat", "cat_computing"} for names in together)
