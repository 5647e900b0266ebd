"""The rewrites between lowering and the solver, in the order in which they run, each with its kind.

The kind says what a certificate of the rewritten graph means for the graph before:

- *normal form*: neither the legality nor the price of any schedule changes.
- *dominance*: without a cap on memory some best schedule survives. The proof is in the pass's module, and
  ``tests/oracle/test_dominance.py`` holds it against exhaustive search on the graph without the rewrite.
- *decision*: takes something from the solver, or may. The result names it (``Schedule.decisions``).

A pass without proof and test is a decision. Each pass has an example of its effect in its docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from optfuse.compiler.ir.nodes import LoopGraph
from optfuse.compiler.ir.verify_graph import verify
from optfuse.compiler.simplify.decisions import Decision, Kind
from optfuse.compiler.simplify.inline_cheap import inline_cheap
from optfuse.compiler.simplify.inline_moved import inline_moved
from optfuse.compiler.simplify.join_isolated import MOST_OPS, join_isolated
from optfuse.compiler.simplify.join_leaves import join_leaves
from optfuse.compiler.simplify.round_compared import round_compared
from optfuse.compiler.simplify.split_reductions import split_reductions
from optfuse.problem.instance import Device


@dataclass(frozen=True, slots=True)
class Pass:
    """A rewrite of the loop graph: a pure function of the graph and the device, with its kind.

    ``says`` describes it in one line. ``counts`` names in the plural what it does, once for each op that it adds or
    removes; empty where the number of ops stays.
    """

    name: str
    kind: Kind
    run: Callable[[LoopGraph, Device], LoopGraph]
    says: str
    counts: str = ""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A rewritten graph, and the decisions of the passes that are no normal forms."""

    graph: LoopGraph
    decided: tuple[Decision, ...] = ()


PASSES: tuple[Pass, ...] = (
    Pass(
        "round_compared",
        "normal form",
        lambda graph, _: round_compared(graph),
        "values that are compared with one another are rounded where eager execution rounds them",
    ),
    Pass(
        "join_isolated",
        "decision",
        lambda graph, device: join_isolated(graph, longest=MOST_OPS if device.shared_ps else None),
        "small computations that share no value with others are joined into one op for each size",
        "ops joined to others like them",
    ),
    Pass(
        "inline_cheap",
        "decision",
        lambda graph, _: inline_cheap(graph),
        "a value that is recomputed from no more bytes than it has is inlined into each of its consumers",
        "values inlined",
    ),
    Pass(
        "inline_moved",
        "decision",
        lambda graph, _: inline_moved(graph),
        "the producer of a value that is only padded, cut, rolled or concatenated is inlined into the op that moves it",
        "values moved",
    ),
    Pass(
        "split_reductions",
        "decision",
        split_reductions,
        "a long reduction with few results, or of few neighbours in memory, becomes partial results that are combined",
        "reductions split",
    ),
    Pass(
        "join_leaves",
        "dominance",
        lambda graph, _: join_leaves(graph),
        "second stages of split sums whose results only leave the graph are joined into one op for each size",
        "second stages joined to others",
    ),
)


def rewrite(graph: LoopGraph, device: Device) -> Rewritten:
    """The graph after all passes, in order, verified after the last (after each would take a third longer).

    Raises:
        InvalidGraphError: If a pass returns a malformed graph.
    """
    decided: list[Decision] = []
    for each in PASSES:
        after = each.run(graph, device)
        count = abs(len(after.ops) - len(graph.ops))
        if count and each.kind != "normal form":
            decided.append(Decision(each.name, each.kind, count, each.counts))
        graph = after
    verify(graph)
    return Rewritten(graph, tuple(decided))
