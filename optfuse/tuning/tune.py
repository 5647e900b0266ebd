"""A schedule with measured tiles: each distinct kernel is searched once, or taken from the cache."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from optfuse.cache import Cache, cache_dir, digest
from optfuse.compiler.codegen.block_sizes import LARGEST_TILE
from optfuse.compiler.codegen.deduplicate import likeness
from optfuse.compiler.codegen.kernel_source import KernelSource
from optfuse.compiler.codegen.prelude import PRELUDE
from optfuse.compiler.codegen.tile_neighbours import neighbours
from optfuse.compiler.codegen.tiles import TileConfig
from optfuse.compiler.codegen.triton_kernel import emit_kernel, kernel_axes
from optfuse.compiler.ir.nodes import Buffer
from optfuse.schedule.emit import emit, kernel_specs
from optfuse.schedule.scheduled import ScheduledGraph
from optfuse.tuning.device import DeviceMeasure, Problem, require_gpu, versions
from optfuse.tuning.operands import index_ends
from optfuse.tuning.search import Found, Measure, search

#: Part of every cache key; to be raised when the search changes.
SEARCH = 1

#: A context manager that gives a ``Measure`` of some problems.
Opened = Callable[[Sequence[Problem]], Any]


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """The result of tuning a kernel function.

    ``names`` are the schedule's kernels that it runs as. ``reason`` says why it kept its tile unmeasured, if it did.
    ``cached``: the figures are an earlier search's.
    """

    names: tuple[str, ...]
    before: TileConfig
    after: TileConfig
    before_us: float = 0.0
    after_us: float = 0.0
    tried: int = 0
    cached: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The schedule with its new tiles, and a record a kernel function."""

    schedule: ScheduledGraph
    kernels: tuple[TunedKernel, ...]

    def text(self) -> str:
        """The kernels that changed, slowest first, and the sum."""
        changed = sorted((k for k in self.kernels if k.after != k.before), key=lambda k: k.after_us - k.before_us)
        lines = [
            f"{k.names[0]} (x{len(k.names)}): {k.before_us:.1f} to {k.after_us:.1f} us, "
            f"{_tile(k.before)} to {_tile(k.after)}"
            for k in changed
        ]
        before = sum(k.before_us * len(k.names) for k in self.kernels)
        after = sum(k.after_us * len(k.names) for k in self.kernels)
        total = f"{self.schedule.name}: {len(changed)} of {len(self.kernels)} kernels have other tiles"
        return "\n".join([*lines, f"{total}; each alone and uncached, {before:.0f} us became {after:.0f} us"])


def tune(
    schedule: ScheduledGraph, *, cache: Cache | None = None, measuring: Opened | None = None, device: str = ""
) -> Tuned:
    """Search tiles and warps for each distinct kernel of a schedule by measuring them on the GPU.

    Args:
        cache: Where results are kept; the user's by default.
        measuring, device: A stand-in for the GPU, as a context manager that gives a ``Measure``, and its name.

    Raises:
        InvalidOptionError: If kernels do not run on a GPU here.
    """
    if measuring is None:
        where = require_gpu("tuning")
        measuring, device = _on(where), torch.cuda.get_device_name(where)
    cache = Cache(cache_dir() / "tuned") if cache is None else cache
    buffers = {buffer.name: buffer for buffer in schedule.graph.buffers}
    groups = _groups(schedule, buffers)
    contents = [_content(source, buffers, device) for source, _, _ in groups]
    records = [cache.read(content) for content in contents]
    wanted = [k for k, (_, problem, _) in enumerate(groups) if records[k] is None and problem is not None]
    found: dict[int, Found] = {}
    if wanted:
        problems = [problem for _, problem, _ in (groups[k] for k in wanted) if problem is not None]
        starts = [groups[k][0].config for k in wanted]
        with measuring(problems) as measure:
            found = dict(zip(wanted, _searched(problems, starts, measure), strict=True))
    for k, result in found.items():
        if result.start_us:
            cache.write(contents[k], _record(result))
    kernels = tuple(
        _tuned(source.config, names, record, found.get(k))
        for k, ((source, _, names), record) in enumerate(zip(groups, records, strict=True))
    )
    tiles = {name: kernel.after for kernel in kernels for name in kernel.names if kernel.after != kernel.before}
    source = emit(schedule.extraction, schedule.result, tiles=tiles)
    return Tuned(replace(schedule, source=source, tiles=tiles), kernels)


def _groups(
    schedule: ScheduledGraph, buffers: Mapping[str, Buffer]
) -> list[tuple[KernelSource, Problem | None, tuple[str, ...]]]:
    """Group kernels with equal functions and layouts: the source of the first, its problem, and all names."""
    found: dict[object, tuple[KernelSource, Problem | None, list[str]]] = {}
    for spec in kernel_specs(schedule.extraction, schedule.result).values():
        source = emit_kernel(spec, buffers)
        key = likeness(source)
        if key not in found:
            ends = index_ends(spec, buffers)
            found[key] = (source, None if ends is None else Problem(spec, buffers, ends), [])
        found[key][2].append(spec.name)
    return [(source, problem, tuple(names)) for source, problem, names in found.values()]


def _content(source: KernelSource, buffers: Mapping[str, Buffer], device: str) -> dict[str, Any]:
    """The cache key: all that the fastest tile depends on."""
    return {
        "search": SEARCH,
        "device": device,
        "versions": versions(),
        "kernel": digest(repr(likeness(source)) + PRELUDE),
        "operands": [[buffers[p].dtype, _ints(buffers[p].shape), _ints(buffers[p].stride)] for p in source.pointers],
    }


def _ints(values: Sequence[Any]) -> list[int]:
    return [int(value) for value in values]


def _searched(problems: Sequence[Problem], starts: Sequence[TileConfig], measure: Measure) -> tuple[Found, ...]:
    axes = [kernel_axes(problem.spec, problem.buffers) for problem in problems]
    return search(starts, lambda k, config: neighbours(axes[k], config, LARGEST_TILE), measure)


def _record(found: Found) -> dict[str, Any]:
    return {"config": asdict(found.config), "us": found.us, "start_us": found.start_us, "tried": found.tried}


def _tuned(
    before: TileConfig, names: tuple[str, ...], record: dict[str, Any] | None, found: Found | None
) -> TunedKernel:
    if record is not None:
        after = TileConfig.from_json(record["config"])
        return TunedKernel(names, before, after, record["start_us"], record["us"], record["tried"], cached=True)
    if found is None:
        return TunedKernel(names, before, before, reason="positions that it reads at are computed")
    reason = "" if found.start_us else "its first tile does not run by itself"
    return TunedKernel(names, before, found.config, found.start_us, found.us, found.tried, reason=reason)


def _on(device: torch.device) -> Opened:
    @contextmanager
    def opened(problems: Sequence[Problem]) -> Iterator[Measure]:
        with tempfile.TemporaryDirectory() as folder:
            yield DeviceMeasure(problems, device, Path(folder))

    return opened


def _tile(config: TileConfig) -> str:
    blocks = " x ".join(str(size) for _, size in config.blocks)
    return f"{blocks} by {config.num_warps} warps" + (" (loop)" if config.loop == "looped" else "")
