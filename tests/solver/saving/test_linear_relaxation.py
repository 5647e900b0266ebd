"""The relaxation's bound: in integers, from any prices, and close for the layers of a convolution net."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from optfuse.errors import DefectError
from optfuse.solver.control.clock import Clock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.saving.choice import ForwardValue, choose_saving, least_cost
from optfuse.solver.saving.linear_relaxation import relaxed


@st.composite
def models(draw: st.DrawFn) -> cp_model.CpModel:
    """Clauses, implications and a sum over up to six Booleans, with costs of either sign."""
    model = cp_model.CpModel()
    variables = [model.new_bool_var(f"v{k}") for k in range(draw(st.integers(1, 6)))]
    literal = st.sampled_from([*variables, *(~one for one in variables)])
    for _ in range(draw(st.integers(0, 6))):
        model.add_bool_or(draw(st.lists(literal, min_size=1, max_size=3)))
    for _ in range(draw(st.integers(0, 3))):
        model.add_implication(draw(literal), draw(literal))
    sizes = [draw(st.integers(0, 1 << 40)) for _ in variables]
    model.add(cp_model.LinearExpr.weighted_sum(variables, sizes) <= draw(st.integers(0, 1 << 42)))
    model.minimize(cp_model.LinearExpr.weighted_sum(variables, [draw(st.integers(-50, 1 << 20)) for _ in variables]))
    return model


@given(models())
def test_the_bound_is_below_every_solution_and_exact_where_the_optimum_is_whole(model: cp_model.CpModel) -> None:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    found = relaxed(model, Clock(), Clock().now() + 10)
    if status != cp_model.OPTIMAL:
        return
    assert found is not None
    best = round(solver.objective_value)
    assert found.bound <= best
    if all(abs(value - round(value)) < 1e-9 for value in found.values):
        assert found.bound >= best - 1 - abs(best) // 1_000_000


def test_a_model_that_is_no_clause_and_no_sum_is_refused() -> None:
    model = cp_model.CpModel()
    model.add_exactly_one([model.new_bool_var("a"), model.new_bool_var("b")])
    with pytest.raises(DefectError, match=r"constraint exactly_one .*: state it as clauses"):
        relaxed(model, Clock(), Clock().now() + 10)


def net(layers: int) -> list[ForwardValue]:
    """Layers of a convolution, its statistics, and its normalized positive part, which the next convolution reads."""
    values: list[ForwardValue] = []
    for k in range(layers):
        size, level = 100 + 7 * (k % 5), layers - k
        before = (3 * k - 1,) if k else ()
        values.append(
            ForwardValue(
                f"convolution{k}", before, size, 0, 5 * size, size, size, library=True, looped=frozenset({level})
            )
        )
        values.append(ForwardValue(f"statistics{k}", (3 * k,), 1, 0, size, 1, 1, looped=frozenset({level})))
        values.append(
            ForwardValue(
                f"relu{k}", (3 * k, 3 * k + 1), size, 0, 0, size, size, called=level - 1, looped=frozenset({level - 1})
            )
        )
    return values


@pytest.mark.spread(4, 1)
@pytest.mark.parametrize("share", [0.9, 0.7, 0.5, 0.3])
def test_a_convolution_net_under_a_cap_is_bounded_closely(share: float) -> None:
    values, clock = net(50), Clock()
    cap = int(share * sum(value.bytes or 0 for value in values))
    found = choose_saving(values, cap, SolveOptions(workers=1), clock, clock.now() + 2)
    assert found is not None
    assert found.bytes <= cap
    assert found.bound_ps >= 0.98 * found.cost_ps
    assert 0 < least_cost(values, cap, clock, clock.now() + 2) <= found.bound_ps
