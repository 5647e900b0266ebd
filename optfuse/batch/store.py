"""A run's folder: a Parquet file a finished task, so that it is whole at any moment, and one writer at a time.

run.json          that this is a run, and how it was started
captures/         a record a captured source and mode
graphs/           prepared graphs, shared by the solvers
plans/            a plan a graph and solver
results/*.parquet the rows; of two rows of one graph and solver the later one counts
logs/             what failed tasks had printed
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from optfuse.batch.folders import file_name, temporary, write_json
from optfuse.batch.rows import SCHEMA, Row
from optfuse.errors import BatchError, PlanError
from optfuse.problem.untrusted_folder import require_enclosed

RUN_FORMAT = "optfuse-run"
RUN_VERSION = 1

#: More files than this are written into one when a run starts or ends.
COMPACT_FROM = 64
#: What must fit on the disk of a run after a task has failed.
ROOM_BYTES = 1 << 20


class Store:
    """The folder of a run, opened for writing by one process."""

    def __init__(
        self,
        run: Path,
        settings: dict[str, Any],
        *,
        resume: bool,
        compact_from: int = COMPACT_FROM,
        room: int = ROOM_BYTES,
    ) -> None:
        """Open or make the folder; when it opens and closes, ``compact_from`` files of rows or more become one.

        ``room``: the bytes that must fit on its disk after a task has failed, else it failed for lack of room.

        Raises:
            BatchError: If it holds something else, or a run and not ``resume``, or another process writes to it.
        """
        self.run = run
        self._compact_from, self._room = compact_from, room
        if (run / "run.json").is_file():
            require_run(run)
            if not resume:
                raise BatchError(f"{run}: holds a run already; add --resume to go on with it, or name another --out")
        elif run.exists() and (not run.is_dir() or any(run.iterdir())):
            raise BatchError(f"{run}: exists and is no run; name another folder with --out")
        try:
            (run / "results").mkdir(parents=True, exist_ok=True)
            self._lock = _locked(run / "lock")
            shutil.rmtree(run / "tmp", ignore_errors=True)
            write_json(run, run / "run.json", {"format": RUN_FORMAT, "version": RUN_VERSION, **settings})
        except OSError as error:
            raise BatchError(f"{run}: cannot be written ({error.strerror or error}); name another --out") from error
        try:
            self.compact()
        except BatchError:
            self._lock.close()
            raise

    def close(self) -> None:
        """Join what was written, and let another process write."""
        try:
            self.compact()
        finally:
            shutil.rmtree(self.run / "tmp", ignore_errors=True)
            self._lock.close()

    def require_room(self) -> None:
        """Find out whether the disk takes anything more.

        Raises:
            BatchError: If it does not.
        """
        with self._writing():
            made = temporary(self.run)
            try:
                with made.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, self._room)
            finally:
                made.unlink(missing_ok=True)

    def rows(self) -> dict[tuple[str, str], Row]:
        """The row of each graph and solver."""
        return {(row["graph"], row["solver"]): row for row in read_table(self.run).to_pylist()}

    def add(self, rows: Iterable[Row]) -> None:
        """Write finished rows, all or none."""
        self._write(pa.Table.from_pylist(list(rows), schema=SCHEMA))

    def capture(self, name: str) -> dict[str, Any] | None:
        """The record of a capture."""
        path = self._capture_file(name)
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def add_capture(self, name: str, record: dict[str, Any]) -> None:
        """Write the record of a capture."""
        with self._writing():
            write_json(self.run, self._capture_file(name), record)

    def compact(self) -> None:
        """Write many small files as one, then remove them; a reader in between sees some rows twice."""
        files = _files(self.run)
        if len(files) >= self._compact_from:
            self._write(read_table(self.run))
            with self._writing():
                for path in files:
                    path.unlink()

    def _write(self, table: pa.Table) -> None:
        with self._writing():
            made = temporary(self.run)
            pq.write_table(table, made)
            os.replace(made, self.run / "results" / f"{made.name}.parquet")

    @contextlib.contextmanager
    def _writing(self) -> Generator[None]:
        """A failure of the disk within is a ``BatchError``."""
        try:
            yield
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else error  # pyarrow's text is longer
            raise BatchError(
                f"{self.run}: cannot be written any more ({why}); it holds the rows done so far: "
                f"make room on its disk, then go on with --resume"
            ) from error

    def _capture_file(self, name: str) -> Path:
        return self.run / "captures" / f"{file_name(name)}.json"


def require_run(run: Path) -> None:
    """Refuse what is no run.

    Raises:
        BatchError: If the folder is no run of a version that this program reads, or holds a link that leads out of it.
    """
    try:
        require_enclosed(run, deep=True)
    except PlanError as error:
        raise BatchError(str(error)) from error
    try:
        data = json.loads((run / "run.json").read_text(encoding="utf-8"))
        known = (data["format"], data["version"]) == (RUN_FORMAT, RUN_VERSION)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BatchError(f"{run}: not the folder of a run; `optfuse batch ... --out {run}` makes one") from error
    if not known:
        raise BatchError(f"{run}: a run of another version; this program reads version {RUN_VERSION}")


def read_table(run: Path) -> pa.Table:
    """The latest row of each graph and solver, by graph and solver."""
    files = _files(run)
    if not files:
        return SCHEMA.empty_table()
    table = (
        ds.dataset(files, schema=SCHEMA)
        .to_table()
        .sort_by([("graph", "ascending"), ("solver", "ascending"), ("finished", "ascending")])
    )
    last = [True] * len(table)
    keys = list(zip(table["graph"].to_pylist(), table["solver"].to_pylist(), strict=True))
    for k in range(1, len(keys)):
        last[k - 1] = keys[k - 1] != keys[k]
    return table.filter(pc.is_in(pa.array(last), value_set=pa.array([True])))


def _files(run: Path) -> list[Path]:
    return sorted((run / "results").glob("*.parquet"))


def _locked(path: Path) -> IO[str]:
    """A file that is locked until it is closed, or its process ends."""
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise BatchError(f"{path.parent}: another batch writes to it; wait for it, or name another --out") from error
    return file
