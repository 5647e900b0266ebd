"""Running the command line in this process: fast, and with the exit code and both streams in hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from optfuse.cli import main


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str

    def error_line(self) -> str:
        """The one line that a failure may print."""
        assert self.code == 2, (self.out, self.err)
        assert self.out == ""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("optfuse: error: ")
        return lines[0]


@pytest.fixture
def optfuse(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """``optfuse("solve", path)`` is what the shell's ``optfuse solve path`` would do."""

    def run(*args: object) -> Outcome:
        monkeypatch.setattr("sys.argv", ["optfuse", *map(str, args)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        code = stopped.value.code
        assert isinstance(code, int)
        return Outcome(code, captured.out, captured.err)

    return run
