"""Write reductions along r: in one step if a tile holds all of r, else by accumulators of the tile's shape.

Lanes beyond the end of r hold the reduction's identity. Results vary along x alone and have size 1 along r.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from optfuse.compiler.codegen.kernel_writer import Writer
from optfuse.compiler.codegen.triton_expressions import BIT_OR, SUM, Value, cast, constant, tensor, triton_type
from optfuse.compiler.ir.dtypes import FLOATING, integer_range
from optfuse.compiler.ir.nodes import ReductionKind
from optfuse.compiler.ir.sizes import Size

TILE = frozenset({"x", "r"})
OUTER = frozenset({"x"})
#: The extremum that a reduction finds beside its position.
_BESIDE: dict[ReductionKind, ReductionKind] = {"argmax": "max", "argmin": "min"}


@dataclass(frozen=True, slots=True)
class Fold:
    """A reduction of a kernel.

    Attributes:
        kind: The kind of reduction.
        dtype: The dtype of the operand, and of the results but for positions.
        points: How many elements are folded.
        name: The stem of its variables' names.
        mask: The variable that is true for lanes of r that are points; "" when all are.
    """

    kind: ReductionKind
    dtype: str
    points: int
    name: str
    mask: str

    @property
    def held(self) -> str:
        """The accumulation dtype: Triton has no reductions of small integers."""
        return "int32" if self.dtype in ("uint8", "int8", "int16", "uint16") else self.dtype

    @property
    def identity(self) -> str:
        """The identity element, as text."""
        match self.kind:
            case "sum" | "welford":
                return constant(0, self.held).text
            case "prod":
                return constant(1, self.held).text
            case "any" | "all":
                return str(self.kind == "all")
            case _:
                largest = self.kind in ("max", "argmax")
                if self.dtype in FLOATING:
                    return 'float("-inf")' if largest else 'float("inf")'
                return str(integer_range(self.dtype)[0 if largest else 1])

    @property
    def position_dtype(self) -> str:
        """The dtype in which positions are compared."""
        return "int64" if self.points >= 1 << 31 else "int32"


def fold_whole(
    writer: Writer, folds: Sequence[Fold], operands: Sequence[Value], position: Callable[[], Value]
) -> tuple[Value, ...]:
    """The results of reductions whose operands lie in one tile. An extremum comes with its position if both are wanted.

    ``position`` gives an operand's place in the order of reduction, for argmax and argmin.
    """
    found: dict[tuple[ReductionKind, Value], tuple[Value, ...]] = {}
    for fold, operand in zip(folds, operands, strict=True):
        if fold.kind in _BESIDE:
            best, at = _extremum_in_tile(writer, fold, operand, position())
            found |= {(fold.kind, operand): (at,), (_BESIDE[fold.kind], operand): (best,)}
    results: list[Value] = []
    for fold, operand in zip(folds, operands, strict=True):
        known = found.get((fold.kind, operand))
        results += _fold_in_tile(writer, fold, operand) if known is None else known
    return tuple(results)


def _fold_in_tile(writer: Writer, fold: Fold, operand: Value) -> tuple[Value, ...]:
    value = cast(operand, fold.held)
    if fold.kind == "welford":
        return _deviations(writer, fold, value)
    return _folded(writer, fold, [tile_of(_in_lanes(fold, value, fold.identity), frozenset({"r"}))])


def _extremum_in_tile(writer: Writer, fold: Fold, operand: Value, position: Value) -> tuple[Value, Value]:
    lane = _in_lanes(fold, cast(operand, fold.held), fold.identity)
    place = _in_lanes(fold, cast(position, fold.position_dtype), str(fold.points))
    # a reduction of several tiles needs them of one shape
    return _extremum(writer, fold, [tile_of(lane, TILE), tile_of(place, TILE)])


def fold_one(fold: Fold, operand: Value) -> tuple[Value, ...]:
    """The results of a reduction over a single point."""
    match fold.kind:
        case "argmax" | "argmin":
            return (constant(0, "int64"),)
        case "welford":
            return operand, constant(0, fold.dtype), constant(1, fold.dtype)
        case _:
            return (operand,)


class Accumulators:
    """A reduction over blocks: ``add`` each block inside the loop, ``finish`` after it.

    ``beside``: a sum of exponentials relative to this maximum, accumulated along with it (online softmax). ``rows``:
    whether a tile is one row, so that eight neighbouring lanes may share an accumulator.
    """

    def __init__(self, writer: Writer, fold: Fold, beside: Fold | None = None, *, rows: bool = False) -> None:
        self.writer = writer
        self.fold = fold
        self.beside = beside
        self.eights = beside is not None and rows and fold.dtype == "float32"
        held = triton_type(fold.held)
        match fold.kind:
            case "argmax" | "argmin":
                starts = [("best", fold.identity, held), ("at", str(fold.points), triton_type(fold.position_dtype))]
            case "welford":
                starts = [(part, "0.0", held) for part in ("mean", "m2")]
            case _:
                starts = [("total" if fold.kind == "sum" else "folded", fold.identity, held)]
        self.names = [self._start(f"{fold.name}_{part}", *start) for part, *start in starts]
        self.sum = self._start(f"{beside.name}_total", "0.0", held) if beside is not None else ""

    def _start(self, hint: str, identity: str, dtype: str) -> str:
        """The name of an accumulator, defined before the loop."""
        name = self.writer.new_name(hint, self.writer.outer)
        shape = "(XBLOCK, RBLOCK // 8)" if self.eights else "(XBLOCK, RBLOCK)"
        zero = identity in ("0", "0.0")
        text = f"tl.zeros({shape}, {dtype})" if zero else f"tl.full({shape}, {identity}, {dtype})"
        self.writer.define_outer(name, text, TILE, (64 if "64" in dtype else 32) // (8 if self.eights else 1))
        return name

    def add(self, operand: Value, position: Value | None, mask: str) -> None:
        """Accumulate a block, of which the lanes in ``mask`` are points ("": all)."""
        fold, names = replace(self.fold, mask=mask), self.names
        value = cast(operand, fold.held)
        if fold.kind == "welford":
            lines = self._add_deviations(self.writer.name(value, f"{fold.name}_operand").text, mask)
        else:
            lane = _in_lanes(fold, value, fold.identity)
            if self.beside is not None:
                lane = self.writer.name(tile_of(lane, TILE), f"{fold.name}_operand")
            match fold.kind:
                case "max" if self.eights:
                    both = f"{self.sum}, {names[0]}"
                    lines = [f"{both} = add_exponentials({both}, {lane.text})"]
                case "max" if self.beside is not None:
                    lines = [f"{self.sum} = add_exponential({self.sum}, {names[0]}, {lane.text})"]
                    lines += [f"{names[0]} = {_extreme(fold)}({names[0]}, {lane.text})"]
                case "sum":
                    lines = [f"{names[0]} += {lane.text}"]
                case "prod":
                    lines = [f"{names[0]} *= {lane.text}"]
                case "max" | "min":
                    lines = [f"{names[0]} = {_extreme(fold)}({names[0]}, {lane.text})"]
                case "any":
                    lines = [f"{names[0]} = {names[0]} | {lane.within(BIT_OR + 1)}"]
                case "all":
                    lines = [f"{names[0]} = {names[0]} & {lane.within(SUM)}"]
                case _:
                    assert position is not None, "the caller gives positions to argmax and argmin"
                    where = cast(position, fold.position_dtype)
                    both = ", ".join(names)
                    lines = [f"{both} = {fold.kind}({both}, {lane.text}, {where.text})"]
                    if fold.mask:
                        place = self.writer.name(_in_lanes(fold, where, str(fold.points)), f"{fold.name}_place")
                        lines = [f"{both} = {fold.kind}({both}, {lane.text}, {place.text})"]
        for line in lines:
            self.writer.statement(line, TILE)

    def _add_deviations(self, value: str, mask: str) -> list[str]:
        """Welford's update in each lane. All lanes have seen equally many values, but for those beyond the end of r."""
        mean, m2 = self.names
        delta, share = f"{mean}_change", f"{mean}_share"
        off_mean = f"tl.where({mask}, {value} - {mean}, 0.0)" if mask else f"{value} - {mean}"
        after = off_mean if mask else f"({off_mean})"
        return [
            f"{share} = tl.full((), 1.0, {triton_type(self.fold.held)}) / (r_start // RBLOCK + 1)",
            f"{delta} = {off_mean}",
            f"{mean} += {delta} * {share}",
            f"{m2} += {delta} * {after}",
        ]

    def finish(self) -> tuple[Value, ...]:
        """The results, in the outer scope."""
        fold, writer = self.fold, self.writer
        if fold.kind == "welford":
            targets = [writer.new_name(f"{fold.name}_{part}", writer.outer) for part in ("mean", "m2", "count")]
            count = writer.new_name(f"{fold.name}_seen", writer.outer)
            seen = f"(({fold.points} + RBLOCK - 1 - tl.arange(0, RBLOCK)[None, :]) // RBLOCK)"
            zeros = f"tl.zeros((XBLOCK, RBLOCK), {triton_type(fold.held)})"
            writer.statement(f"{count} = {zeros} + {seen}.to({triton_type(fold.held)})", TILE)
            parts = f"({', '.join((*self.names, count))})"
            writer.statement(f"{', '.join(targets)} = tl.reduce({parts}, 1, welford, keep_dims=True)", OUTER)
            return tuple(Value(target, fold.dtype, OUTER) for target in targets)
        dtypes = (fold.held, fold.position_dtype)
        parts = [Value(name, dtype, TILE) for name, dtype in zip(self.names, dtypes, strict=False)]
        return _folded(writer, fold, parts)

    def finish_beside(self, largest: Value) -> tuple[Value, ...]:
        """The result of the sum beside the maximum: each lane's sum is relative to the largest value of that lane."""
        assert self.beside is not None, "asked of a maximum that has a sum beside it"
        text = f"{self.sum} * libdevice.exp({self.names[0]} - {largest.text})"
        return _folded(self.writer, self.beside, [Value(text, self.beside.held, TILE)])


