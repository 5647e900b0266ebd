"""Arithmetic of complex numbers is done on their parts, and what takes numbers as they are gets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from optfuse.compiler.frontend.graph.rewrite import VIEWS
from optfuse.compiler.frontend.passes import normalize
from optfuse.compiler.frontend.passes.complex_numbers import compute_parts
from optfuse.compiler.frontend.passes.lazy_views import materialize_lazy_views
from tests.compiler.frontend.passes.graphs import operators, run, traced

X = torch.linspace(-2, 2, 24).reshape(3, 4, 2)
Y = torch.arange(12.0).reshape(3, 4) - 5
Z = torch.complex(Y + 1, Y.flip(0))


def rotate(x: Tensor, y: Tensor) -> Any:
    """Rotary embedding as complex numbers."""
    turned = torch.view_as_complex(x) * torch.polar(torch.ones_like(y), y)[:, None, :]
    return (torch.view_as_real(turned).flatten(2),)


WITHOUT: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "rotation": (rotate, (X, Y)),
    "sums": (lambda z, y: (z + y, y - z, z - 2j, y + 1j, z - z[:1]), (Z, Y)),
    "products": (lambda z, y: (z * z.conj(), z * y[:1], z * 2j, y * 1j, z / y.clamp(min=1), z / 3), (Z, Y)),
    "conjugate views": (lambda z: (z.conj()[:, 1:].t() * z[:, 1:].t(),), (Z,)),
    "halves": (lambda z: (z.exp().real, (z * z).imag, (z + z).abs(), (-z).angle()), (Z / 4 + 0.1j,)),
    "exponential of infinity": (lambda z: ((z * 1).exp().real,), (torch.tensor([complex(float("inf"), 0)]),)),
    "moved": (lambda z: (torch.cat([z, z.flip(0)])[[0, 5]].sum(1), torch.where(z.real > 0, z, -z)), (Z,)),
    "made of real ones": (lambda y: ((y.to(torch.complex64) + torch.complex(y, y)).reshape(-1),), (Y,)),
    "other orders in memory": (
        lambda z: (
            (z.t() * 2).t().view(12) * 1j,
            torch.view_as_real(z.t() + 1j).transpose(0, 1).view(24),
            (z[:, ::2] * 1j).view(3, 2, 1).exp(),
        ),
        (Z,),
    ),
    "wider": (lambda z: (z.to(torch.complex128) * 1j + z.to(torch.complex128),), (Z,)),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_only_views_of_complex_numbers_are_left(name: str) -> None:
    function, inputs = WITHOUT[name]
    captured = traced(function, *inputs)
    changed = compute_parts(materialize_lazy_views(captured))
    for got, wanted in zip(run(changed, *inputs), run(captured, *inputs), strict=True):
        torch.testing.assert_close(got, wanted)
    for node in changed.graph.graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, Tensor) and value.is_complex():
            assert node.target in VIEWS or node.target is torch.ops.aten.view_as_complex.default


def test_operators_without_parts_get_numbers() -> None:
    captured = traced(lambda z: (torch.fft.fft(z * 2).conj() / (z + 1), (z * z).prod()), Z)
    changed = compute_parts(materialize_lazy_views(captured))
    assert {"_fft_c2c.default", "div.Tensor", "prod.default"} <= set(operators(changed))
    for got, wanted in zip(run(changed, Z), run(captured, Z), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("function", [torch.complex, torch.polar])
def test_parts_of_two_types_are_refused_as_by_eager_execution(function: Callable[..., Tensor]) -> None:
    """Torch's trace does not refuse them."""
    compiled = torch.compile(lambda x, y: function(x, y) * 2j, backend="optfuse")
    with pytest.raises(RuntimeError, match="Expected object of scalar type Float but got scalar type Double"):
        compiled(Y, Y.double())


def test_a_graph_of_real_numbers_is_left_alone() -> None:
    captured = traced(lambda y: (y.exp(),), Y)
    assert compute_parts(captured) is captured


def test_promised_strides_are_kept() -> None:
    captured = traced(lambda z: (z.t() * 2,), Z)
    changed = normalize(captured)
    now = changed.outputs[0].meta["val"].stride()
    assert changed.strides.get(0, now) == (Z.t() * 2).stride()


@pytest.mark.parametrize(
    "part", [lambda z: z[..., :1].real, lambda z: torch.view_as_real(z)[..., 1]], ids=["slice", "half"]
)
def test_a_look_into_the_memory_of_complex_numbers_finds_both_parts(part: Callable[[Tensor], Tensor]) -> None:
    def function(y: Tensor) -> Tensor:
        return part(torch.complex(y, y + 1)).as_strided((2, 3), (3, 1), 1) * 2

    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(function, backend="optfuse")(Y), function(Y))
