"""``optfuse calibrate``: a device file from measurements of the device at hand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from optfuse.cli.bench import write
from optfuse.cli.output import say
from optfuse.errors import InvalidOptionError


def command(
    device: Annotated[str, typer.Option(help="What to measure: cuda.")] = "cuda",
    out: Annotated[Path, typer.Option(metavar="DEVICE.json", help="The device file.")] = Path("device.json"),
    base: Annotated[str, typer.Option(help="The device whose figures stand where nothing was measured.")] = "h200",
    raw: Annotated[Path | None, typer.Option(metavar="RAW.json", help="Save the measurements, too.")] = None,
    measured: Annotated[Path | None, typer.Option(metavar="RAW.json", help="Fit to saved measurements.")] = None,
) -> None:
    """Measure bandwidths, launches and rates, and write the device file that explains them."""
    from optfuse.calibrate.fit import fit, special_weights
    from optfuse.extract.device import load_device

    start = load_device(base)
    if measured is not None:
        found = _read(measured)
    else:
        found = _measure(device)
        if raw is not None:
            write(raw, json.dumps(found, indent=1) + "\n")
    fitted = fit(start, found, out.stem)
    write(out, json.dumps(dataclasses.asdict(fitted), indent=2) + "\n")
    for field in dataclasses.fields(fitted):
        before, after = getattr(start, field.name), getattr(fitted, field.name)
        print(f"{field.name}: {after}" + (f" (was {before})" if before != after else ""))
    for family, reason in found["failed"].items():
        print(f"{family} was not measured: {reason}")
    print(f"special functions, in exponentials: {special_weights(found)}")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise InvalidOptionError(f"{path}: cannot be read ({error.strerror}); give a file of --raw's") from error
    except ValueError as error:
        raise InvalidOptionError(f"{path}: not measurements ({error}); give a file of --raw's") from error
    if not isinstance(found, dict) or not {"probes", "failed"} <= found.keys():
        raise InvalidOptionError(f"{path}: not measurements; give a file of --raw's")
    return found


def _measure(device: str) -> dict[str, Any]:
    import torch

    from optfuse.bench.meter import CudaMeter
    from optfuse.bench.systems import versions
    from optfuse.calibrate.measure import measure

    if device != "cuda" or not torch.cuda.is_available():
        raise InvalidOptionError(f"cannot calibrate {device!r} here: calibration needs a GPU that torch sees as cuda")
    return {"versions": versions(), **measure(CudaMeter(), say)}
