"""Standard output that takes nothing is one line on stderr and exit code 2, whatever the command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from optfuse.problem.serialize import load_instance, save_solution
from optfuse.solver.solve import SolveOptions, solve
from tests.report.cases import EXAMPLE

PACKING = "id,lower,upper,size\na,0,3,4\nb,1,4,8\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A solution and a packing problem, to be named in commands."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "p.csv").write_text(PACKING)
    names = {"instance": str(EXAMPLE), "solution": str(folder / "s.json"), "packing": str(folder / "p.csv")}
    save_solution(solve(load_instance(EXAMPLE), SolveOptions(solver="greedy")).solution, names["solution"])
    return names


def run(*arguments: object, shell: str = "", **settings: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "optfuse", *map(str, arguments)]
    if shell:
        command = ["bash", "-c", f'"$@" {shell}', "bash", *command]
    return subprocess.run(command, text=True, capture_output=True, **settings)  # type: ignore[call-overload]


COMMANDS = [
    "check {instance} {solution}",
    "solve {instance} --solver greedy",
    "solve {instance} --solver greedy --json",
    "pack {packing}",
    "pack {packing} --json",
    "explain {instance} exp add --solution {solution}",
    "--help",
    "--version",
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.spread(8, 6)
def test_a_full_disk_behind_standard_output(command: str, files: dict[str, str]) -> None:
    done = run(*command.format(**files).split(), shell="> /dev/full", check=False)

    assert done.returncode == 2, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("optfuse: error: standard output: cannot be written (No space left on device)")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.spread(8)
def test_a_reader_that_has_gone(command: str, files: dict[str, str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [sys.executable, "-m", "optfuse", *command.format(**files).split()]
    done = subprocess.run(arguments, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)

    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("optfuse: error: standard output: cannot be written (Broken pipe)")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_streams_that_are_closed(files: dict[str, str]) -> None:
    assert run("solve", files["instance"], "--solver", "greedy", "--json", shell=">&-", check=False).returncode == 0
    assert run("solve", "none.json", shell="2>&-", check=False).returncode == 2
    assert run("solve", "none.json", shell="2>/dev/full", check=False).returncode == 2


def test_names_of_files_that_the_locale_cannot_print(tmp_path: Path, files: dict[str, str]) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\xe9.json"
    Path(os.fsdecode(path)).write_bytes(EXAMPLE.read_bytes())
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command: list[str | bytes] = [sys.executable, "-m", "optfuse", "check", path, files["solution"]]
    done = subprocess.run(command, capture_output=True, env=plain, check=False)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([*command[:-1], path], capture_output=True, env=plain, check=False)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
