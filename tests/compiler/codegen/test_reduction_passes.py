"""Which pass computes what."""

from __future__ import annotations

from optfuse.compiler.codegen.reduction_passes import order_passes
from tests.compiler.codegen.specs import Kernel, batch_norm, call, i0, i1, r0, softmax


def test_softmax_takes_three_passes():
    passes = order_passes(softmax(4, 8, "float32")[0])
    assert passes.roles == ("reduces", "full", "full", "reduces", "full")
    assert passes.count == 3
    assert passes.needed == ((0,), (1, 2, 3), (1, 2, 4))
    assert passes.store_pass == {4: 2}


def test_a_store_goes_to_the_last_pass_that_has_the_value_anyway():
    k = Kernel((3,), (5,))
    k.input("x", 3, 5)
    k.pointwise("y", call("neg", k.load("x", i0, i1)))
    k.pointwise("unrelated", call("exp", k.load("x", i0, i1)))
    k.reduce("sum", k.load("y", i0, r0))
    k.pointwise("z", call("mul", k.load("y", i0, i1), k.load("sum", i0)))
    passes = order_passes(k.spec("y", "unrelated", "z"))
    assert passes.store_pass == {0: 1, 1: 0, 3: 1}
    assert passes.needed == ((0, 1, 2), (0, 3))


def test_what_is_read_and_overwritten_is_a_hazard():
    passes = order_passes(batch_norm(2, 3, 4, "float32")[0])
    assert passes.hazards == {"running_mean"}
    assert passes.producers[1] == {"mean": 0}
    assert passes.ready[:2] == (1, 1)


def test_without_r_everything_is_outer():
    k = Kernel((3,), (1,))
    k.input("x", 3, 1)
    k.reduce("sum", k.load("x", i0, r0))
    passes = order_passes(k.spec("sum"))
    assert passes.roles == ("outer",)
