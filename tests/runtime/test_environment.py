"""Compile or interpret, chosen in fresh processes: it must not depend on who imported triton first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from optfuse.runtime.environment import mode, prepare

pytestmark = pytest.mark.skipif(mode() == "compile", reason="a machine with a GPU compiles")

CHECK = """
import sys, torch
{before}
from optfuse.runtime.environment import prepare
assert ("triton" in sys.modules) is {imported}
assert prepare() == "interpret"
assert prepare() == "interpret"
import tiny_kernels
x, y = torch.linspace(-1, 1, 8), torch.empty(8)
tiny_kernels.library[(1,)](x, y, BLOCK=8)
rest = y - (torch.sigmoid(x) + x.sum() + torch.softmax(x, 0))
assert (rest >= -1e-6).all() and (rest < 1).all() and rest.unique().numel() == 8, rest
"""


def run(before, imported):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    code = CHECK.format(before=before, imported=imported)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "imported"), [("", False), ("import torch._dynamo, triton.language", True)], ids=["first", "late"]
)
def test_interpreter_is_chosen_whenever_triton_was_imported(before, imported):
    said = run(before, imported)
    assert said.count("does not race") == 1


def test_it_is_announced_but_not_to_those_who_asked_for_it(monkeypatch, caplog):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    prepare()
    assert caplog.text.count("does not race") == 1
    caplog.clear()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    prepare()
    assert caplog.text == ""


def test_prepare_is_idempotent():
    assert prepare() == prepare() == mode()
