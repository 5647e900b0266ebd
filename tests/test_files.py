"""A file is written whole or not at all, and a failure is one line even where its clean-up fails too."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from optfuse.errors import OutputError
from optfuse.files import whole_file, write_whole


def test_the_old_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 250)
    target.write_text("old")
    write_whole(target, "new \N{MICRO SIGN}")
    assert target.read_text(encoding="utf-8") == "new \N{MICRO SIGN}"
    assert list(tmp_path.iterdir()) == [target]


def test_a_failure_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def stop_half_way() -> None:
        with whole_file(target) as draft:
            draft.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_half_way()
    with pytest.raises(OutputError, match="cannot be written in UTF-8"):
        write_whole(target, "\udcff")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_read_only_file_system_refuses_the_clean_up_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    for name in ("write_bytes", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    with pytest.raises(OutputError, match=r"Read-only file system; name another with --out$"):
        write_whole(tmp_path / "file", "text", "name another with --out")


@pytest.mark.parametrize("place", ["file/below", "n" * 300, "folder"])
def test_places_that_take_no_file(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="cannot be written"):
        write_whole(tmp_path / place, "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_device_is_not_replaced_by_a_file() -> None:
    with pytest.raises(OutputError, match="is no file"):
        write_whole(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()