def _in_lanes(fold: Fold, value: Value, identity: str) -> Value:
    """The value, with the identity in the lanes that are no points."""
    if not fold.mask:
        return value
    if value.dtype in ("int64", "float64") or value.literal:
        identity = f"tl.full((), {identity}, {triton_type(value.dtype)})"
    return Value(f"tl.where({fold.mask}, {value.text}, {identity})", value.dtype, value.axes | {"r"})


def tile_of(value: Value, axes: frozenset[str]) -> Value:
    """The value with a lane for every point of r, which a reduction needs, or of the whole tile."""
    if value.axes >= axes:
        return value
    text = value.text if not value.literal else f"tl.full((), {value.text}, {triton_type(value.dtype)})"
    return Value(f"tl.broadcast_to({text}, (XBLOCK, RBLOCK))", value.dtype, TILE)


def _folded(writer: Writer, fold: Fold, parts: Sequence[Value]) -> tuple[Value, ...]:
    """The results of reducing tiles (masked values or accumulators) along r."""
    first = parts[0]
    match fold.kind:
        case "sum":
            text = f"tl.sum({first.text}, 1, keep_dims=True)"
        case "prod":
            text = f"tl.reduce({first.text}, 1, product, keep_dims=True)"
        case "max" | "min":
            text = f"tl.{fold.kind}({first.text}, 1, keep_dims=True)"
            if fold.dtype in FLOATING:
                text = f"tl.reduce({first.text}, 1, {_extreme(fold)}, keep_dims=True)"
        case "any" | "all":
            extreme = "max" if fold.kind == "any" else "min"
            text = f"tl.{extreme}({first.within(7)}.to(tl.int32), 1, keep_dims=True) != 0"
            return (writer.name(Value(text, "bool", OUTER, 0), fold.name),)
        case _:
            return _extremum(writer, fold, parts)[1:]
    return (cast(writer.name(Value(text, fold.held, OUTER), fold.name), fold.dtype),)


