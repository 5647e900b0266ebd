"""The report of one solved graph as plain text: what was proved, what it gains over greedy, and where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from optfuse.problem.instance import Instance
from optfuse.problem.solution import Kernel
from optfuse.report.summary import before_solver, certificate, change, communication, shared_launches
from optfuse.report.table import Difference, KernelRow, differences, kernel_rows
from optfuse.solver.result import SolveResult

MIB = 1 << 20
US = 1_000_000

#: At most so many differences are written out; the rest is counted.
SHOWN_DIFFERENCES = 12
SHOWN_OPS = 12


def size_text(size: int) -> str:
    """A size for people, such as "1.5 MiB"."""
    for unit, name in ((1 << 30, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 1000 * unit else f"{size / unit:,.0f} {name}"
    return f"{size} B"


def report(
    instance: Instance, result: SolveResult, library_ops: Iterable[str] = (), decided: Iterable[str] | None = None
) -> str:
    """The text of ``report.txt``. Times are microseconds under the model, sizes are MiB (2**20 bytes).

    Args:
        instance: The problem.
        result: What the solver returned for it.
        library_ops: ATen operators that are called as they are: no loops are generated for them.
        decided: What was decided before the solver, a phrase each; left out where it is not known.
    """
    greedy = kernel_rows(instance, result.greedy_solution)
    chosen = kernel_rows(instance, result.solution)
    sections = (
        _header(instance, result, decided),
        _comparison(result, greedy, chosen),
        _differences(instance, differences(instance, result.greedy_solution, result.solution)),
        _kernels(chosen),
        _libraries(library_ops),
        _provenance(result),
    )
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _header(instance: Instance, result: SolveResult, decided: Iterable[str] | None) -> Iterator[str]:
    statistics = result.statistics
    yield f"{instance.name} on {', '.join(device.name for device in instance.devices)}"
    yield "=" * 72
    yield f"Certificate: {certificate(result)}."
    if decided is not None:
        yield f"  D{before_solver(decided)[1:]}."
    yield (
        f"  objective {result.objective / US:.3f} us, bound {result.bound / US:.3f} us, gap {result.gap:.2%}, "
        f"found in {statistics.wall_s:.1f} s"
    )
    yield (
        f"  {len(instance.ops)} ops in {statistics.blocks} blocks ({statistics.unique_blocks} of them different), "
        f"{statistics.candidates} candidate kernels, {statistics.cuts} cuts against cycles, {statistics.rounds} rounds"
    )
    if shared_launches(result):
        yield f"  {shared_launches(result)}"
    if communication(result):
        yield f"  {communication(result)}"
    yield "  Times are predictions of the cost model, not measurements."
    for line in statistics.given_up:
        yield f"  Given up: {line}"


def _comparison(result: SolveResult, greedy: Sequence[KernelRow], chosen: Sequence[KernelRow]) -> Iterator[str]:
    def bytes_of(rows: Sequence[KernelRow]) -> tuple[float, float]:
        return sum(row.read_bytes for row in rows) / MIB, sum(row.write_bytes for row in rows) / MIB

    def fused(rows: Sequence[KernelRow]) -> int:
        return sum(row.kind == "loop" for row in rows)

    before, after = bytes_of(greedy), bytes_of(chosen)
    table: tuple[tuple[str, float, float, str], ...] = (
        ("kernels", len(greedy), len(chosen), ",.0f"),
        ("  of them generated", fused(greedy), fused(chosen), ",.0f"),
        ("predicted us", result.greedy_objective / US, result.objective / US, ",.3f"),
        ("MiB read", before[0], after[0], ",.2f"),
        ("MiB written", before[1], after[1], ",.2f"),
        ("peak memory MiB", result.greedy_solution.peak_bytes / MIB, result.solution.peak_bytes / MIB, ",.2f"),
    )
    yield f"{'':24}{'greedy':>16}{'chosen':>16}{'change':>12}"
    for name, old, new, style in table:
        yield f"{name:24}{old:>16{style}}{new:>16{style}}{change(old, new):>12}"


def _differences(instance: Instance, found: Sequence[Difference]) -> Iterator[str]:
    if not found:
        yield "The chosen kernels are greedy's."
        return
    yield "Where the chosen kernels differ from greedy's"
    # Repeated layers differ from greedy in the same way: said once, with a count.
    patterns = [list(group) for _, group in groupby(sorted(found, key=_pattern), key=_pattern)]
    for group in patterns[:SHOWN_DIFFERENCES]:
        first = group[0]
        times = f" (and {len(group) - 1} more of the same shape)" if len(group) > 1 else ""
        yield f"  saves {first.saved_ps / US:.3f} us{times}"
        for label, kernels in (("greedy", first.before), ("chosen", first.after)):
            for kernel in kernels:
                yield f"    {label}: {_kernel_text(instance, kernel)}"
    left = patterns[SHOWN_DIFFERENCES:]
    if left:
        count = sum(map(len, left))
        saved = sum(item.saved_ps for group in left for item in group)
        yield f"  and {count} more, which save {saved / US:.3f} us together"


def _pattern(item: Difference) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    def sizes(kernels: Iterable[Kernel]) -> tuple[int, ...]:
        return tuple(sorted(len(kernel.ops) for kernel in kernels))

    return -item.saved_ps, sizes(item.before), sizes(item.after)


def _kernel_text(instance: Instance, kernel: Kernel) -> str:
    return f"[{instance.schemes[kernel.scheme].name}] {_names([instance.ops[op].name for op in kernel.ops])}"


def _names(names: Sequence[str]) -> str:
    more = f" + {len(names) - SHOWN_OPS} more" if len(names) > SHOWN_OPS else ""
    return " ".join(names[:SHOWN_OPS]) + more


def _kernels(rows: Sequence[KernelRow]) -> Iterator[str]:
    joined = [k > 0 and rows[k - 1].launch == row.launch for k, row in enumerate(rows)]
    yield f"Kernels, in the order they run{' (+: in the launch of the one above)' if any(joined) else ''}"
    yield f"{'#':>5}{'us':>12}{'read MiB':>12}{'write MiB':>12}{'live MiB':>12}  {'bound by':8}  scheme: ops"
    for row, shares in zip(rows, joined, strict=True):
        number = f"+{row.index}" if shares else f"{row.index}"
        yield (
            f"{number:>5}{row.predicted_ps / US:>12.3f}{row.read_bytes / MIB:>12.3f}{row.write_bytes / MIB:>12.3f}"
            f"{row.live_bytes / MIB:>12.2f}  {row.bound_by:8}  {row.scheme}: {_names(row.ops)}"
        )


def _libraries(library_ops: Iterable[str]) -> Iterator[str]:
    names = sorted(set(library_ops))
    yield f"Called from the library, no loops generated: {', '.join(names) if names else 'none'}."


def _provenance(result: SolveResult) -> Iterator[str]:
    yield f"Seed {result.seed}. " + ", ".join(f"{name} {version}" for name, version in result.versions) + "."
