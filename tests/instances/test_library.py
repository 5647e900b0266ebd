"""The library's files: canonical, free of what belongs to one machine, small, and remade by their generator."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from optfuse.errors import InvalidOptionError
from optfuse.lab.generated.families import FAMILIES, generate
from optfuse.problem.serialize import instance_from_json, instance_to_json
from tests.instances.library import files

FILES = files()
GENERATED = re.compile(r"(\w+)-(\d+)-(\d+)\.generated")
#: Larger texts are read in the slow tests.
QUICK_BYTES = 200_000
QUICK_OPS = 1000
#: Absolute paths, and folders of installed packages.
MACHINE = re.compile(rb'"(?:source|module|node|name)": "(?:/|~|[A-Z]:\\)|site-packages|dist-packages')


def text_of(path: Path) -> bytes:
    raw = path.read_bytes()
    return gzip.decompress(raw) if path.suffix == ".gz" else raw


def test_as_many_and_as_small_as_promised() -> None:
    assert len(FILES) >= 60
    assert sum(path.stat().st_size for path in FILES.values()) < 20_000_000
    found = {match[1] for name in FILES if (match := GENERATED.fullmatch(name))}
    assert found == set(FAMILIES)


def test_nothing_of_one_machine() -> None:
    for path in FILES.values():
        raw = path.read_bytes()
        assert path.suffix != ".gz" or raw[3:8] == bytes(5), f"{path.name} names a file or a time"
        assert not MACHINE.search(text_of(path)), path.name


def assert_canonical(path: Path) -> None:
    text = text_of(path)
    instance = instance_from_json(text)
    assert path.name in {f"{instance.name}.json", f"{instance.name}.json.gz"}
    if path.name != "example.json":  # laid out for people
        assert instance_to_json(instance).encode() == text


@pytest.mark.parametrize("name", [name for name, path in FILES.items() if len(text_of(path)) < QUICK_BYTES])
def test_canonical(name: str) -> None:
    assert_canonical(FILES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(FILES))
def test_all_canonical(name: str) -> None:
    assert_canonical(FILES[name])


def assert_remade(name: str) -> None:
    match = GENERATED.fullmatch(name)
    assert match is not None
    family, size, seed = match[1], int(match[2]), int(match[3])
    assert instance_to_json(generate(family, size, seed)).encode() == text_of(FILES[name])


@pytest.mark.parametrize("name", [n for n in FILES if (m := GENERATED.fullmatch(n)) and int(m[2]) <= QUICK_OPS])
def test_remade_byte_for_byte(name: str) -> None:
    assert_remade(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in FILES if (m := GENERATED.fullmatch(n)) and int(m[2]) > QUICK_OPS])
def test_large_ones_remade_byte_for_byte(name: str) -> None:
    assert_remade(name)


@pytest.mark.parametrize("bad", [("star", 10, 0), ("chain", 1, 0), ("chain", 10, -1)])
def test_unknown_families_and_sizes_are_refused(bad: tuple[str, int, int]) -> None:
    with pytest.raises(InvalidOptionError):
        generate(*bad)


def test_seeds_and_sizes_differ() -> None:
    texts = {instance_to_json(generate(f, n, s)) for f in FAMILIES for n in (20, 30) for s in (0, 1)}
    assert len(texts) == 4 * len(FAMILIES)
