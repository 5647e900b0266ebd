"""Device files: one JSON a device, beside this module; the keys are the fields of ``problem.instance.Device``."""

from __future__ import annotations

import dataclasses
import difflib
import json
from importlib import resources
from pathlib import Path

from optfuse.errors import InvalidOptionError
from optfuse.problem.instance import Device


def known_devices() -> tuple[str, ...]:
    """Names of the devices that ship with optfuse."""
    folder = resources.files("optfuse.extract") / "devices"
    return tuple(sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".json")))


def load_device(name: str) -> Device:
    """Read a shipped device by name, or a device file by path (anything that ends in .json)."""
    if name.endswith(".json"):
        source = Path(name)
        if not source.is_file():
            raise InvalidOptionError(
                f"device file {name} does not exist; shipped devices: {', '.join(known_devices())}"
            )
        text = source.read_text()
    else:
        if name not in known_devices():
            near = difflib.get_close_matches(name, known_devices(), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known_devices())}"
            raise InvalidOptionError(f"unknown device {name!r}{hint}")
        text = (resources.files("optfuse.extract") / "devices" / f"{name}.json").read_text()
    return _parse(name, text)


def _parse(name: str, text: str) -> Device:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidOptionError(f"device file {name} is not JSON: {error}") from error
    fields = {f.name: f for f in dataclasses.fields(Device)}
    unknown = sorted(set(data) - set(fields)) if isinstance(data, dict) else ["(not an object)"]
    missing = sorted(k for k, f in fields.items() if f.default is dataclasses.MISSING and k not in data)
    if unknown or missing:
        raise InvalidOptionError(f"device file {name}: unknown keys {unknown}, missing keys {missing}")
    wrong = [k for k, v in data.items() if k != "name" and (type(v) is not int or v < 0)]
    if wrong:
        raise InvalidOptionError(f"device file {name}: {wrong[0]} must be an integer of at least 0")
    return Device(**data)
