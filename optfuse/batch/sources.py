"""What the arguments of a batch mean: model files, GraphNet samples, instances, and folders of these."""

from __future__ import annotations

import ast
import gzip
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from optfuse.errors import BatchError

SourceKind = Literal["model", "graphnet", "instance"]

INSTANCE_ENDINGS = (".json", ".json.gz")
#: A folder's JSON file is an instance when its beginning says so.
_HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Source:
    """A model file, a sample folder or an instance file.

    ``name`` is the path below the argument that it was found under, without ending: "gpt2", "timm/resnet18".
    """

    kind: SourceKind
    name: str
    path: Path


def find_sources(arguments: Iterable[Path]) -> tuple[Source, ...]:
    """The sources that the arguments name, folders searched in full, in order of path.

    In a folder, Python files count that define ``model`` and ``inputs``, folders that are GraphNet samples, and JSON
    files that are instances; the rest is passed over.

    Raises:
        BatchError: If an argument is missing or holds no source, or two sources would have one name.
    """
    found: dict[str, Source] = {}
    for argument in arguments:
        here = list(_sources_of(argument))
        if not here:
            raise BatchError(f"{argument}: no model file, GraphNet sample or instance in it; see models/README.md")
        for source in here:
            other = found.setdefault(source.name, source)
            if other.path.resolve() != source.path.resolve():
                raise BatchError(
                    f"{other.path} and {source.path} would both be called {source.name!r}; "
                    f"rename one, or give a folder that holds both"
                )
    return tuple(found.values())


def source_digest(source: Source) -> str:
    """Sha256 over the bytes of the source: the file, or all files of a sample folder."""
    files = sorted(path for path in source.path.rglob("*.py")) if source.path.is_dir() else [source.path]
    total = hashlib.sha256()
    for path in files:
        total.update(f"{path.name}\0".encode(errors="surrogateescape") + hashlib.sha256(_bytes(path)).digest())
    return total.hexdigest()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BatchError(f"{path}: cannot be read ({error.strerror or error}); leave it out") from error


def is_sample(folder: Path) -> bool:
    """Whether a folder is a GraphNet sample: its graph as ``model.py``, beside what is known of its tensors."""
    return (folder / "model.py").is_file() and (folder / "weight_meta.py").is_file()


def _sources_of(argument: Path) -> Iterator[Source]:
    if argument.is_dir():
        if is_sample(argument):
            yield Source("graphnet", argument.resolve().name, argument)
        else:
            yield from _in_folder(argument)
    elif not argument.is_file():
        raise BatchError(f"{argument}: no such file or folder")
    elif argument.name.endswith(INSTANCE_ENDINGS):
        yield Source("instance", _bare(argument.name), argument)
    elif argument.suffix == ".py":
        yield Source("model", argument.stem, argument)
    else:
        raise BatchError(f"{argument}: neither a Python file nor an instance (.json, .json.gz)")


def _in_folder(folder: Path) -> Iterator[Source]:
    for path, folders, files in os.walk(folder):
        below = Path(path)
        samples = [name for name in folders if is_sample(below / name)]
        kept = (name for name in folders if name not in samples and not name.startswith((".", "__")))
        folders[:] = sorted(kept)
        for name in sorted(samples):
            yield Source("graphnet", _relative(folder, below / name), below / name)
        for name in sorted(files):
            file = below / name
            if name.endswith(".py") and _defines(file, ("model", "inputs")):
                yield Source("model", _relative(folder, file), file)
            elif name.endswith(INSTANCE_ENDINGS) and _is_instance(file):
                yield Source("instance", _relative(folder, file), file)


def _relative(folder: Path, path: Path) -> str:
    return path.relative_to(folder).with_name(_bare(path.name) if path.is_file() else path.name).as_posix()


def _bare(name: str) -> str:
    for ending in (".json.gz", ".json", ".py"):
        if name.endswith(ending):
            return name.removesuffix(ending)
    return name


def _defines(path: Path, names: Sequence[str]) -> bool:
    """Whether a Python file defines these functions at its top level; it is read, not run.

    One that does not parse counts by its lines, so that a slip in a model is a row with the reason and not a gap.
    """
    text = _bytes(path)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return all(re.search(rb"^def %b\b" % name.encode(), text, re.MULTILINE) for name in names)
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return defined.issuperset(names)


def _is_instance(path: Path) -> bool:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            head = bytes(file.read(_HEAD_BYTES))
    except (OSError, EOFError):
        return False
    return b'"optfuse-instance"' in head
