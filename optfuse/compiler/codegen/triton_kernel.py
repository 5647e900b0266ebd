"""Generate the Triton function of a fused kernel, with the facts needed to launch it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy

from optfuse.compiler.codegen.block_sizes import LARGEST_TILE, choose_tile, given_tile, product_tile
from optfuse.compiler.codegen.index_arithmetic import Axis
from optfuse.compiler.codegen.kernel_source import KernelSource, decorator
from optfuse.compiler.codegen.kernel_writer import NOWHERE, Line, pressure, render
from optfuse.compiler.codegen.member_writer import MemberWriter
from optfuse.compiler.codegen.product_tiles import DotTile, dot_tile
from optfuse.compiler.codegen.python_text import call_text
from optfuse.compiler.codegen.reduction_passes import Passes, Role, computed, order_passes
from optfuse.compiler.codegen.size_products import need_64_bits
from optfuse.compiler.codegen.sum_shortcuts import Single, find_shortcuts
from optfuse.compiler.codegen.tiles import (
    LEAST_ROW,
    STAGES,
    Loop,
    TileConfig,
    memory_accesses,
    plan_axes,
    prefetches,
    trims,
    turned,
)
from optfuse.compiler.codegen.triton_expressions import SUM, Value, pointer_type
from optfuse.compiler.codegen.triton_reductions import Accumulators, Fold, fold_one, fold_whole
from optfuse.compiler.codegen.triton_scans import Running, combine_function
from optfuse.compiler.codegen.uniform_branches import with_branches
from optfuse.compiler.ir.dtypes import BITS
from optfuse.compiler.ir.kernel_spec import KernelSpec
from optfuse.compiler.ir.nodes import Buffer, LoopNest, Result, Scan, Store
from optfuse.compiler.ir.sizes import symbols_in
from optfuse.compiler.ir.traversal import dot_in, loads, operands, stored


def emit_kernel(
    spec: KernelSpec, buffers: Mapping[str, Buffer], largest_tile: int = LARGEST_TILE, config: TileConfig | None = None
) -> KernelSource:
    """The Triton function of a kernel.

    Args:
        spec: Members in topological order over one space of fixed sizes, none of them 0.
        buffers: All buffers that members access, by name.
        largest_tile: A reduction of more elements, whatever one row's warps could hold, walks r block by block.
        config: Tuned blocks and warps (``optfuse.tuning``); chosen by ``compiler.codegen.block_sizes`` if None.

    Raises:
        InvalidGraphError: An index outside the grammar.
        PlanError: A configuration that does not fit the kernel.
    """
    passes = order_passes(spec, find_shortcuts(spec))
    accesses = memory_accesses(spec, buffers, passes)

    def draft(axes: tuple[Axis, ...]) -> _Kernel:
        kernel = _Kernel(spec, buffers, axes, passes, frozenset())
        kernel.write()
        return kernel

    def held(axes: tuple[Axis, ...]) -> float:
        return pressure(draft(axes).lines, frozenset(axis.name for axis in axes))

    axes = plan_axes(spec, passes, accesses)
    product = _product_tile(spec)
    if config is None and product is not None:
        tile = product_tile(axes, product)
    elif config is None:
        tile = choose_tile(axes, accesses, held, largest_tile, passes.count)
    else:
        tile = given_tile(axes, config)
    offsets = draft(tile.axes).members.accesses.offsets
    repeated = frozenset(text for text, count in offsets.items() if count > 1 and not text.isidentifier())
    kernel = _Kernel(spec, buffers, tile.axes, passes, repeated)
    kernel.trim, kernel.members.turn = trims(tile.axes, accesses), product is None and turned(tile.axes, accesses)
    kernel.threads, kernel.ahead = 32 * tile.num_warps, prefetches(tile.axes, accesses)
    kernel.write()
    return kernel.source(tile.num_warps)


def kernel_axes(spec: KernelSpec, buffers: Mapping[str, Buffer]) -> tuple[Axis, ...]:
    """The axes of a kernel's tile before blocks are chosen; a "looped" r may still become one block."""
    passes = order_passes(spec, find_shortcuts(spec))
    return plan_axes(spec, passes, memory_accesses(spec, buffers, passes))


