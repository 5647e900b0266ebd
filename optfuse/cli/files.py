"""Where commands write: checks before the work begins, and folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Generator, Iterable
from pathlib import Path

from optfuse.errors import OutputError


def require_folder_place(path: Path | None) -> None:
    """Check that a folder is, or can be made, at ``path``.

    Raises:
        OutputError: When something else is there.
    """
    if path is not None and path.exists() and not path.is_dir():
        raise OutputError(f"{path}: exists and is not a folder; name another with --out")


def require_parent(path: Path | None, option: str = "--out") -> None:
    """Check that the folder in which a file is to be written exists.

    Raises:
        OutputError: When it does not.
    """
    if path is not None and not path.parent.is_dir():
        raise OutputError(f"{path}: there is no folder {path.parent}; make it or name another with {option}")


@contextlib.contextmanager
def whole_folders(parent: Path, names: Iterable[str], marker: str) -> Generator[Path]:
    """A temporary folder in which the caller makes the folders ``names``; they move to ``parent`` on a normal exit.

    A folder of such a name that is there already is replaced if it is ours, which the file ``marker`` in it tells, or
    empty; whatever else ``parent`` holds stays. Each folder appears whole; between two of them another process may see
    the one and not yet the other.

    Raises:
        OutputError: When ``parent`` cannot be written, or a name is taken by something that is not ours.
    """
    targets = [parent / name for name in names]
    for path in (parent, *targets):
        require_folder_place(path)
    for path in targets:
        if path.is_dir() and any(path.iterdir()) and not (path / marker).is_file():
            raise OutputError(f"{path}: exists and holds no {marker}; name another folder with --out")
    missing = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    try:
        parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".optfuse-", dir=parent))
    except OSError as error:
        _remove_empty(missing)
        raise _cannot_write(parent, error) from error
    try:
        yield temporary
        for target in targets:
            if target.exists():
                target.replace(temporary / f".old-{target.name}")
            (temporary / target.name).replace(target)
    except OSError as error:
        raise _cannot_write(parent, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        _remove_empty(missing)


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders that stayed empty, innermost first."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _cannot_write(path: Path, error: OSError) -> OutputError:
    return OutputError(f"{path}: cannot be written ({error.strerror or error}); name another place with --out")
