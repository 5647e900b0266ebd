"""``read_run``: the results of a batch as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from optfuse.batch.store import read_table, require_run

if TYPE_CHECKING:
    import pandas as pd


def read_run(run: str | Path) -> pd.DataFrame:
    """The results of ``optfuse batch``, a row a graph and solver, while it runs or after.

    Times under the model are picoseconds (``objective``, ``bound``, ``greedy_objective``), other times seconds
    (``*_s``), sizes bytes. ``outcome`` is ok, refused, crash, timeout or memory, with a ``reason``; ``gap`` and
    ``saved`` are fractions. ``plan`` is the path below the run's folder that ``optfuse.load`` reads.

    Raises:
        BatchError: If the folder is no run.
    """
    require_run(Path(run))
    return read_table(Path(run)).to_pandas()
