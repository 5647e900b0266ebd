from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from optfuse.problem.packing import check_packing
from optfuse.problem.packing_csv import parse_packing
from tests.cli.conftest import Outcome
from tests.packings import perfect

Run = Callable[..., Outcome]
HEADING = "id,lower,upper,size\n"


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A file whose buffers fill 1024 bytes at every time."""
    rows = (f"{b.id},{b.lower},{b.upper},{b.size}\n" for b in perfect(0, pieces=40))
    path = tmp_path / "full.csv"
    path.write_text(HEADING + "".join(rows))
    return path


def offsets_of(text: str) -> list[int]:
    return [int(line.rsplit(",", 1)[1]) for line in text.splitlines()[1:]]


def test_offsets_are_printed_and_valid(optfuse: Run, full: Path) -> None:
    outcome = optfuse("pack", full, "--capacity", 1024, "--workers", 2)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("id,lower,upper,size,offset\n")
    assert check_packing(parse_packing(full.read_text()).buffers, offsets_of(outcome.out), 1024) == ()
    assert "the least there is" in outcome.err


def test_out_and_json(optfuse: Run, full: Path, tmp_path: Path) -> None:
    outcome = optfuse("pack", full, "--workers", 2, "--out", tmp_path / "o.csv", "--json")
    record = json.loads(outcome.out)
    assert (record["status"], record["height"], record["bound"], record["capacity"]) == ("OPTIMAL", 1024, 1024, None)
    assert offsets_of((tmp_path / "o.csv").read_text()) == list(record["offsets"].values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full.csv", "o.csv"]


def test_what_does_not_fit_is_one_line_and_no_file(optfuse: Run, full: Path, tmp_path: Path) -> None:
    line = optfuse("pack", full, "--capacity", 1023, "--out", tmp_path / "o.csv").error_line()
    assert "1024 bytes are live at once" in line
    assert not (tmp_path / "o.csv").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,lower,size\n", "no column 'upper'"),
        (HEADING + "a,0,b,3\n", "must be a whole number"),
        (HEADING + "a,0,3,9223372036854775808\n", "line 2: buffer 'a': size 9223372036854775808 is beyond 2**56"),
        (HEADING + "a,-1180591620717411303424,4,5\n", "lower -1180591620717411303424 is beyond 2**56"),
        (HEADING + "a,0,3," + "9" * 5000 + "\n", "size must be a whole number"),
    ],
)
def test_bad_files_are_one_line(optfuse: Run, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    assert said in optfuse("pack", path).error_line()


def test_files_that_are_not_there(optfuse: Run, full: Path, tmp_path: Path) -> None:
    assert "cannot be read" in optfuse("pack", tmp_path / "none.csv").error_line()
    assert "there is no folder" in optfuse("pack", full, "--out", tmp_path / "no" / "o.csv").error_line()


@pytest.mark.slow
def test_pack_needs_no_torch(full: Path) -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(('torch', 'triton', 'sympy', 'transformers')));"
    code = f"{blocked} sys.argv = ['optfuse', 'pack', {str(full)!r}]; from optfuse.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
