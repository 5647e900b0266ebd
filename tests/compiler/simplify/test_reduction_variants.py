"""Ways to run a reduction as variants: what is offered, and that it is a valid problem."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from optfuse.compiler.frontend.captured import Captured
from optfuse.compiler.frontend.inference import capture
from optfuse.compiler.simplify.pass_list import UNSPLIT, rewrite
from optfuse.compiler.simplify.reduction_variants import reduction_variants
from optfuse.compiler.stages import fusion_problem, lowered
from optfuse.problem.checker import check
from optfuse.problem.device_files import load_device
from optfuse.problem.validate import validate
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve

DEVICE = load_device("h200")
ROWS, COLUMNS = 16384, 512


class Norm(nn.Module):
    """A row normalisation, and the column sum of what it yields: the gradient of a norm's weight, in short."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scaled = x * torch.rsqrt((x * x).mean(1, keepdim=True))
        return scaled, scaled.sum(0)


class Used(nn.Module):
    """Two reductions whose results another op reads."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(x.sum(0)) + x.mean()


def captured(model: nn.Module) -> Captured:
    return capture(model, (torch.empty(ROWS, COLUMNS),), {}, name="model")


def test_a_column_sum_is_whole_or_split() -> None:
    instance = fusion_problem(captured(Norm()), "h200", "all").instance
    validate(instance)
    (variant,) = instance.variants
    names = [[instance.ops[op].name for op in ops] for ops in variant.alternatives]
    (whole,) = names[0]
    assert names == [[whole], [f"{whole}_partial", f"{whole}_combine"]]


def test_alternatives_feed_the_same_users_and_never_each_other() -> None:
    instance = fusion_problem(captured(Used()), "h200", "all").instance
    assert instance.variants
    for variant in instance.variants:
        feeding = []
        for ops in variant.alternatives:
            others = {op for other in variant.alternatives if other != ops for op in other}
            assert not any(edge.src in ops and edge.dst in others for edge in instance.edges)
            feeding.append({edge.dst for edge in instance.edges if edge.src in ops and edge.dst not in ops})
        assert all(users == feeding[0] for users in feeding)


def test_left_to_the_solver_the_choice_is_no_dearer_than_by_rule() -> None:
    options = SolveOptions(workers=1, time_limit=20)
    by_rule = solve(fusion_problem(captured(Used()), "h200").instance, options)
    free = fusion_problem(captured(Used()), "h200", "all").instance
    chosen = solve(free, options)
    assert by_rule.status == chosen.status == "OPTIMAL"
    assert check(free, chosen.solution) == ()
    assert chosen.objective <= by_rule.objective


def test_rivals_are_the_ops_of_the_other_alternative() -> None:
    alternatives = reduction_variants(rewrite(lowered(captured(Norm())), DEVICE, UNSPLIT).graph, DEVICE)
    ((_, ((whole,), split)),) = alternatives.variants
    assert alternatives.rivals() == {whole: frozenset(split), **dict.fromkeys(split, frozenset({whole}))}
