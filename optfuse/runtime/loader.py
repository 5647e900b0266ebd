"""From source text to a Python module. Triton reads its functions from a real file, so the text is written to one."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from optfuse.errors import OutputError
from optfuse.runtime.environment import prepare
from optfuse.runtime.side_by_side import compile_side_by_side


def cache_dir() -> Path:
    """The user's cache folder for optfuse, by the XDG convention. Everything in it can be deleted at any time."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "optfuse"


def store(text: str, folder: Path, suffix: str = ".py") -> Path:
    """Write ``text`` to a file of ``folder`` that is named by the text's digest, unless it is there already.

    Other processes see the whole file or none. A file whose contents differ from its name's promise is replaced.
    """
    path = folder / f"{digest(text)}{suffix}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return path
        write_atomically(path, text)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; set XDG_CACHE_HOME to a writable folder") from error
    return path


def write_atomically(path: Path, text: str) -> None:
    """Write to a temporary name beside ``path``, then rename."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".optfuse-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink(missing_ok=True)
        raise


def digest(text: str) -> str:
    """The first 24 hexadecimal digits of the text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def load_source(source: str, folder: Path | None = None) -> ModuleType:
    """Import an emitted module, ready to launch its kernels in this process. The same text is imported once.

    Parameters
    ----------
    source
        The text of the module. It is executed: pass only what this process has generated.
    folder
        Where the file is kept; ``cache_dir() / "modules"`` by default.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    where = prepare()
    path = store(source, cache_dir() / "modules" if folder is None else folder)
    name = f"optfuse_module_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a .py file has a spec"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        if where == "compile":
            compile_side_by_side(getattr(module, "KERNELS", {}))
    except BaseException:
        del sys.modules[name]
        raise
    return module
