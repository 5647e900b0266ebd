"""Files of instances and solutions: nothing lost, nothing run, every malformation one clear line."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from optfuse.errors import InvalidInstanceError, InvalidSolutionError, OutputError
from optfuse.problem.instance import Instance
from optfuse.problem.serialize import (
    digest,
    instance_from_json,
    instance_to_json,
    load_instance,
    load_solution,
    save_instance,
    save_solution,
    solution_from_json,
    solution_to_json,
)
from optfuse.solver.baseline.greedy import greedy
from tests.problem.cases import answer, example
from tests.strategies import instances, share


@settings(max_examples=share(60), deadline=None, derandomize=True)
@given(instances(variants=True, rules=True))
def test_round_trip(instance: Instance) -> None:
    again = instance_from_json(instance_to_json(instance))
    assert again == instance
    assert digest(again) == digest(instance)
    solution = greedy(instance)
    assert solution_from_json(solution_to_json(solution)) == solution


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_files_round_trip(tmp_path: Path, suffix: str) -> None:
    save_instance(example(), tmp_path / f"instance{suffix}")
    save_solution(answer(example()), tmp_path / f"solution{suffix}")
    assert load_instance(tmp_path / f"instance{suffix}") == example()
    assert load_solution(tmp_path / f"solution{suffix}") == answer(example())
    assert {path.name for path in tmp_path.iterdir()} == {f"instance{suffix}", f"solution{suffix}"}


def test_gzipped_files_are_reproducible(tmp_path: Path) -> None:
    save_instance(example(), tmp_path / "one.json.gz")
    save_instance(example(), tmp_path / "two.json.gz")
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()


def test_the_file_is_plain_json_with_one_element_a_line() -> None:
    text = instance_to_json(example())
    data = json.loads(text)
    assert data["format"] == "optfuse-instance"
    assert [op["name"] for op in data["ops"]] == ["scale", "shift", "matmul", "add", "gelu", "sum"]
    assert sum(line.startswith(' {"name": "scale"') for line in text.splitlines()) == 1


def test_the_digest_tells_instances_apart() -> None:
    changed = replace(example(), limits=replace(example().limits, max_ops=3))
    assert digest(changed) != digest(example())
    assert digest(replace(example())) == digest(example())


def test_a_failed_save_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        save_instance(example(), tmp_path / "missing" / "instance.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(OutputError, match="cannot be written"):
        save_instance(example(), tmp_path / "folder.json")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.json"]


Edit = Callable[[dict[str, Any]], object]

MALFORMED: list[tuple[str, Edit]] = [
    (r"ops\[0\]\.nane: unknown key; the nearest known one is 'name'", lambda d: d["ops"][0].update(nane="x")),
    (r"ops\[0\]\.kind: missing", lambda d: d["ops"][0].pop("kind")),
    (r"ops\[0\]\.kind: expected one of 'loop'", lambda d: d["ops"][0].update(kind="lop")),
    (r"ops\[0\]\.kind: expected one of", lambda d: d["ops"][0].update(kind=["loop"])),
    (r"ops\[2\]: expected an object, got 3", lambda d: d["ops"].__setitem__(2, 3)),
    (r"ops: expected a list", lambda d: d.update(ops={})),
    (r"edges\[0\]\.src: expected a whole number, got 1\.0", lambda d: d["edges"][0].update(src=1.0)),
    (r"edges\[0\]\.src: expected a whole number, got True", lambda d: d["edges"][0].update(src=True)),
    (r"buffers\[0\]\.output: expected true or false", lambda d: d["buffers"][0].update(output=1)),
    (r"name: expected a string, got None", lambda d: d.update(name=None)),
    (r"rules\.fuse\[0\]: expected 2 entries, got 3", lambda d: d.update(rules={"fuse": [[0, 1, 2]]})),
    (r"devices: missing", lambda d: d.pop("devices")),
    (r"version 2 is not known; this program reads version 1", lambda d: d.update(version=2)),
    (r"version None is not known", lambda d: d.pop("version")),
    (r"not an optfuse-instance file", lambda d: d.update(format="optfuse-solution")),
    (r"buffer 'a': bytes is negative: -1", lambda d: d["buffers"][2].update(bytes=-1)),
]


@pytest.mark.parametrize(("message", "edit"), MALFORMED, ids=[message for message, _ in MALFORMED])
def test_malformed_instances_are_one_clear_line(message: str, edit: Edit) -> None:
    data = json.loads(instance_to_json(example()))
    edit(data)
    with pytest.raises(InvalidInstanceError, match=message) as caught:
        instance_from_json(json.dumps(data), "file.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "3", "[" * 100_000, b"\xff\xfe\x00"])
def test_what_is_no_instance_at_all(text: str | bytes) -> None:
    with pytest.raises(InvalidInstanceError, match=r"file\.json: not "):
        instance_from_json(text, "file.json")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidInstanceError, match="no such file"):
        load_instance(tmp_path / "absent.json")
    with pytest.raises(InvalidInstanceError, match="cannot be read"):
        load_instance(tmp_path)
    (tmp_path / "bad.json.gz").write_bytes(b"not gzip")
    with pytest.raises(InvalidInstanceError, match="cannot be read"):
        load_instance(tmp_path / "bad.json.gz")
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b"{" * 1000)[:-9])
    with pytest.raises(InvalidSolutionError, match="cannot be read"):
        load_solution(tmp_path / "cut.json.gz")


@pytest.mark.parametrize(
    ("message", "edit"),
    [
        (r"kernels\[0\]\.ops\[0\]: expected a whole number", lambda d: d["kernels"][0].update(ops=["scale"])),
        (r"objective is negative", lambda d: d.update(objective=-1)),
        (r"instance_digest: missing", lambda d: d.pop("instance_digest")),
        (r"version '1' is not known", lambda d: d.update(version="1")),
        (r"placement: unknown key; the nearest known one is 'placements'", lambda d: d.update(placement=[])),
    ],
)
def test_malformed_solutions_are_one_clear_line(message: str, edit: Edit) -> None:
    data = json.loads(solution_to_json(answer(example())))
    edit(data)
    with pytest.raises(InvalidSolutionError, match=message):
        solution_from_json(json.dumps(data))


def changed(**changes: object) -> str:
    return json.dumps({**json.loads(instance_to_json(example())), **changes})


def named(family: str, name: str) -> str:
    data = json.loads(instance_to_json(example()))
    if family == "variants":
        data["variants"] = [{"name": name, "alternatives": [[], []]}]
    else:
        data[family][0]["name"] = name
    return json.dumps(data)


@pytest.mark.parametrize("family", ["devices", "schemes", "buffers", "ops", "variants"])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("\ud800x", "half a surrogate pair"),
        ("a\nb", "control character"),
        ("\0", "control character"),
        ("\u2028", "control character"),
        ("x" * 5000, "at most 4096"),
    ],
)
@pytest.mark.spread(3)
def test_names_that_are_no_text_are_refused_in_one_line(family: str, name: str, why: str) -> None:
    for text in (named(family, name), changed(name=name)):
        with pytest.raises(InvalidInstanceError, match=why) as refused:
            instance_from_json(text)
        assert len(str(refused.value).encode().splitlines()) == 1
        assert len(str(refused.value)) < 200


@pytest.mark.parametrize("field", ["node", "module", "source"])
def test_other_text_of_an_op_is_text(field: str) -> None:
    data = json.loads(instance_to_json(example()))
    data["ops"][0][field] = "\udfff"
    with pytest.raises(InvalidInstanceError, match=f"op 'scale': {field}.* half a surrogate pair"):
        instance_from_json(json.dumps(data))


def test_unknown_keys_that_are_no_text_are_shown_in_escapes() -> None:
    with pytest.raises(InvalidInstanceError, match="unknown key") as refused:
        instance_from_json(changed(**{"\ud800": 1}))
    str(refused.value).encode()


NUMBERS = ["NaN", "Infinity", "-Infinity", "1e3", "1.0", "1e400", "true", '"1"', "9223372036854775808", "-1"]


@pytest.mark.parametrize("number", [*NUMBERS, pytest.param("9" * 5000, id="long")])
@pytest.mark.parametrize("place", ['"bytes": 1048576', '"src": 0', '"max_weight": 16', '"version": 1', '"launch_ps": '])
@pytest.mark.spread(3)
def test_what_is_no_whole_number_in_range_is_refused(number: str, place: str) -> None:
    text = instance_to_json(example())
    key = place.split(":")[0]
    assert key in text
    broken = re.sub(f"{key}: \\d+", f"{key}: {number}", text, count=1)
    assert broken != text
    with pytest.raises(InvalidInstanceError) as refused:
        instance_from_json(broken)
    assert len(str(refused.value).splitlines()) == 1


def test_footprints_are_numbers_in_range() -> None:
    for number in ("-1", str(1 << 60)):
        text = instance_to_json(example()).replace(
            '"reads": [{"buffer": 0,', f'"reads": [{{"footprint": {number}, "buffer": 0,'
        )
        with pytest.raises(InvalidInstanceError, match="footprint"):
            instance_from_json(text)


def test_a_key_given_twice_is_refused() -> None:
    text = instance_to_json(example())
    for twice in (text.replace('"kind": "loop"', '"kind": "loop", "kind": "library"', 1), '{"name": "x",' + text[1:]):
        with pytest.raises(InvalidInstanceError, match="twice"):
            instance_from_json(twice)
    with pytest.raises(InvalidSolutionError, match="'objective' twice"):
        solution_from_json('{"objective": 1,' + solution_to_json(answer(example()))[1:])


def test_deep_nesting_is_refused() -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000):
        with pytest.raises(InvalidInstanceError, match="nested too deep"):
            instance_from_json(text)
