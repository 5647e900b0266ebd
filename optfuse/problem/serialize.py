"""Instances and solutions as versioned JSON files, plain or gzipped.

An instance file is one object: ``format`` ("optfuse-instance"), then the fields of ``Instance`` under their own names.
A solution file is the same with "optfuse-solution" and ``Solution``. Ids are positions in the lists. A field left out
has the default that ``optfuse.problem.instance`` documents. Each element of a list stands on a line of its own.
Loading reads plain data and runs nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from pathlib import Path
from typing import Any

from optfuse.errors import InvalidInstanceError, InvalidSolutionError, OptfuseError
from optfuse.files import write_whole
from optfuse.problem.garbage_collection import rarely_collecting
from optfuse.problem.instance import FORMAT_VERSION, Instance
from optfuse.problem.instance_cache import per_instance
from optfuse.problem.plain_data import PlainDataError, from_plain, to_plain
from optfuse.problem.solution import Solution
from optfuse.problem.validate import validate

INSTANCE_FORMAT = "optfuse-instance"
SOLUTION_FORMAT = "optfuse-solution"
SOLUTION_VERSION = 1


def instance_to_json(instance: Instance) -> str:
    """An instance as JSON text, one element a line."""
    return _pretty({"format": INSTANCE_FORMAT, "version": instance.version, **to_plain(instance)})


def instance_from_json(text: str | bytes, where: str = "instance") -> Instance:
    """Read and validate an instance. ``where`` names the source in messages.

    Raises:
        InvalidInstanceError: When the text is not JSON, has the wrong shape, or describes an invalid instance.
    """
    with rarely_collecting():
        data = _parse(text, where, INSTANCE_FORMAT, FORMAT_VERSION, InvalidInstanceError)
        try:
            instance = from_plain(Instance, data)
            validate(instance)
            digest(instance)  # solutions are tied to it and the checker asks for it: known from here on
        except (PlainDataError, InvalidInstanceError) as error:
            raise InvalidInstanceError(f"{where}: {error}") from error
    return instance


def solution_to_json(solution: Solution) -> str:
    """A solution as JSON text, one kernel a line."""
    return _pretty({"format": SOLUTION_FORMAT, "version": SOLUTION_VERSION, **to_plain(solution)})


def solution_from_json(text: str | bytes, where: str = "solution") -> Solution:
    """Read a solution. Whether it answers an instance is for ``optfuse.problem.checker`` to say.

    Raises:
        InvalidSolutionError: When the text is not JSON, has the wrong shape, or holds negative numbers.
    """
    data = _parse(text, where, SOLUTION_FORMAT, SOLUTION_VERSION, InvalidSolutionError)
    del data["version"]
    try:
        solution = from_plain(Solution, data)
    except PlainDataError as error:
        raise InvalidSolutionError(f"{where}: {error}") from error
    for name in ("arena_bytes", "objective", "peak_bytes", "saved_ps"):
        if getattr(solution, name) < 0:
            raise InvalidSolutionError(f"{where}: {name} is negative: {getattr(solution, name)}")
    return solution


def load_instance(path: str | os.PathLike[str]) -> Instance:
    """Read and validate an instance file (``.json`` or ``.json.gz``).

    Raises:
        InvalidInstanceError: When the file is missing, unreadable or invalid.
    """
    return instance_from_json(_read(Path(path), InvalidInstanceError), str(path))


def load_solution(path: str | os.PathLike[str]) -> Solution:
    """Read a solution file (``.json`` or ``.json.gz``).

    Raises:
        InvalidSolutionError: When the file is missing, unreadable or malformed.
    """
    return solution_from_json(_read(Path(path), InvalidSolutionError), str(path))


def save_instance(instance: Instance, path: str | os.PathLike[str]) -> None:
    """Write an instance file; the old file stays whole until the new one is complete.

    Raises:
        OutputError: When the file cannot be written.
    """
    _write(Path(path), instance_to_json(instance))


def save_solution(solution: Solution, path: str | os.PathLike[str]) -> None:
    """Write a solution file; the old file stays whole until the new one is complete.

    Raises:
        OutputError: When the file cannot be written.
    """
    _write(Path(path), solution_to_json(solution))


@per_instance
def digest(instance: Instance) -> str:
    """Sha256 of the instance's canonical JSON (sorted keys, no spaces): equal exactly for equal instances."""
    plain = {**to_plain(instance), "version": instance.version}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _pretty(data: dict[str, Any]) -> str:
    lines = []
    for key, value in data.items():
        if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
            items = ",\n".join(" " + json.dumps(item, separators=(", ", ": ")) for item in value)
            lines.append(f'"{key}": [\n{items}]')
        else:
            lines.append(f'"{key}": {json.dumps(value)}')
    return "{" + ",\n".join(lines) + "}\n"


def _parse(text: str | bytes, where: str, form: str, version: int, error_class: type[OptfuseError]) -> dict[str, Any]:
    """The JSON object without its ``format`` key, after its format and version are known to be ours."""
    try:
        data = json.loads(text, object_pairs_hook=_object)
    except RecursionError as error:
        raise error_class(f"{where}: not JSON that can be read: lists and objects are nested too deep") from error
    except ValueError as error:
        why = "a number has thousands of digits" if "integer string conversion" in str(error) else error
        raise error_class(f"{where}: not JSON: {why}") from error
    if not isinstance(data, dict) or data.get("format") != form:
        raise error_class(f'{where}: not an {form} file: it has no "format": "{form}"')
    found = data.get("version")
    if type(found) is not int or found != version:
        raise error_class(f"{where}: version {found!r} is not known; this program reads version {version}")
    del data["format"]
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; one with a duplicate key is refused."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object has the key {twice!a} twice")
    return found


def _read(path: Path, error_class: type[OptfuseError]) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except FileNotFoundError as error:
        raise error_class(f"{path}: no such file") from error
    except OSError as error:
        raise error_class(f"{path}: cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise error_class(f"{path}: cannot be read: {error}") from error


def _write(path: Path, text: str) -> None:
    raw = text.encode()
    if path.suffix == ".gz":
        raw = gzip.compress(raw, mtime=0)
    write_whole(path, raw)
