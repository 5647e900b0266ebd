"""Read device files: JSON whose keys are the fields of ``problem.instance.Device``. Shipped ones are in ``devices``."""

from __future__ import annotations

import dataclasses
import difflib
import json
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from optfuse.errors import InvalidOptionError
from optfuse.problem.instance import LARGEST, Device
from optfuse.problem.plain_data import PlainDataError, from_plain


def known_devices() -> tuple[str, ...]:
    """Names of the devices that ship with optfuse."""
    folder = resources.files("optfuse.problem") / "devices"
    return tuple(sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".json")))


#: The device whose prices are taken where there is no GPU, or one that no shipped file is of.
DEFAULT_DEVICE = "h200"


def device_of(gpu: str) -> str | None:
    """The shipped device whose name is a word of the GPU's own, such as "NVIDIA H200"; None if there is none."""
    words = gpu.lower().split()
    return next((name for name in known_devices() if name in words), None)


def load_device(name: str) -> Device:
    """Read a shipped device by name, or a device file by path (anything that ends in .json).

    Raises:
        InvalidOptionError: If there is no such device or file, or the file does not hold a device.
    """
    if name.endswith(".json"):
        source = Path(name)
        if not source.is_file():
            raise InvalidOptionError(
                f"device file {name} does not exist; shipped devices: {', '.join(known_devices())}"
            )
        return _read(source)
    if name not in known_devices():
        near = difflib.get_close_matches(name, known_devices(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        shipped = ", ".join(known_devices())
        raise InvalidOptionError(
            f"unknown device {name!r}{hint} (known: {shipped}, or the path of a file that `optfuse calibrate` wrote)"
        )
    return _read(resources.files("optfuse.problem") / "devices" / f"{name}.json")


def _read(source: Path | Traversable) -> Device:
    try:
        data = json.loads(source.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidOptionError(f"device file {source} cannot be read as JSON: {error}") from error
    try:
        device = from_plain(Device, data)
    except PlainDataError as error:
        raise InvalidOptionError(f"device file {source}: {error}") from error
    for field in dataclasses.fields(Device):
        value = getattr(device, field.name)
        if isinstance(value, int) and not 0 <= value <= LARGEST:
            raise InvalidOptionError(f"device file {source}: {field.name} must be from 0 to {LARGEST}, not {value}")
    return device
