from __future__ import annotations

import io
from dataclasses import replace

import pytest

from optfuse.errors import InvalidOptionError
from optfuse.report.plot import DRAWN_OPS, plot
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve
from tests.layered import build
from tests.report.cases import example, result_of, solution_of
from tests.solver.overlap.test_overlap import OPTIONS, TWO_GRADIENTS, instance_of


def texts(figure: object) -> list[str]:
    """All that is written in a figure."""
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]  # type: ignore[attr-defined]


def test_a_small_graph_is_drawn_with_both_partitions_and_bytes_on_the_arrows() -> None:
    instance = example()
    greedy, chosen = solution_of(instance, ((0, 1), 1), ((2,), 2)), solution_of(instance, ((0, 1, 2), 2))

    figure = plot(instance, result_of(greedy, chosen))

    written = texts(figure)
    names = [op.name for op in instance.ops]
    assert [written.count(name) for name in names] == [2, 2, 2]
    assert sum(text.startswith("greedy: 2 kernels") for text in written) == 1
    assert sum(text.startswith("chosen: 1 kernel,") for text in written) == 1
    assert written.count("4 MiB") == 1
    assert any(text.startswith(f"{instance.name}: ") and "proven optimal" in text for text in written)
    figure.savefig(io.BytesIO(), format="png")


def test_a_difference_is_drawn_alone() -> None:
    instance = example()
    greedy, chosen = solution_of(instance, ((0, 1), 1), ((2,), 2)), solution_of(instance, ((0, 1, 2), 2))
    result = result_of(greedy, chosen)

    assert any("difference 0 of 1, which saves" in text for text in texts(plot(instance, result, 0)))
    with pytest.raises(InvalidOptionError, match="difference must be one of the 1"):
        plot(instance, result, 1)
    with pytest.raises(InvalidOptionError, match="difference must be one of the 0"):
        plot(instance, result_of(chosen, chosen), 0)


def test_names_are_written_as_they_are() -> None:
    instance = example()
    odd = replace(instance, ops=(replace(instance.ops[0], name="a$x^{2}$_$"), *instance.ops[1:]))
    solution = solution_of(odd, ((0, 1, 2), 2))

    figure = plot(odd, result_of(solution, solution))

    assert "a$x^{2}$_$" in texts(figure)
    figure.savefig(io.BytesIO(), format="svg")


def test_a_large_graph_is_shown_in_figures() -> None:
    instance = build(3, DRAWN_OPS + 10)
    result = solve(instance, SolveOptions(solver="greedy"))

    written = texts(plot(instance, result))

    assert "memory over the run" in written
    assert "what each of 0 differences saves" in written
    assert any(f"peak {result.solution.peak_bytes / 2**20:,.1f} MiB" in text for text in written)


@pytest.mark.spread(2)
@pytest.mark.parametrize("more", [0, DRAWN_OPS])
def test_lanes_stand_beside_boxes_and_panels_where_a_graph_communicates(more: int) -> None:
    instance = instance_of([*TWO_GRADIENTS, *[("library", 1, 0, (6 + k,)) for k in range(more)]])
    result = solve(instance, replace(OPTIONS, order="program") if more else OPTIONS)

    figure = plot(instance, result)

    written = texts(figure)
    assert f"greedy: {22 + more}.0 us, 12.0 us exposed" in written
    if not more:
        assert "chosen: 17.0 us, 7.0 us exposed" in written
    assert f"no order of these kernels takes less: {17 + more}.0 us" in written
    assert "communicator 1" in written
    assert ("memory over the run" in written) == bool(more)
    figure.savefig(io.BytesIO(), format="png")
