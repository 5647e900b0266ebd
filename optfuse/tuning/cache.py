"""What was found, on disk: a small JSON file a kernel, named by all that the answer depends on."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from optfuse.errors import OutputError
from optfuse.runtime.loader import cache_dir, digest, write_atomically
from optfuse.version import __version__

logger = logging.getLogger("optfuse")


def versions() -> dict[str, str]:
    """What compiles and runs the kernels."""
    return {"optfuse": __version__, "torch": torch.__version__, "triton": version("triton")}


@dataclass(frozen=True, slots=True)
class Cache:
    """Records by content. Entries of other devices and versions have other names and stay."""

    folder: Path = field(default_factory=lambda: cache_dir() / "tuned")

    def read(self, content: Mapping[str, Any]) -> dict[str, Any] | None:
        """What was learnt about this content; None if nothing. A damaged file is reported and counts as none."""
        path = self._path(content)
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["content"] != json.loads(_text(content)):
                raise ValueError("it is about something else")
            return dict(found["record"])
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("%s is damaged (%s) and is measured again", path, error)
            return None

    def write(self, content: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """Keep a record; other processes see the whole file or none.

        Raises
        ------
        OutputError
            If the folder cannot be written.
        """
        path = self._path(content)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps({"content": content, "record": record}, indent=1) + "\n")
        except OSError as error:
            raise OutputError(
                f"cannot write {path}: {error.strerror}; set XDG_CACHE_HOME to a writable folder"
            ) from error

    def _path(self, content: Mapping[str, Any]) -> Path:
        return self.folder / f"{digest(_text(content))}.json"


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True)
