"""``optfuse calibrate``: a device file from measurements of the device at hand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optfuse.cli.bench import write
from optfuse.cli.output import say
from optfuse.errors import InvalidOptionError

if TYPE_CHECKING:
    from optfuse.problem.instance import Device


def command(
    device: Annotated[str, typer.Option(help="What to measure: cuda.")] = "cuda",
    out: Annotated[Path, typer.Option(metavar="DEVICE.json", help="The device file.")] = Path("device.json"),
    base: Annotated[str, typer.Option(help="The device whose figures stand where nothing was measured.")] = "h200",
    raw: Annotated[Path | None, typer.Option(metavar="RAW.json", help="Save the measurements, too.")] = None,
    measured: Annotated[Path | None, typer.Option(metavar="RAW.json", help="Fit to saved measurements.")] = None,
    bench: Annotated[
        list[Path] | None,
        typer.Option(metavar="BENCH.json", help="Do not measure: refine the base by kernels that a bench measured."),
    ] = None,
    plans: Annotated[Path | None, typer.Option(metavar="DIR", help="The plans that the bench kept.")] = None,
    links: Annotated[
        list[Path] | None,
        typer.Option(metavar="LINKS.jsonl", help="Do not measure: fit the base's links to collectives timed by size."),
    ] = None,
) -> None:
    """Measure bandwidths, launches and rates, and write the device file that explains them."""
    from optfuse.lab.calibrate.fit import fit, special_weights
    from optfuse.problem.device_files import load_device

    start = load_device(base)
    if links:
        if bench or measured is not None:
            raise InvalidOptionError("--links is a step of its own: give its device file to the next one as --base")
        _fit_links(start, links, out)
        return
    if bench:
        _refine(start, bench, plans, out)
        return
    if measured is not None:
        found = _read(measured)
    else:
        found = _measure(device)
        if raw is not None:
            write(raw, json.dumps(found, indent=1) + "\n")
    fitted = fit(start, found, out.stem)
    _save(start, fitted, out)
    for family, reason in found["failed"].items():
        print(f"{family} was not measured: {reason}")
    print(f"special functions, in exponentials: {special_weights(found)}")


def _refine(start: Device, documents: list[Path], plans: Path | None, out: Path) -> None:
    from optfuse.lab.calibrate.refine import quality, refine
    from optfuse.lab.calibrate.samples import read_samples

    if plans is None:
        raise InvalidOptionError("--bench needs --plans, the folder in which the bench kept its plans")
    samples = [sample for path in documents for sample in read_samples(_document(path), plans)]
    fitted = dataclasses.replace(refine(start, samples), name=out.stem)
    _save(start, fitted, out)
    for name, one in (("before", start), ("after", fitted)):
        found = quality(one, samples)
        print(
            f"{name}: {found.kernels} kernels, Spearman {found.spearman:.3f}, "
            f"median relative error {found.median_relative_error:.1%}"
        )


def _fit_links(start: Device, paths: list[Path], out: Path) -> None:
    from optfuse.lab.calibrate.links import fit_links, link_quality, predicted_us, read_links

    found = read_links(paths)
    fitted = fit_links(start, found, out.stem)
    _save(start, fitted, out)
    for name, one in (("before", start), ("after", fitted)):
        quality = link_quality(one, found.transfers)
        worst = quality.worst
        print(
            f"{name}: {len(found.transfers)} transfers, median relative error {quality.median_error:.1%}, worst "
            f"{quality.worst_error:.1%} ({worst}: {worst.us:,.1f} us, predicted {predicted_us(one, worst):,.1f})"
        )


def _save(start: Device, fitted: Device, out: Path) -> None:
    write(out, json.dumps(dataclasses.asdict(fitted), indent=2) + "\n")
    for field in dataclasses.fields(fitted):
        before, after = getattr(start, field.name), getattr(fitted, field.name)
        print(f"{field.name}: {after}" + (f" (was {before})" if before != after else ""))


def _document(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidOptionError(f"{path}: cannot be read as JSON ({error}); give a file of bench's --json") from error
    if not isinstance(found, dict) or "kernels" not in found:
        raise InvalidOptionError(f"{path}: not a bench's document; give a file of bench's --json")
    return found


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

    from optfuse.lab.bench.meter import CudaMeter
    from optfuse.lab.bench.systems import versions
    from optfuse.lab.calibrate.measure import measure

    if device != "cuda" or not torch.cuda.is_available():
        raise InvalidOptionError(f"cannot calibrate {device!r} here: calibration needs a GPU that torch sees as cuda")
    return {"versions": versions(), **measure(CudaMeter(), say)}
