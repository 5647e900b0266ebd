"""The list of rewrites, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

from optfuse.compiler.simplify.pass_list import PASSES
from tests.cli.conftest import Outcome

Run = Callable[..., Outcome]


def test_every_rewrite_is_listed_in_order(optfuse: Run) -> None:
    outcome = optfuse("passes", "--json")

    assert outcome.code == 0, outcome.err
    records = json.loads(outcome.out)
    assert [(r["name"], r["kind"]) for r in records if r["stage"] == "extract"] == [(p.name, p.kind) for p in PASSES]
    assert {"frontend: normalize", "frontend: layout", "extract"} <= {r["stage"] for r in records}
    assert {r["kind"] for r in records} == {"normal form", "dominance", "decision"}
    assert all(r["says"] for r in records)


def test_a_line_each(optfuse: Run) -> None:
    outcome = optfuse("passes")

    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    records = json.loads(optfuse("passes", "--json").out)
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [record["name"] for record in records]
    assert (
        len(set(map(len, {line[: line.index(r["says"])] for line in lines for r in records if r["says"] in line}))) == 1
    )
