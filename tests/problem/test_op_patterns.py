"""Ops by name, node, module path and glob."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optfuse.errors import RuleError
from optfuse.problem.instance import Instance
from optfuse.problem.op_patterns import find_ops, no_match, one_op
from tests.problem.cases import example

#: By op: scale, shift, matmul, add, gelu, sum.
MODULES = ("net.h.0.norm", "net.h.0.norm", "net.h.0.mlp.fc", "net.h.1.norm", "net.h.1.mlp.act", "head")


def modular() -> Instance:
    plain = example()
    ops = [replace(op, module=module) for op, module in zip(plain.ops, MODULES, strict=True)]
    ops[4] = replace(ops[4], node="gelu_default")
    return replace(plain, ops=tuple(ops))


@pytest.mark.parametrize(
    ("pattern", "ops"),
    [
        ("gelu", {4: ()}),
        ("gelu_default", {4: ()}),
        ("s*", {0: (), 1: (), 5: ()}),
        ("s[ch]*", {0: (), 1: ()}),
        ("?dd", {3: ()}),
        ("*_default", {4: ()}),
        ("head", {5: ()}),
        ("net", {0: (), 1: (), 2: (), 3: (), 4: ()}),
        ("net.h.1", {3: (), 4: ()}),
        ("net.h.*.norm", {0: ("0",), 1: ("0",), 3: ("1",)}),
        ("net.h.*.mlp", {2: ("0",), 4: ("1",)}),
        ("net.h.[1-9].*", {3: ("1", "norm"), 4: ("1", "mlp")}),
        ("net.h.*.nor*", {0: ("0", "norm"), 1: ("0", "norm"), 3: ("1", "norm")}),
        ("ne?", {0: (), 1: (), 2: (), 3: (), 4: ()}),
        ("net.h.*", {0: ("0",), 1: ("0",), 2: ("0",), 3: ("1",), 4: ("1",)}),
        ("net.*", {k: ("h",) for k in range(5)}),
        ("net.h.2", {}),
        ("net.h", {0: (), 1: (), 2: (), 3: (), 4: ()}),
        ("net.*.norm", {}),
        ("*", {k: () for k in range(6)}),
    ],
)
def test_what_a_pattern_names(pattern: str, ops: dict[int, tuple[str, ...]]) -> None:
    assert find_ops(modular(), pattern) == ops


def test_a_name_goes_before_a_module_of_that_name() -> None:
    plain = modular()
    instance = replace(plain, ops=(*plain.ops[:5], replace(plain.ops[5], name="net")))
    assert find_ops(instance, "net") == {5: ()}


def test_what_matches_nothing_has_the_nearest_names() -> None:
    assert no_match(modular(), "net.h.3.norm").startswith("'net.h.3.norm' matches no op of 'example'")
    assert "'net.h.0.norm'" in no_match(modular(), "net.h.3.norm")
    assert "'shift'" in no_match(modular(), "shfit")


def test_one_op() -> None:
    assert one_op(modular(), "net.h.1.mlp") == 4
    with pytest.raises(RuleError, match="matches no op"):
        one_op(modular(), "nothing")
    with pytest.raises(RuleError, match=r"matches 2 ops \(scale, shift\)"):
        one_op(modular(), "net.h.0.norm")
