"""Rules as written: what they mean for ops, and what is no rule."""

from __future__ import annotations

import pytest

from optfuse.errors import RuleError
from optfuse.problem.instance import Rules
from optfuse.problem.rules import (
    Rule,
    barrier,
    fuse,
    joined,
    matching,
    meaning,
    no_fuse,
    rules_from_plain,
    single_kernel,
    with_rules,
)
from optfuse.problem.validate import validate
from tests.problem.cases import ADD, GELU, MATMUL, SCALE, SHIFT, SUM, example
from tests.problem.test_op_patterns import modular


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (fuse("add", "gelu"), Rules(fuse=((ADD, GELU),))),
        (fuse("a*", "s*"), Rules(fuse=((SCALE, SHIFT), (SHIFT, ADD), (ADD, SUM)))),
        # Within each layer: h.0 has scale, shift and matmul, h.1 has add and gelu.
        (fuse("net.h.*.norm", "net.h.*.mlp"), Rules(fuse=((SCALE, SHIFT), (SHIFT, MATMUL), (ADD, GELU)))),
        (fuse("net.h.*.mlp.act", "net.h.*.norm"), Rules(fuse=((ADD, GELU),))),
        # A plain name is the same for every layer.
        (fuse("net.h.*.mlp.act", "head"), Rules(fuse=((GELU, SUM),))),
        # Values of matmul never pass in registers: it has no scheme in common with anything.
        (no_fuse("net.h.*.norm", "net.h.*.mlp"), Rules(no_fuse=((SCALE, GELU), (SHIFT, GELU), (ADD, GELU)))),
        (no_fuse("a*", "a*"), None),
        (no_fuse("s*", "s*"), Rules(no_fuse=((SCALE, SHIFT), (SCALE, SUM), (SHIFT, SUM)))),
        (single_kernel(["add", "gelu", "sum"]), Rules(single_kernel=((ADD, GELU, SUM),))),
        (single_kernel(["net.h.*.norm"]), Rules(single_kernel=((SCALE, SHIFT), (ADD,)))),
        (single_kernel("gelu"), Rules(single_kernel=((GELU,),))),
        (barrier("net.h.*.mlp"), Rules(barrier=(MATMUL, GELU))),
        (fuse("gelu", "net.h.1.mlp"), None),
        (fuse("net.h.*.norm", "net.*.1.norm"), None),
    ],
)
def test_what_a_rule_means(rule: Rule, expected: Rules | None) -> None:
    if expected is None:
        with pytest.raises(RuleError):
            meaning(modular(), rule)
        return
    assert meaning(modular(), rule) == expected


def test_a_rule_that_matches_nothing_names_itself_and_its_neighbours() -> None:
    with pytest.raises(RuleError, match=r"rule fuse\(\"add\", \"gelo\"\): 'gelo' matches no op.*'gelu'"):
        meaning(modular(), fuse("add", "gelo"))


def test_with_rules_twice_changes_nothing_and_is_valid() -> None:
    rules = (fuse("add", "gelu"), fuse("gelu", "add"), barrier("s*"), single_kernel(["matmul"]), no_fuse("add", "sum"))
    once = with_rules(modular(), rules)
    validate(once)
    assert with_rules(once, rules) == once
    assert once.rules.fuse == ((ADD, GELU),)
    assert with_rules(modular(), ()) == modular()


def test_joined_keeps_the_least_cap() -> None:
    assert joined([Rules(peak_memory=5), Rules(), Rules(peak_memory=3)]).peak_memory == 3
    assert joined([Rules()]) == Rules()
    assert joined([Rules(single_kernel=((1, 2),)), Rules(single_kernel=((2, 1),))]).single_kernel == ((2, 1),)


def test_rules_go_to_the_graphs_in_which_they_match() -> None:
    rules = (fuse("add", "gelu"), barrier("head"), barrier("scale"))
    assert matching([example(), modular()], rules) == [(rules[0], rules[2]), rules]
    with pytest.raises(RuleError, match="head"):
        matching([example(), example()], rules)


def test_plain_data() -> None:
    data = {
        "fuse": [["a", "b"], ["c", "d"]],
        "no_fuse": [["a", "c"]],
        "single_kernel": [["a", "b", "c"], ["d"]],
        "barrier": ["a", ["b"]],
    }
    assert rules_from_plain(data) == (
        fuse("a", "b"),
        fuse("c", "d"),
        no_fuse("a", "c"),
        single_kernel(["a", "b", "c"]),
        single_kernel("d"),
        barrier("a"),
        barrier("b"),
    )
    assert [str(rule) for rule in rules_from_plain({"single_kernel": [["a", "b"]], "barrier": ["c"]})] == [
        'single_kernel(["a", "b"])',
        'barrier("c")',
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"fuze": []}, "did you mean 'fuse'"),
        ({"fuse": "a"}, "a list with an entry a rule"),
        ({"fuse": ["ab"]}, "no list of names"),
        ({"fuse": [["a"]]}, "takes two names, not 1"),
        ({"barrier": [["a", "b"]]}, "takes one name, not 2"),
        ({"single_kernel": [[]]}, "takes one name or more, not 0"),
        ({"barrier": [3]}, "no list of names"),
        ({"no_fuse": [["a", 3]]}, "3 does not name an op"),
        ({"no_fuse": [["a", ""]]}, "does not name an op"),
        ([["a"]], "a table of fuse"),
    ],
)
def test_what_is_no_rule(data: object, words: str) -> None:
    with pytest.raises(RuleError, match=words):
        rules_from_plain(data)
