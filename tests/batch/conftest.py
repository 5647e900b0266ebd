"""Tiny models, and batches over them."""

from __future__ import annotations

from pathlib import Path

import pytest

TINY = """
import torch

TRAINS = {trains}

def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.LayerNorm(4))

def inputs():
    return (torch.ones(2, 4),), {{}}
"""

#: Bodies of ``inputs()`` that end in other ways than with inputs.
BAD = {
    "raising": "raise ValueError('no inputs today')",
    "dying": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "hanging": "import time; time.sleep(1000)",
    "hungry": "return [bytearray(1 << 28) for _ in range(1000)]",
}


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """A folder with two models, of which one trains, and a file that is none."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    (folder / "tiny.py").write_text(TINY.format(trains=False))
    (folder / "below").mkdir()
    (folder / "below" / "trained.py").write_text(TINY.format(trains=True))
    (folder / "helper.py").write_text("raise RuntimeError('not a model file: never run')")
    return folder


def write_bad(folder: Path, *names: str) -> None:
    """Models that fail."""
    for name in names:
        body = f"def model(): return None\ndef inputs():\n    {BAD[name]}\n"
        (folder / f"{name}.py").write_text(body)
