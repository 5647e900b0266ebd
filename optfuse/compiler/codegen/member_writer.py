"""Write one member of a kernel at a time: its expressions, loads and stores as statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

import sympy

from optfuse.compiler.codegen.accesses import Accesses
from optfuse.compiler.codegen.addresses import Addresses
from optfuse.compiler.codegen.index_arithmetic import Axis, Linear, Named, linearize
from optfuse.compiler.codegen.index_checks import Interval, checked_position, interval, is_inside
from optfuse.compiler.codegen.kernel_writer import Note, Writer, identifier, reserved_names
from optfuse.compiler.codegen.philox_counters import counters
from optfuse.compiler.codegen.product_tiles import dot_tile
from optfuse.compiler.codegen.reduction_passes import Passes
from optfuse.compiler.codegen.triton_dots import Factor, write_dot
from optfuse.compiler.codegen.triton_expressions import (
    Value,
    call,
    cast,
    const,
    constant,
    tensor,
)
from optfuse.compiler.ir.dtypes import FLOAT8, HALF, NARROW
from optfuse.compiler.ir.index_expressions import affine
from optfuse.compiler.ir.kernel_spec import KernelSpec, rdigit, xdigit
from optfuse.compiler.ir.nodes import (
    Buffer,
    Call,
    Const,
    Dot,
    Expr,
    Guard,
    Iota,
    Load,
    Origin,
    Result,
    Store,
    ivar,
    rvar,
    tvar,
)
from optfuse.compiler.ir.scalar_functions import FUNCTIONS

#: The longest expression that is not given a name.
LONGEST_INLINE = 64


class MemberWriter:
    """Writes members into a kernel, in the order of its caller."""

    def __init__(
        self,
        spec: KernelSpec,
        buffers: Mapping[str, Buffer],
        axes: tuple[Axis, ...],
        passes: Passes,
        pointers: Mapping[str, str],
        repeated: frozenset[str],
    ) -> None:
        self.spec = spec
        self.buffers = buffers
        self.axes = axes
        self.passes = passes
        #: whether the tile is transposed: its first dimension is the last axis
        self.turn = False
        self.writer = Writer(reserved_names(axes, pointers.values()))
        self.addresses = Addresses(self.writer, axes)
        self.sizes = self.addresses.sizes
        self.accesses = Accesses(self.addresses, buffers, pointers, repeated)
        #: values of register buffers by (producer, buffer), outside of loops and in the open loop body
        self.outer_values: dict[tuple[int, str], Value] = {}
        self.body_values: dict[tuple[int, str], Value] = {}
        self._intervals: dict[tuple[int, str], Interval | None] = {}
        self.results: dict[int, tuple[Value, ...]] = {}
        #: whole tiles loaded in the open body: variable to buffer
        self.tiles: dict[str, str] = {}
        self.read: dict[str, None] = {}
        self._member = 0
        self._approximate = False
        self._env: dict[sympy.Symbol, Linear] = {}
        self._memo: dict[int, Value] = {}
        self._uses: Counter[int] = Counter()

    # --- members

    def walk(self, axes: tuple[Axis, ...]) -> None:
        """Use these axes from here on: they differ from those before only in their masks."""
        self.axes = self.addresses.axes = axes

    def begin(self, member: int, roots: Iterable[Expr]) -> None:
        """Start to write a member, of which ``roots`` will be evaluated."""
        self._member = member
        self._approximate = self.spec.members[member].approximate
        self._memo = {}
        self._uses = _use_counts(roots)
        self.writer.note = origin_note(self.spec.members[member].nest.origin)
        self._env = self._variables(member)

    def _variables(self, member: int) -> dict[sympy.Symbol, Linear]:
        it, space = self.spec.members[member], self.spec.space
        digits = [*map(xdigit, range(len(space.x))), *map(rdigit, range(len(space.r)))]
        # a digit of size 1 is on no axis, and always 0
        known = {digit: Linear({digit: 1} if digit in self.sizes else {}) for digit in digits}
        env = {ivar(k): linearize(expr, known, self.addresses.division) for k, expr in enumerate(it.ivars)}
        return env | {rvar(k): linearize(expr, known, self.addresses.division) for k, expr in enumerate(it.rvars)}

    def stored_values(self, member: int) -> list[tuple[Store, Value]]:
        """Evaluate the stores of a member; named values, kept for the members that read them from registers."""
        nest = self.spec.members[member].nest
        found = []
        for store in nest.stores:
            value = self.value(store.value)
            if store.buffer in self.spec.registers:
                value = self._in_register(value, store.buffer)
                values = self.body_values if self.passes.roles[member] == "full" else self.outer_values
                values[member, store.buffer] = value
                self._intervals[member, store.buffer] = interval(store.value, self._bounds)
            elif not value.literal:
                value = self.writer.name(value, identifier(store.buffer))
            found.append((store, value))
        return found

    def _in_register(self, value: Value, buffer: str) -> Value:
        """The value as a load of ``buffer`` would give it; half types are not rounded."""
        dtype = self.buffers[buffer].dtype
        if dtype in NARROW:
            if dtype in FLOAT8 and value.dtype != dtype:
                value = cast(value if not value.literal else cast(value, "float32"), dtype)
            value = cast(value, "float32")
        else:
            value = cast(value, dtype)
        return value if value.literal else self.writer.name(value, identifier(buffer))

    # --- expressions

    def value(self, expr: Expr) -> Value:
        """An expression of the current member; repeated and long ones get names."""
        known = self._memo.get(id(expr))
        if known is None:
            known = self._evaluate(expr)
            shared = self._uses[id(expr)] > 1 and isinstance(expr, Call)
            if (shared or len(known.text) > LONGEST_INLINE) and not known.literal:
                known = self.writer.name(known, self._hint(expr))
            self._memo[id(expr)] = known
        return known

    def _hint(self, expr: Expr) -> str:
        return expr.function if isinstance(expr, Call) else "value"

    def _evaluate(self, expr: Expr) -> Value:
        match expr:
            case Const():
                return const(expr)
            case Load():
                return self._load(expr)
            case Iota():
                return self._iota(expr)
            case Result():
                return self.results[self._member][expr.k]
            case Dot():
                return self._dot(expr)
            case Call():
                return self._call(expr)
            case _:
                assert_never(expr)

    def _call(self, expr: Call) -> Value:
        match expr:
            case Call("rand", (seed, Iota(index))):
                numbers = self._random(self.value(seed), linearize(index, self._env, self.addresses.division))
                if numbers is not None:
                    return numbers
            case Call("position", (index, _)):  # not an index itself: it is compared with indices
                self._check(expr, ())
                return self.value(index)
            case _:
                pass
        args = [self.value(arg) for arg in expr.args]
        if FUNCTIONS[expr.function].rule != "cast":
            args = [cast(arg, "float32") if arg.dtype in NARROW else arg for arg in args]
        result = call(expr.function, args, expr.dtype, approximate=self._approximate)
        home = self.writer.scope(result.axes)
        if any(self.writer.scope(arg.axes) is not home and not arg.simple for arg in args):
            # operands that do not vary along r are computed before the loop
            args = [
                arg if self.writer.scope(arg.axes) is home or arg.simple else self.writer.name(arg, self._hint(e))
                for arg, e in zip(args, expr.args, strict=True)
            ]
            result = call(expr.function, args, expr.dtype, approximate=self._approximate)
        if expr.function == "where" and _for_a_program(*args):
            condition, one, other = (arg.text for arg in args)
            return self.writer.name(result, self._hint(expr), (condition, one, other))
        return result

    def _random(self, seed: Value, form: Linear) -> Value | None:
        """Random numbers, four neighbours at a time; None where positions do not come in groups of four."""
        shapes = [""] if len(self.axes) == 1 else ["[:, None]", "[None, :]"]
        # the tile's last dimension is the first axis if the tile is transposed
        for axis, shape in reversed(list(zip(self.axes[:: -1 if self.turn else 1], shapes, strict=True))):
            counter = counters(self.addresses, form, axis, shape)
            if counter is not None:
                down = "_down" if shape == "[:, None]" else ""
                text = f"uniform_numbers{down}({tensor(seed).text}, {counter.text})"
                return Value(text, "float32", counter.axes | seed.axes)
        return None

    def _iota(self, expr: Iota) -> Value:
        form = linearize(expr.index, self._env, self.addresses.division)
        if not form.terms:
            return constant(form.constant, expr.dtype)
        return cast(self.addresses.index(form), expr.dtype)

    def _dot(self, dot: Dot) -> Value:
        """The elements of a product of matrices on the tile."""
        (rows, columns), factors = self.spec.members[self._member].nest.sizes, list[Factor]()
        for load, axis in zip((dot.left, dot.right), self.axes, strict=True):
            form = linearize(load.index, self._env | {rvar(0): Linear()}, self.addresses.division)
            offset = self.addresses.index(form, self.accesses.needs_wide_offsets(load.buffer))
            steps, _ = affine(load.index) or ({}, 0)
            offset = offset if offset.literal else self.writer.name(offset, "rows" if axis.name == "y" else "columns")
            mask = axis.mask if axis.masked else ""
            buffer = identifier(load.buffer)
            factors.append(Factor(self.accesses.pointers[load.buffer], offset, steps.get(rvar(0), 0), mask, buffer))
            self.read[load.buffer] = None
        name = identifier(self.spec.members[self._member].nest.stores[0].buffer)
        return write_dot(self.writer, name, dot, factors, dot_tile(rows, columns, dot.terms).terms)

    # --- memory

    def _load(self, load: Load) -> Value:
        source = self.passes.producers[self._member].get(load.buffer)
        if source is not None:
            key = (source, load.buffer)
            return self.body_values[key] if key in self.body_values else self.outer_values[key]
        env = self._with_indirect(load)
        form = linearize(load.index, env, self.addresses.division)
        guards = [part for guard in load.guards for part in self.accesses.guard(guard, env)]
        for position in load.indirect:
            self._check(position, guards)
        offset = self.addresses.index(form, self.accesses.wide(form, load.buffer))
        mask = self.accesses.mask(offset.axes, guards)
        spread = offset.axes | (mask.axes if mask is not None else frozenset())
        if spread == {"r"} and self._several_rows() and not load.indirect:
            # a row of weights, loaded as a tile: as a row it would have another layout than the tile, and values
            # computed with it would be converted from one to the other through shared memory
            spread |= {"x"}
        arguments = [self.accesses.pointer(load.buffer, offset, spread)]
        if mask is not None:
            arguments.append(f"mask={mask.text}")
        if guards and load.other is not None:
            other = const(load.other)  # Triton takes a number as float32
            arguments.append(f"other={(tensor(other) if load.dtype == 'float64' and load.other.value else other).text}")
        self.read[load.buffer] = None
        text = f"tl.load({', '.join(arguments)})"
        held = Value(text, load.dtype, spread)
        if load.dtype in NARROW:
            held = Value(f"{text}.to(tl.float32)", "float32", spread)
        named = self.writer.name(held, identifier(load.buffer))
        if {"x", "r"} <= spread:
            self.tiles[named.text] = load.buffer
        return named

    def _with_indirect(self, access: Load | Store) -> dict[sympy.Symbol, Linear]:
        """The variables of an access's index, its indirect indices included."""
        env = dict(self._env)
        for k, expr in enumerate(access.indirect):
            found = checked_position(expr)
            position = cast(self.value(expr if found is None else found[0]), "int64")
            if not position.literal:
                position = self.writer.name(position, f"{identifier(access.buffer)}_index")
                env[tvar(k)] = Linear({Named(position.text, position.axes, None, wide=True): 1})
            else:
                env[tvar(k)] = Linear(constant=int(position.text))
        return env

    def _several_rows(self) -> bool:
        """Whether a tile holds several rows, each as a whole."""
        return [axis.walk for axis in self.axes] == ["parallel", "whole"] and self.axes[0].block > 1

    def store(self, store: Store, value: Value, *, only_first: bool = False, once: Sequence[sympy.Symbol] = ()) -> None:
        """Write a value to memory.

        ``only_first``: of programs that differ along r alone the first one stores. ``once``: of points that differ in
        these digits alone the one where they are 0 stores.
        """
        dtype = self.buffers[store.buffer].dtype
        form = linearize(store.index, self._with_indirect(store), self.addresses.division)
        for position in store.indirect:
            self._check(position, ())
        offset = self.addresses.index(form, self.accesses.wide(form, store.buffer))
        shape = offset.axes | value.axes | (self._axes_of_points() if store.adds else frozenset())
        repeats = [digit for digit in once if digit in self.sizes]  # a digit of size 1 is on no axis, and always 0
        guards = [guard for d in repeats for guard in self.accesses.guard(Guard(d, 0, 1), {d: Linear({d: 1})})]
        mask = self.accesses.mask(shape, [Value("first", "bool"), *guards] if only_first else guards)
        shape |= frozenset[str]() if mask is None else mask.axes
        if dtype in FLOAT8:
            value = cast(value, dtype)
        elif value.dtype == "float64":
            value = cast(value, "float32") if dtype in HALF else tensor(value)
        pointer = self.accesses.pointer(store.buffer, offset, shape)
        tail = f", mask={mask.text}" if mask is not None else ""
        if store.adds:
            self.writer.statement(f'tl.atomic_add({pointer}, {value.text}{tail}, sem="relaxed")', shape)
        else:
            self.writer.statement(f"tl.store({pointer}, {value.text}{tail})", shape)

    def _axes_of_points(self) -> frozenset[str]:
        """The axes along which the current member has points of its own: each of them adds its value."""
        walked = self.passes.roles[self._member] == "full"
        return frozenset(axis.name for axis in self.axes if walked or axis.name != "r")

    def _check(self, expr: Expr, guards: Sequence[Value]) -> None:
        """Assert that an index which has to lie in a dimension does so, where the guards hold."""
        found = checked_position(expr)
        if found is None or is_inside(*found, self._bounds):
            return
        position = tensor(cast(self.value(found[0]), "int64"))
        position = position if position.text.isidentifier() else self.writer.name(position, "index")
        inside = f"({position.text} >= 0) & ({position.text} < {found[1]})"
        mask = self.accesses.mask(position.axes, guards)
        axes = position.axes | (frozenset[str]() if mask is None else mask.axes)
        ignored = f", mask={mask.text}" if mask is not None else ""
        text = f'tl.device_assert({inside}, "index out of bounds for size {found[1]}"{ignored})'
        self.writer.statement_once(text, axes)

    def _bounds(self, leaf: Iota | Load) -> Interval | None:
        """What a place lies between; of a value in a register, what its member knows."""
        if isinstance(leaf, Load):
            return self._intervals.get((self.passes.producers[self._member].get(leaf.buffer, -1), leaf.buffer))
        return linearize(leaf.index, self._env, self.addresses.division).bounds(self.sizes)

    def position(self, member: int) -> Value:
        """The position in the row-major order of the reduction's variables."""
        form, stride = Linear(), 1
        sizes = self.spec.members[member].nest.rsizes
        for k in reversed(range(len(sizes))):
            form = form.plus(self._env[rvar(k)], stride)
            stride *= sizes[k]
        return self.addresses.index(form)


def _for_a_program(condition: Value, one: Value, other: Value) -> bool:
    """Whether a choice between two tiles of one shape is the same for the whole program."""
    tiles = not one.literal and not other.literal and bool(one.axes) and one.axes == other.axes
    return tiles and not condition.literal and not condition.axes and one.dtype == other.dtype


def origin_note(origin: Origin) -> Note:
    """The comment that names an op's place in the model and its node."""
    place = ", ".join(" ".join(part.split()) for part in (origin.module, origin.source) if part)
    return Note(place, f"{origin.node}: {origin.target}" if origin.target else origin.node)


def _use_counts(roots: Iterable[Expr]) -> Counter[int]:
    """By id of a subexpression: how often it is used."""
    counts: Counter[int] = Counter()
    stack = list(roots)
    while stack:
        expr = stack.pop()
        counts[id(expr)] += 1
        if counts[id(expr)] > 1:
            continue
        if isinstance(expr, Call):
            stack.extend(expr.args)
        elif isinstance(expr, Load):
            stack.extend(expr.indirect)
    return counts
