"""What arguments mean, without running any of it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from optfuse.batch.sources import find_sources, source_digest
from optfuse.errors import BatchError

EXAMPLE = Path(__file__).parents[2] / "instances" / "example.json"


def named(*arguments: Path) -> dict[str, str]:
    return {source.name: source.kind for source in find_sources(arguments)}


def test_a_folder_is_searched_in_full(zoo: Path) -> None:
    (zoo / "problem.json").write_bytes(EXAMPLE.read_bytes())
    (zoo / "packed.json.gz").write_bytes(gzip.compress(EXAMPLE.read_bytes()))
    (zoo / "other.json").write_text("{}")
    (zoo / "notes.py").write_text("def model(:")
    (zoo / "slip.py").write_text("def model(:\n\ndef inputs(): pass\n")
    sample = zoo / "samples" / "resnet18.a1"
    sample.mkdir(parents=True)
    for name in ("model.py", "weight_meta.py", "input_meta.py"):
        (sample / name).write_text("def model(): pass\ndef inputs(): pass")

    assert named(zoo) == {
        "tiny": "model",
        "below/trained": "model",
        "slip": "model",
        "problem": "instance",
        "packed": "instance",
        "samples/resnet18.a1": "graphnet",
    }
    assert named(sample) == {"resnet18.a1": "graphnet"}


def test_files_are_taken_at_their_word(zoo: Path) -> None:
    assert named(zoo / "helper.py", EXAMPLE) == {"helper": "model", "example": "instance"}


def test_one_file_twice_is_one_source(zoo: Path) -> None:
    assert list(named(zoo / "tiny.py", zoo)) == ["tiny", "below/trained"]


def test_two_of_one_name_are_refused(zoo: Path) -> None:
    (zoo / "below" / "tiny.py").write_text((zoo / "tiny.py").read_text())
    with pytest.raises(BatchError, match="both be called 'tiny'"):
        find_sources([zoo / "tiny.py", zoo / "below" / "tiny.py"])


@pytest.mark.parametrize("name", ["absent", "empty", "notes.txt"])
def test_arguments_that_hold_nothing_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(BatchError, match=name):
        find_sources([tmp_path / name])


def test_the_digest_is_of_the_content(zoo: Path) -> None:
    (source,) = find_sources([zoo / "tiny.py"])
    before = source_digest(source)
    (zoo / "tiny.py").touch()
    assert source_digest(source) == before
    (zoo / "tiny.py").write_text("# other\n" + (zoo / "tiny.py").read_text())
    assert source_digest(source) != before
