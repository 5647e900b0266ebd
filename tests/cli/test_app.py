from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.cli.conftest import Outcome
from tests.report.cases import EXAMPLE

Run = Callable[..., Outcome]


def test_help_lists_every_command(optfuse: Run) -> None:
    outcome = optfuse("--help")

    assert outcome.code == 0
    assert all(command in outcome.out for command in ("optimize", "solve", "check", "demo"))


@pytest.mark.parametrize("args", [(), ("unknown",), ("check", EXAMPLE), ("solve", EXAMPLE, "--time-limit", "soon")])
def test_a_usage_error_is_exit_code_2(optfuse: Run, args: tuple[object, ...]) -> None:
    assert optfuse(*args).code == 2


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
