"""What the page needs of one graph: both partitions with where to draw them, figures, sources and reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optfuse.problem.cost import kernel_price
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Kernel, Solution
from optfuse.report.flow import flow
from optfuse.report.html.entries import progress_records
from optfuse.report.html.reasons import Separations
from optfuse.report.html.sources import module_steps
from optfuse.report.lanes import Span, lanes
from optfuse.report.layers import place
from optfuse.report.summary import certificate
from optfuse.report.table import differences, kernel_rows
from optfuse.solver.memory.launch_order import all_launches
from optfuse.solver.result import SolveResult

#: Ops written in a box and letters of a name, as static/picture.js has them too.
NAMED_OPS = 32
LETTERS = 30
#: Pixels: a letter, a line, the room inside a box, and between boxes.
LETTER, LINE, PAD = 6.7, 15, 8
GAPS = (36.0, 46.0)


def graph_data(
    instance: Instance,
    result: SolveResult,
    source: str = "",
    greedy_source: str = "",
    others: Mapping[str, Solution] | None = None,
) -> dict[str, Any]:
    """Plain data for one graph. Times are picoseconds under the model, sizes bytes, places pixels.

    Args:
        instance: The problem.
        result: What the solver returned for it.
        source: The emitted module, if there is one.
        greedy_source: The module of greedy's schedule, if there is one.
        others: More solutions that the chosen one may be held against, by their solver's name.
    """
    texts = _Texts()
    chosen = dict(zip(result.solution.kernels, _steps(source, result.solution), strict=True))
    greedy = dict(zip(result.greedy_solution.kernels, _steps(greedy_source, result.greedy_solution), strict=True))
    emitted = {**greedy, **chosen}
    beside = {"greedy": result.greedy_solution, **(others or {})}
    return {
        "name": instance.name,
        "devices": [
            {"name": device.name, "launch": device.launch_ps, "dram": device.dram_ps_per_mib}
            for device in instance.devices
        ],
        "status": result.status,
        "certificate": certificate(result),
        "objective": result.objective,
        "bound": result.bound,
        "wall_s": result.statistics.wall_s,
        "peak": result.solution.peak_bytes,
        "given_up": list(result.statistics.given_up),
        "progress": progress_records(result),
        **_overlap(result),
        "ops": [[op.name, op.kind, op.node, op.module, op.source] for op in instance.ops],
        "chosen": _side(instance, result.solution, emitted, texts),
        "beside": [
            {
                "name": name,
                "objective": solution.objective,
                "peak": solution.peak_bytes,
                "side": _side(instance, solution, emitted, texts),
                "differences": _differences(instance, solution, result.solution),
            }
            for name, solution in beside.items()
        ],
        "texts": texts.all,
    }


def _differences(instance: Instance, before: Solution, after: Solution) -> list[list[Any]]:
    """The places where two solutions differ: kernels by number on each side, and the time that the second one saves."""
    first, second = ({kernel: k for k, kernel in enumerate(solution.kernels)} for solution in (before, after))
    return [
        [[first[kernel] for kernel in item.before], [second[kernel] for kernel in item.after], item.saved_ps]
        for item in differences(instance, before, after)
    ]


class _Texts:
    """Texts that repeat, each kept once; they are referred to by number."""

    def __init__(self) -> None:
        self.all: list[str] = [""]
        self._numbers: dict[str, int] = {"": 0}

    def number(self, text: str) -> int:
        found = self._numbers.setdefault(text, len(self.all))
        if found == len(self.all):
            self.all.append(text)
        return found


def _overlap(result: SolveResult) -> dict[str, Any]:
    """What is proven of communication beside computation; nothing for a graph without, or where it is not known."""
    found = result.statistics.overlap
    return {} if found is None else {"overlap": {"bound": found.bound}}


def _lanes(instance: Instance, solution: Solution) -> dict[str, Any]:
    """A partition in time, spans as [kernel, begin, end]; nothing for a graph without communication."""
    found = lanes(instance, solution)
    if found is None:
        return {}

    def plain(spans: Sequence[Span]) -> list[list[int]]:
        return [[span.kernel, span.begin, span.end] for span in spans]

    return {
        "lanes": {
            "device": plain(found.device),
            "exposed": plain(found.exposed),
            "communicators": [[channel, plain(spans)] for channel, spans in found.communicators.items()],
            "launches": list(found.launches),
            "makespan": found.makespan,
            "exposed_ps": found.exposed_ps,
        }
    }


def _steps(source: str, solution: Solution) -> tuple[str, ...]:
    """What is emitted for each kernel, of a launch for all of its kernels; nothing where it is another schedule's."""
    steps, launches = module_steps(source), all_launches(len(solution.kernels), solution.launches)
    if len(steps) != len(launches):
        return ("",) * len(solution.kernels)
    return tuple(step for step, launch in zip(steps, launches, strict=True) for _ in launch)


def _side(instance: Instance, solution: Solution, steps: Mapping[Kernel, str], texts: _Texts) -> dict[str, Any]:
    """One partition: kernels in the order they run, and the arrows between them."""
    streams = flow(instance, solution)
    reasons = Separations(instance, solution, streams.arrows)
    sizes = [_size(instance, kernel) for kernel in solution.kernels]
    places = place(sizes, [(arrow.src, arrow.dst) for arrow in streams.arrows], GAPS)
    kernels: list[dict[str, Any]] = []
    for row, kernel in zip(kernel_rows(instance, solution), solution.kernels, strict=True):
        price = kernel_price(instance, kernel.ops, kernel.scheme, kernel.writes)
        number = row.index
        kernels.append(
            {
                "ops": list(kernel.ops),
                "kind": row.kind,
                "scheme": row.scheme,
                "extents": [row.x, row.r],
                "cost": price.total,
                "launch": price.launch,
                "memory": price.memory,
                "compute": price.compute,
                "read": price.read_bytes,
                "write": price.write_bytes,
                "in": streams.inputs[number],
                "out": streams.outputs[number],
                "live": row.live_bytes,
                "box": [
                    round(places.centers[number] - sizes[number][0] / 2),
                    round(places.tops[number]),
                    round(sizes[number][0]),
                    round(sizes[number][1]),
                ],
                "code": texts.number(steps.get(kernel, "")),
            }
        )
    names = [buffer.name for buffer in instance.buffers]
    arrows = [
        [
            arrow.src,
            arrow.dst,
            arrow.bytes,
            [names[buffer] for buffer in arrow.buffers],
            texts.number(reasons.why(arrow.src, arrow.dst)),
            [round(coordinate) for bend in bends for coordinate in bend],
        ]
        for arrow, bends in zip(streams.arrows, places.bends, strict=True)
    ]
    size = [round(places.width), round(places.height)]
    return {"kernels": kernels, "arrows": arrows, "size": size, **_lanes(instance, solution)}


def _size(instance: Instance, kernel: Kernel) -> tuple[float, float]:
    """Pixels of a kernel's box: a line of figures, its ops, and a line for what it reads and writes of the outside."""
    names = [min(len(instance.ops[op].name), LETTERS) + 5 for op in kernel.ops[:NAMED_OPS]]
    letters = max(25, *names)
    return letters * LETTER + 2 * PAD, (min(len(kernel.ops), NAMED_OPS) + 2) * LINE + 2 * PAD
