from __future__ import annotations

from pathlib import Path

import pytest

from optfuse.cli.files import whole_folders
from optfuse.errors import OutputError

MARKER = "report.txt"


def fill(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / MARKER).write_text(text)


def test_folders_appear_and_leave_no_temporary_name(tmp_path: Path) -> None:
    with whole_folders(tmp_path / "a" / "plans", ["forward", "backward"], MARKER) as temporary:
        fill(temporary / "forward", "one")
        fill(temporary / "backward", "two")
        assert not (tmp_path / "a" / "plans" / "forward").exists()

    assert sorted(path.name for path in (tmp_path / "a" / "plans").iterdir()) == ["backward", "forward"]
    assert (tmp_path / "a" / "plans" / "backward" / MARKER).read_text() == "two"


def test_a_folder_of_the_name_is_replaced_whole_and_its_neighbours_stay(tmp_path: Path) -> None:
    fill(tmp_path / "forward", "old")
    (tmp_path / "forward" / "stale.txt").touch()
    (tmp_path / "notes.txt").touch()

    with whole_folders(tmp_path, ["forward"], MARKER) as temporary:
        fill(temporary / "forward", "new")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["forward", "notes.txt"]
    assert [path.name for path in (tmp_path / "forward").iterdir()] == ["report.txt"]
    assert (tmp_path / "forward" / MARKER).read_text() == "new"


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_everything_as_it_was(tmp_path: Path, failure: type[BaseException]) -> None:
    fill(tmp_path / "forward", "old")

    def write_and_fail() -> None:
        with whole_folders(tmp_path, ["forward"], MARKER) as temporary:
            fill(temporary / "forward", "new")
            raise failure

    with pytest.raises(failure):
        write_and_fail()

    assert [path.name for path in tmp_path.iterdir()] == ["forward"]
    assert (tmp_path / "forward" / MARKER).read_text() == "old"


def test_a_failure_removes_the_parents_that_it_made(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), whole_folders(tmp_path / "a" / "b", ["forward"], MARKER):
        raise RuntimeError

    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "forward").touch()

    with (
        pytest.raises(OutputError, match="exists and is not a folder"),
        whole_folders(tmp_path, ["forward"], MARKER),
    ):
        pytest.fail("the body ran")


def test_a_parent_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with (
        pytest.raises(OutputError, match="file"),
        whole_folders(tmp_path / "file" / "plans", ["forward"], MARKER),
    ):
        pytest.fail("the body ran")


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "forward").mkdir()
    (tmp_path / "forward" / "thesis.txt").touch()

    with pytest.raises(OutputError, match="holds no report"), whole_folders(tmp_path, ["forward"], MARKER):
        pytest.fail("the body ran")

    assert (tmp_path / "forward" / "thesis.txt").exists()
