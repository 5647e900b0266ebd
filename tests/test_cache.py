"""Records on disk: found by content alone, whole or absent, damage is reported."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

import pytest

from optfuse.cache import Cache, store_module
from optfuse.tuning.device import versions

CONTENT = {
    "kernel": "abc",
    "device": "H200",
    "versions": {"triton": "3.6.0"},
    "operands": [["bfloat16", [4, 8], [8, 1]]],
}
RECORD = {"us": 3.25, "config": {"blocks": [["XBLOCK", 64]]}}


def test_a_record_comes_back(tmp_path: Path):
    cache = Cache(tmp_path / "deep" / "tuned")
    assert cache.read(CONTENT) is None
    cache.write(CONTENT, RECORD)
    assert cache.read(CONTENT) == RECORD
    assert Cache(tmp_path / "deep" / "tuned").read(dict(reversed(CONTENT.items()))) == RECORD


@pytest.mark.parametrize("change", [{"device": "H100"}, {"versions": {"triton": "3.9.0"}}, {"operands": []}])
def test_other_content_has_other_records(tmp_path: Path, change: dict):
    cache = Cache(tmp_path)
    cache.write(CONTENT, RECORD)
    assert cache.read(CONTENT | change) is None


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"content": {}, "record": {}}', '{"record": 1}'])
def test_damage_is_reported_and_counts_as_none(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture):
    cache = Cache(tmp_path)
    cache.write(CONTENT, RECORD)
    (path,) = tmp_path.iterdir()
    path.write_text(damage)
    with caplog.at_level(logging.WARNING, "optfuse"):
        assert cache.read(CONTENT) is None
    assert str(path) in caplog.text
    cache.write(CONTENT, RECORD)
    assert cache.read(CONTENT) == RECORD


def test_a_folder_that_cannot_be_made_costs_its_records_and_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "tuned")
    with caplog.at_level(logging.WARNING, "optfuse"):
        for _ in range(2):
            cache.write(CONTENT, RECORD)
    assert cache.read(CONTENT) is None
    (message,) = caplog.messages
    assert str(cache.folder) in message
    assert "XDG_CACHE_HOME" in message


@pytest.mark.parametrize("home", ["no home", "not writable"])
def test_modules_have_a_folder_in_any_case(
    tmp_path: Path, home: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    if home == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", lambda: Path("~no such user").expanduser())
    else:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "optfuse"):
        path = store_module("VALUE = 3\n")
        assert store_module("VALUE = 4\n") != path
    assert path.read_text() == "VALUE = 3\n"
    assert Path(tempfile.gettempdir()) in path.parents
    assert len(caplog.messages) == 1


def test_versions_name_what_compiles():
    assert set(versions()) == {"optfuse", "torch", "triton"}


def test_the_longest_unused_records_go_where_the_folder_is_full(tmp_path: Path):
    size = 0
    for number in range(8):
        cache = Cache(tmp_path, most_bytes=10**9 if number < 4 else 5 * size)
        cache.write(CONTENT | {"kernel": str(number)}, RECORD)
        if not number:
            size = next(tmp_path.iterdir()).stat().st_size
        for path in tmp_path.iterdir():  # every record a second older, so that the order does not hang on the clock
            stamp = path.stat().st_mtime - 1
            os.utime(path, (stamp, stamp))
        assert cache.read(CONTENT | {"kernel": "0"}) == RECORD
    kept = {number for number in range(8) if cache.read(CONTENT | {"kernel": str(number)})}
    assert kept == {0, 4, 5, 6, 7}