def _extremum(writer: Writer, fold: Fold, parts: Sequence[Value]) -> tuple[Value, Value]:
    """The extremum and its position, of tiles of values and of positions."""
    pair = ", ".join(part.text for part in parts)
    best = writer.new_name(f"{fold.name}_best", writer.outer)
    at = writer.new_name(f"{fold.name}_at", writer.outer)
    writer.statement(f"{best}, {at} = tl.reduce(({pair}), 1, {fold.kind}, keep_dims=True)", OUTER)
    value = cast(Value(best, fold.held, OUTER), fold.dtype)
    return value, cast(Value(at, fold.position_dtype, OUTER), "int64")


def _deviations(writer: Writer, fold: Fold, value: Value) -> tuple[Value, ...]:
    """Mean, squared deviations and count in two steps over a tile of all values: more exact than Welford's update."""
    value = writer.name(tile_of(value, frozenset({"r"})), f"{fold.name}_operand")
    count = constant(fold.points, fold.held)
    if isinstance(fold.points, Size):  # an integer until it is converted
        count = tensor(count)
    total = f"tl.sum({_in_lanes(fold, value, '0.0').text}, 1, keep_dims=True)"
    mean = writer.name(Value(f"divide({total}, {count.text})", fold.held, OUTER), f"{fold.name}_mean")
    deviation = _in_lanes(fold, Value(f"{value.text} - {mean.text}", fold.held, TILE, SUM), "0.0")
    off = writer.name(deviation, f"{fold.name}_deviation")
    squares = Value(f"tl.sum({off.text} * {off.text}, 1, keep_dims=True)", fold.held, OUTER)
    return mean, writer.name(squares, f"{fold.name}_m2"), count


def _extreme(fold: Fold) -> str:
    name = "maximum" if fold.kind == "max" else "minimum"
    return name if fold.dtype in FLOATING else f"tl.{name}"
