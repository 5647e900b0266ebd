"""The canonical text, which digests are of, against the standard library's."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from optfuse.problem.canonical import LONG, canonical_json
from optfuse.problem.instance import Instance
from optfuse.problem.plain_data import to_plain
from optfuse.problem.serialize import digest
from tests.strategies import instances


def _plainly(value: object) -> str:
    return json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"))


@given(instances())
def test_it_is_the_text_of_the_plain_data(instance: Instance) -> None:
    assert canonical_json(instance) == _plainly(instance)


@given(instances())
def test_a_digest_counts_the_version_in(instance: Instance) -> None:
    text = json.dumps({"version": instance.version, **to_plain(instance)}, sort_keys=True, separators=(",", ":"))
    assert digest(instance) == hashlib.sha256(text.encode()).hexdigest()


@given(instances(max_ops=4), st.integers(1, 1 << 40))
def test_what_is_remembered_of_long_lists_is_theirs(instance: Instance, cap: int) -> None:
    long = replace(instance, schemes=instance.schemes * LONG)
    for shown in (long, replace(long, rules=replace(long.rules, peak_memory=cap)), replace(long, schemes=())):
        assert canonical_json(shown) == _plainly(shown)


def test_names_are_escaped_and_kinds_of_values_may_mix() -> None:
    @dataclass(frozen=True)
    class Mixed:
        """Every kind of value, in one field."""

        b: object = 0
        a: object = None

    mixed = Mixed((1, None, 'quote " and \n and é', True, (), ((), (2,)), Mixed(), Mixed(Mixed(), -1)), False)
    for value in (mixed, Mixed(), replace(mixed, a=mixed)):
        assert canonical_json(value) == _plainly(value)