class _Kernel:
    """A kernel under construction."""

    def __init__(
        self,
        spec: KernelSpec,
        buffers: Mapping[str, Buffer],
        axes: tuple[Axis, ...],
        passes: Passes,
        repeated: frozenset[str],
    ) -> None:
        self.spec = spec
        self.buffers = buffers
        self.axes = axes
        self.passes = passes
        #: whether a partial last block has a loop of its own
        self.trim = False
        #: threads of a program; 0: not known yet
        self.threads = 0
        #: whether blocks of a loop are loaded ahead
        self.ahead = False
        touched = [name for member in spec.members for name in _touched(member.nest)]
        self.parameters = {name: f"{name}_ptr" for name in dict.fromkeys(touched)}
        self.members = MemberWriter(spec, buffers, axes, passes, self.parameters, repeated)
        self.writer = self.members.writer
        self.r = next((axis for axis in axes if axis.name == "r"), None)
        self.late: list[tuple[int, Store, Value, bool]] = []
        #: by member, the function that combines the elements of its scan
        self.functions: dict[int, str] = {}
        #: of the scans of the current pass, by member
        self.carries: dict[int, Running] = {}

    @property
    def lines(self) -> list[Line]:
        """The statements."""
        return self.writer.outer.lines

    def write(self) -> None:
        """Everything below the function's head."""
        self._positions()
        if self.r is None or self.r.walk != "looped":
            self._straight()
        else:
            self._in_passes(self.r)

    # --- positions and masks

    def _positions(self) -> None:
        flat = len(self.axes) == 1
        for k, axis in enumerate(self.axes):
            where = "" if flat else ("[:, None]" if (k == 0) != self.members.turn else "[None, :]")
            lanes = f"tl.arange(0, {axis.constant}){where}"
            if axis.walk == "whole":
                self._define(axis, lanes)
            elif axis.walk == "parallel":
                self._define(axis, f"{self.members.addresses.starts[axis.name]} + {lanes}")
        if self.r is not None and self.r.walk == "parallel":
            self.writer.statement(f"first = tl.program_id(0) % tl.cdiv({self.r.size}, {self.r.constant}) == 0")

    def _define(self, axis: Axis, text: str) -> None:
        names = frozenset({axis.name})
        self.writer.statement(f"{axis.index} = {text}", names, note=NOWHERE)
        if axis.masked:
            self.writer.statement(f"{axis.mask} = {axis.index} < {axis.size}", names, note=NOWHERE)

    # --- without a loop

    def _straight(self) -> None:
        for k, member in enumerate(self.spec.members):
            nest = member.nest
            self.members.begin(k, operands(nest) + stored(nest))
            if nest.reductions:
                self.members.results[k] = self._fold_here(k)
            elif nest.scan is not None:
                self.members.results[k] = self._scan(k, nest.scan).whole(self._scanned(nest.scan))
            self._store(k)
        self._store_late()

    def _fold_here(self, k: int) -> tuple[Value, ...]:
        reductions = self.spec.members[k].nest.reductions
        values = [self.members.value(reduction.operand) for reduction in reductions]
        folds = [self._fold(k, number, value.dtype) for number, value in enumerate(values)]
        if self.passes.roles[k] != "reduces":
            return tuple(part for fold, value in zip(folds, values, strict=True) for part in fold_one(fold, value))
        return fold_whole(self.writer, folds, values, lambda: self.members.position(k))

    def _scan(self, k: int, scan: Scan) -> Running:
        """The writer of a member's scan; its combine function becomes part of the kernel's text."""
        function = f"{self.spec.name}_combine_{k}"
        self.functions[k] = combine_function(function, scan)
        return Running(self.writer, function, self.spec.members[k].nest.stores[0].buffer)

    def _scanned(self, scan: Scan) -> list[Value]:
        return [self.members.value(operand) for operand in scan.operands]

    def _fold(self, k: int, number: int, dtype: str) -> Fold:
        nest = self.spec.members[k].nest
        kind = nest.reductions[number].kind
        name = nest.stores[0].buffer
        direct = len(nest.reductions) == 1 and isinstance(nest.stores[0].value, Result) and kind != "welford"
        name = name if direct else f"{name}_{kind}" if kind != "welford" else name
        if number and len(nest.reductions) > 1:
            name = f"{name}_{number}"
        points = math.prod(nest.rsizes)
        mask = self.r.mask if self.r is not None and self.r.masked else ""
        return Fold(kind, dtype, points, name, mask)

    # --- with loops

    def _in_passes(self, r: Axis) -> None:
        ready = self.passes.ready
        for p in range(self.passes.count + 1):
            for k, role in enumerate(self.passes.roles):
                if role != "full" and ready[k] == p:
                    if k in self.passes.shortcuts.single:
                        self.members.results[k] = (self._single(k, self.passes.shortcuts.single[k]),)
                    nest = self.spec.members[k].nest
                    self.members.begin(k, stored(nest))
                    self._store(k)
            if p < self.passes.count and self.passes.needed[p]:
                self._pass(p, r)
        self._store_late()

    def _single(self, k: int, single: Single) -> Value:
        """The sum of a value that is zero at all positions but one."""
        parts = []
        for place in (single.position, single.value):
            self.members.begin(place.member, [place.expr])
            parts.append(self.members.value(place.expr))
        position, value = parts
        self.members.begin(k, ())
        at = self.writer.name(position, "position").within(SUM)
        inside = f"({at} >= 0) & ({at} < {single.points})"
        fold = self._fold(k, 0, self.spec.members[k].nest.reductions[0].operand.dtype)
        text = f"tl.where({inside}, {value.text}, {fold.identity})"
        return self.writer.name(Value(text, fold.dtype, position.axes | value.axes), fold.name)

    def _pass(self, p: int, r: Axis) -> None:
        """One loop over r: the reductions of a level, and the stores of this pass."""
        running: dict[int, list[Accumulators]] = {}
        self.carries = {}
        if self.trim:
            whole = f"{r.size} // {r.constant} * {r.constant}"
            self._blocks(p, replace(r, trimmed=True), f"range(0, {whole}, {r.constant})", running)
            self._blocks(p, r, f"range({whole}, {r.size}, {r.constant})", running)
        else:
            ahead = f"tl.range(0, {r.size}, {r.constant}, num_stages={STAGES})"
            self._blocks(p, r, ahead if self.ahead else f"range(0, {r.size}, {r.constant})", running)
        for k in self.passes.needed[p]:
            online = self.passes.shortcuts.online.get(k)
            self.members.begin(k, ())
            if online is not None:
                (largest,) = self.members.results[online]
                self.members.results[k] = running[online][0].finish_beside(largest)
            elif k in running:
                self.members.results[k] = tuple(value for each in running[k] for value in each.finish())

    def _blocks(self, p: int, r: Axis, blocks: str, running: dict[int, list[Accumulators]]) -> None:
        """A loop over blocks of r. ``running``: accumulators by member; new ones are added."""
        self.r = r
        self.members.walk(tuple(r if axis.name == r.name else axis for axis in self.axes))
        self.writer.open_body()
        self.members.body_values.clear()
        self.members.tiles.clear()
        lanes = f"tl.arange(0, {r.constant})[None, :]"
        self._define(r, f"{r.name}_start + {lanes}")
        for k in self.passes.needed[p]:
            nest = self.spec.members[k].nest
            if k in self.passes.shortcuts.online:
                continue
            if self.passes.roles[k] == "reduces":
                self.members.begin(k, operands(nest))
                self._accumulate(k, running)
            else:
                self.members.begin(k, computed(nest))
                if nest.scan is not None:
                    carry = self.carries.setdefault(k, self._scan(k, nest.scan))
                    self.members.results[k] = carry.block(self._scanned(nest.scan))
                self._store(k, this_pass=p)
        if p == self.passes.count - 1:
            self._store_late("full")
        self.writer.note = NOWHERE
        self.writer.close_body(f"for {r.name}_start in {blocks}:")

    def _accumulate(self, k: int, running: dict[int, list[Accumulators]]) -> None:
        """Accumulate a block into a member's reductions, and into the online sum beside its maximum."""
        reductions = self.spec.members[k].nest.reductions
        values = [self.members.value(reduction.operand) for reduction in reductions]
        if k not in running:
            beside = [other for other, largest in self.passes.shortcuts.online.items() if largest == k]
            partner = self._fold(beside[0], 0, values[0].dtype) if beside else None
            rows = self.axes[0].block == 1 and self.axes[1].block >= LEAST_ROW
            folds = [self._fold(k, number, value.dtype) for number, value in enumerate(values)]
            running[k] = [Accumulators(self.writer, fold, partner, rows=rows) for fold in folds]
        mask = self.r.mask if self.r is not None and self.r.masked else ""
        for reduction, value, accumulators in zip(reductions, values, running[k], strict=True):
            position = self.members.position(k) if reduction.kind in ("argmax", "argmin") else None
            accumulators.add(value, position, mask)

    # --- stores

    def _store(self, k: int, this_pass: int | None = None) -> None:
        """Evaluate a member's stores, and write those that reach memory: now, or after the last read of the buffer."""
        here = this_pass is None or self.passes.store_pass.get(k) == this_pass
        only_first = self.passes.roles[k] == "outer" and self.r is not None and self.r.walk == "parallel"
        for store, value in self.members.stored_values(k):
            if store.buffer in self.spec.stores and here:
                if store.buffer in self.passes.hazards:
                    self.late.append((k, store, value, only_first))
                else:
                    self.members.store(store, value, only_first=only_first, once=self._once(k))

    def _store_late(self, role: Role | None = None) -> None:
        """Write the buffers that members read before, when every thread has read them."""
        due = [late for late in self.late if role is None or self.passes.roles[late[0]] == role]
        if any(not self._own(store, value) for _, store, value, _ in due):
            self.writer.note = NOWHERE
            self.writer.statement("tl.debug_barrier()  # what follows overwrites what was read above", due[0][2].axes)
        for k, store, value, only_first in due:
            self.members.begin(k, ())
            self.members.store(store, value, only_first=only_first, once=self._once(k))
        self.late = [late for late in self.late if late not in due]

    def _own(self, store: Store, value: Value) -> bool:
        """Whether a store in a kernel's only loop over r needs no barrier: the threads that overwrite have read before.

        That is so if the stored value depends on each tile that may be overwritten. Triton loads a tile once if it has
        an element for each thread: the thread that stores an element has loaded it, or got its value from the one that
        has.
        """
        if not 0 < self.threads <= math.prod(axis.block for axis in self.axes):
            return False
        once = self.r is not None and self.r.walk == "looped" and self.passes.count == 1
        if not once or store.buffer in self.members.read:
            return False
        bits = BITS[self.buffers[store.buffer].dtype]
        tiles = {name for name, buffer in self.members.tiles.items() if BITS[self.buffers[buffer].dtype] == bits}
        return value.axes >= {"x", "r"} and tiles <= self.writer.sources(value.text)

    def _once(self, k: int) -> tuple[sympy.Symbol, ...]:
        """The digits along which a member is recomputed where it stores; between loops over r without those of r."""
        once = self.spec.members[k].once
        if self.r is None or self.r.walk != "looped" or self.passes.roles[k] == "full":
            return once
        return tuple(digit for digit in once if digit not in {symbol for symbol, _ in self.r.digits})

    # --- the function

    def source(self, num_warps: int) -> KernelSource:
        """The kernel's text with the facts needed to launch it."""
        written = [store.buffer for member in self.spec.members for store in member.nest.stores]
        written = [name for name in dict.fromkeys(written) if name in self.spec.stores]
        used = dict.fromkeys([*self.members.read, *written])
        pointers = tuple(name for name in self.parameters if name in used)
        constants = [axis.constant for axis in self.axes]
        looped = self.r is not None and self.r.walk == "looped"
        lines = render(self.lines if looped else with_branches(self.lines))
        grid = tuple((axis.size, axis.constant) for axis in self.axes if axis.walk == "parallel")
        sizes = self._sizes(lines, grid)
        if self.members.addresses.wide or need_64_bits(lines, sizes, self.buffers.values()):
            # products of sizes are computed with as many bits as their factors have
            lines = [*render([Line(f"{name} = tl.cast({name}, tl.int64)") for name in sizes]), *lines]
        head = call_text(
            f"def {self.spec.name}(",
            [self.parameters[name] for name in pointers]
            + list(sizes)
            + [f"{name}: tl.constexpr" for name in constants],
            indent="",
            tail="):",
        )
        signature = [(self.parameters[name], pointer_type(self.buffers[name].dtype)) for name in pointers]
        loop: Loop = "none"
        if ("reduces" in self.passes.roles or self.functions) and self.r is not None:
            loop = "looped" if self.r.walk == "looped" else "persistent"
        return KernelSource(
            name=self.spec.name,
            source="\n".join([*self.functions.values(), decorator(sizes), *head, *lines]) + "\n",
            pointers=pointers,
            written=tuple(written),
            signature=(*signature, *((name, "i32") for name in sizes), *((name, "constexpr") for name in constants)),
            config=TileConfig(tuple((a.constant, a.block) for a in self.axes), num_warps, 1, loop),
            interpret=TileConfig(tuple((a.constant, a.interpret_block) for a in self.axes), num_warps, 1, loop),
            grid=grid,
            sizes=sizes,
        )

    def _sizes(self, lines: Sequence[str], grid: Sequence[tuple[int, str]]) -> tuple[str, ...]:
        """The symbols of sizes that the statements and the grid use."""
        if not self.spec.symbols:
            return ()
        used = set(re.findall(r"\w+", "\n".join(lines))).union(*(symbols_in(size) for size, _ in grid))
        return tuple(sorted(self.spec.symbols & used))


def _product_tile(spec: KernelSpec) -> DotTile | None:
    """The tile of the kernel's product of matrices, if it computes one."""
    for member in spec.members:
        dot = dot_in(member.nest)
        if dot is not None:
            rows, columns = member.nest.sizes
            return dot_tile(rows, columns, dot.terms)
    return None


def _touched(nest: LoopNest) -> list[str]:
    """The buffers of a nest, those that it reads first."""
    read = [load.buffer for load in loads(nest)]
    return [*read[::-1], *(store.buffer for store in nest.stores)]
