"""A cache in the user's cache folder: texts and records, each named by a digest of its content."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optfuse.errors import OutputError
from optfuse.files import write_whole

logger = logging.getLogger("optfuse")

#: Bytes that the records of one kind may take.
MOST_BYTES = 256 << 20
WAY_OUT = "set XDG_CACHE_HOME to a writable folder"


def cache_dir() -> Path:
    """The user's cache folder for optfuse, by the XDG convention. Everything in it can be deleted at any time.

    A user without a home has one that ends with the process.
    """
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        _say_once(f"{error} Nothing is kept between processes; {WAY_OUT}")
        return _folder_of_process(os.getpid())
    return Path(base) / "optfuse"


def store_module(text: str) -> Path:
    """Write a module's text to the cache folder, or where that cannot be to one that ends with the process."""
    folder = cache_dir() / "modules"
    try:
        return store(text, folder)
    except OutputError:
        _say_once(f"modules are not kept between processes, for {folder} cannot be written; {WAY_OUT}")
        return store(text, _folder_of_process(os.getpid()))


@functools.cache
def _folder_of_process(process: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="optfuse-"))
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == process else None)
    return folder


@functools.cache
def _say_once(text: str) -> None:
    logger.warning("%s", text)


def store(text: str, folder: Path, suffix: str = ".py") -> Path:
    """Write ``text`` to a file of ``folder`` that is named by the text's digest, unless it is there already.

    Other processes see the whole file or none. A file whose contents differ from its name's promise is replaced.

    Raises:
        OutputError: If the folder cannot be written.
    """
    path = folder / f"{digest(text)}{suffix}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return path
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; {WAY_OUT}") from error
    write_whole(path, text, WAY_OUT)
    return path


def digest(text: str) -> str:
    """The first 24 hexadecimal digits of the text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Cache:
    """Records by content, a small JSON file each, in a folder of no more than ``most_bytes``.

    Whatever an answer depends on is part of the content, so that entries of other devices and versions have other
    names. Processes may share the folder. Where it grows too large, the records that were read or written longest ago
    go. It may be deleted at any time.
    """

    folder: Path
    most_bytes: int = MOST_BYTES

    def read(self, content: Mapping[str, Any]) -> dict[str, Any] | None:
        """What was learnt about this content; None if nothing. A damaged file is reported and counts as none."""
        path = self._path(content)
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["content"] != json.loads(_text(content)):
                raise ValueError("it is about something else")
            record = dict(found["record"])
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("%s is damaged (%s) and is not used", path, error)
            return None
        with contextlib.suppress(OSError):  # another process has just dropped it, or the folder is only read here
            os.utime(path)
        return record

    def write(self, content: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """Keep a record; other processes see the whole file or none. A folder that cannot be written is said, once."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path(content), json.dumps({"content": content, "record": record}) + "\n")
        except (OSError, OutputError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it cannot be written"
            _say_once(f"nothing is kept in {self.folder} ({reason}); {WAY_OUT}")
            return
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Delete records, the longest unused first, while the folder is too large."""
        found: list[tuple[float, int, str]] = []
        # another process drops records too, and the folder may be deleted
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(".json"):
                    with contextlib.suppress(FileNotFoundError):
                        state = entry.stat()
                        found.append((state.st_mtime, state.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        if total <= self.most_bytes:
            return
        for _, size, path in sorted(found):
            if total <= self.most_bytes:
                break
            Path(path).unlink(missing_ok=True)
            total -= size

    def _path(self, content: Mapping[str, Any]) -> Path:
        return self.folder / f"{digest(_text(content))}.json"


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True)
