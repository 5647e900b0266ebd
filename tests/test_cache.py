"""Records on disk: found by content alone, whole or absent, damage is reported."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from optfuse.cache import Cache
from optfuse.errors import OutputError
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


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="XDG_CACHE_HOME"):
        Cache(tmp_path / "file" / "tuned").write(CONTENT, RECORD)


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
