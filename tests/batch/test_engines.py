"""The same batch on this machine's processes and on local clusters of several workers, one of which is killed."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

import optfuse
from optfuse.batch.engines import make_engine
from optfuse.errors import BatchError, InvalidOptionError
from tests.batch.running import batch, until

#: Hangs in its first life, after it has said which process it is.
ONCE = """
import os, time, torch
MARK = {mark!r}

def model():
    return torch.nn.Linear(4, 4)

def inputs():
    if not os.path.exists(MARK):
        with open(MARK + ".new", "w") as file:
            file.write(str(os.getppid()))
        os.rename(MARK + ".new", MARK)
        time.sleep(1000)
    return (torch.ones(2, 4),), {{}}
"""

# What the clusters' own libraries say while they start and lose workers is not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", ["dask", "ray"])
@pytest.mark.slow
def test_a_cluster_loses_a_worker(name: str, zoo: Path, tmp_path: Path) -> None:
    pytest.importorskip({"dask": "distributed", "ray": "ray"}[name])
    mark = tmp_path / "mark"
    (zoo / "once.py").write_text(ONCE.format(mark=str(mark)))
    killer = threading.Thread(target=_kill_worker, args=(mark,))
    killer.start()

    progress = batch([zoo], tmp_path / "run", engine=make_engine(name, 2, None))  # type: ignore[arg-type]

    killer.join()
    rows = optfuse.read_run(tmp_path / "run").set_index("graph")
    assert rows.outcome.to_dict() == {
        "tiny.inference": "ok",
        "below/trained.inference": "ok",
        "once.inference": "ok",
    }
    assert progress.failed == 0


def _kill_worker(mark: Path) -> None:
    """Kill the process whose server of processes is the parent of the marked one."""
    until(mark.exists, 300)
    server = int(mark.read_text())
    worker = int(Path(f"/proc/{server}/stat").read_text().rsplit(")", 1)[1].split()[1])
    assert worker != os.getpid()
    os.kill(worker, signal.SIGKILL)


def test_engines_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidOptionError, match="local, dask, ray"):
        make_engine("slurm", 1, None)  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="--engine dask"):
        make_engine("local", 1, "tcp://elsewhere:8786")
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(BatchError, match=r"pip install optfuse\[dask\]"):
        make_engine("dask", 1, None)
