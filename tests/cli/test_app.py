from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

import optfuse as package
from optfuse.errors import InvalidInstanceError
from tests.cli.conftest import Outcome
from tests.report.cases import EXAMPLE

Run = Callable[..., Outcome]


def test_help_lists_every_command(optfuse: Run) -> None:
    outcome = optfuse("--help")

    assert outcome.code == 0
    assert all(command in outcome.out for command in ("optimize", "solve", "check", "demo"))


def test_the_version_is_the_package_s(optfuse: Run) -> None:
    outcome = optfuse("--version")

    assert (outcome.code, outcome.out.strip()) == (0, f"optfuse {package.__version__}")


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("unknown",), "'unknown'"),
        (("solve",), "INSTANCE.json"),
        (("check", EXAMPLE), "SOLUTION.json"),
        (("solve", EXAMPLE, "--time-limit", "soon"), "--time-limit"),
        (("optimize", "net.py", "--device"), "--device"),
    ],
)
def test_a_usage_error_is_one_line_that_leads_to_the_help(optfuse: Run, args: tuple[object, ...], reason: str) -> None:
    line = optfuse(*args).error_line()

    assert reason in line
    assert "--help" in line


def test_the_command_alone_shows_the_help(optfuse: Run) -> None:
    outcome = optfuse()

    assert outcome.code == 2
    assert "Usage" in outcome.out


def test_a_message_of_several_lines_is_printed_as_one(optfuse: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise InvalidInstanceError("two\n  lines")

    monkeypatch.setattr("optfuse.cli.check.load_instance", refuse)

    assert optfuse("check", EXAMPLE, EXAMPLE).error_line() == "optfuse: error: two lines"


def test_an_interrupt_is_exit_code_130(optfuse: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("optfuse.cli.check.load_instance", interrupted)

    assert optfuse("check", EXAMPLE, EXAMPLE).code == 130


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, optfuse.cli; heavy = {'torch', 'triton', 'sympy', 'ortools', 'pandas', 'numpy', 'transformers'};"
        "print(*sorted(heavy & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""
