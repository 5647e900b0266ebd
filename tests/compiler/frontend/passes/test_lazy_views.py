"""Views that negate or conjugate through a bit become elements that are negated or conjugated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from optfuse.compiler.frontend.passes.lazy_views import materialize_lazy_views
from tests.compiler.frontend.passes.graphs import operators, run, traced

aten = torch.ops.aten
X = torch.arange(12.0).reshape(3, 4)
Z = torch.complex(X, X + 1)

LAZY: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor, str]] = {
    "negation": (lambda x: (aten._neg_view(x).exp(),), X, "neg.default"),  # noqa: SLF001
    "conjugation": (lambda z: (aten._conj(z) + z,), Z, "_conj_physical.default"),  # noqa: SLF001
    "of a slice": (lambda x: (aten._neg_view(x[:, ::2]) + 1,), X, "neg.default"),  # noqa: SLF001
}


@pytest.mark.parametrize("name", LAZY)
def test_elements_are_computed(name: str) -> None:
    function, x, after = LAZY[name]
    captured = traced(function, x)
    materialized = materialize_lazy_views(captured)
    assert after in operators(materialized)
    assert not {"_neg_view.default", "_conj.default"} & set(operators(materialized))
    (got,), (wanted,) = run(materialized, x), run(captured, x)
    torch.testing.assert_close(got, wanted)
    assert not got.is_neg()
    assert not got.is_conj()


def test_views_of_conjugated_numbers_carry_no_bit() -> None:
    captured = materialize_lazy_views(traced(lambda z: (z.conj()[:, 1:].t() + 1,), Z))
    values = [node.meta["val"] for node in captured.graph.graph.nodes if node.op == "call_function"]
    assert not any(value.is_conj() for value in values)
