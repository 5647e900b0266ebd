"""Write loop graphs as plain JSON and read them back. An untrusted file is safe to read: no text of it is evaluated.

Indices are text in Python's syntax (``ir.index_expressions``). The expressions of a nest are one table, operands before
their users, so that shared subexpressions stay shared. Infinities and nan are written as {"float": "inf"}.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, assert_never, get_args

from optfuse.compiler.ir.index_expressions import format_index, parse_index
from optfuse.compiler.ir.nodes import (
    Arg,
    Buffer,
    Call,
    Const,
    Dot,
    Expr,
    Guard,
    Iota,
    LibraryCall,
    Load,
    LoopGraph,
    LoopNest,
    Op,
    Origin,
    Reduction,
    ReductionKind,
    Result,
    Scan,
    Store,
    TorchValue,
    View,
)
from optfuse.compiler.ir.verify_graph import verify
from optfuse.errors import InvalidGraphError, PlanError

FORMAT_VERSION = 1

Json = Any
_TARGET = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*){1,2}")
_TORCH_TEXT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(:[0-9]+)?")


def graph_to_json(graph: LoopGraph) -> dict[str, Json]:
    """The graph as dicts, lists, numbers and strings, ready for ``json.dumps``."""
    return {
        "version": FORMAT_VERSION,
        "name": graph.name,
        "buffers": [_write_buffer(buffer) for buffer in graph.buffers],
        "inputs": list(graph.inputs),
        "constants": list(graph.constants),
        "ops": [_write_nest(op) if isinstance(op, LoopNest) else _write_call(op) for op in graph.ops],
        "outputs": [_write_arg(output) for output in graph.outputs],
    }


def graph_from_json(data: Json) -> LoopGraph:
    """The graph that ``graph_to_json`` wrote, verified.

    Raises:
        PlanError: Data of another version or form, or a graph that does not verify; the message says where.
    """
    if not isinstance(data, dict) or data.get("version") != FORMAT_VERSION:
        found = data.get("version") if isinstance(data, dict) else None
        raise PlanError(
            f"loop graph of version {found!r}; this optfuse reads version {FORMAT_VERSION}, save the plan again"
        )
    name = data.get("name")
    try:
        graph = _read_graph(data)
        verify(graph)
    except (KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
        raise PlanError(
            f"loop graph {name!r} is malformed ({type(error).__name__}: {error}); save the plan again"
        ) from error
    except InvalidGraphError as error:
        raise PlanError(f"loop graph {name!r} does not verify: {error}") from error
    return graph


# --- writing


def _write_buffer(b: Buffer) -> list[Json]:
    row: list[Json] = [b.name, b.dtype, list(b.shape), list(b.stride), b.kind, b.device]
    return row if b.base is None else [*row, b.base]


def _scalar(value: bool | int | float | str | None) -> Json:
    if isinstance(value, float) and not abs(value) < float("inf"):
        return {"float": repr(value)}
    return value


def _write_arg(arg: Arg) -> Json:
    match arg:
        case View():
            return {"view": [arg.buffer, list(arg.shape), list(arg.stride), arg.offset]}
        case TorchValue():
            return {"torch": [arg.kind, arg.text]}
        case tuple():
            return [_write_arg(item) for item in arg]
        case _:
            return _scalar(arg)


def _write_origin(origin: Origin) -> list[str]:
    return [origin.node, origin.target, origin.module, origin.source]


def _write_call(call: LibraryCall) -> Json:
    return {
        "call": call.name,
        "target": call.target,
        "args": [_write_arg(arg) for arg in call.args],
        "kwargs": [[name, _write_arg(arg)] for name, arg in call.kwargs],
        "outputs": list(call.outputs),
        "mutates": list(call.mutates),
        "random": call.random,
        **({"holds": list(call.holds)} if call.holds else {}),
        **({"group": [call.group, call.ranks]} if call.group else {}),
        "origin": _write_origin(call.origin),
    }


def _write_nest(nest: LoopNest) -> Json:
    table = _Table()
    reductions = [[r.kind, table.add(r.operand)] for r in nest.reductions]
    scan = nest.scan and [[table.add(e) for e in exprs] for exprs in (nest.scan.operands, nest.scan.combine)]
    stores = [_write_store(s, table) for s in nest.stores]
    return {
        "nest": nest.name,
        "sizes": list(nest.sizes),
        "rsizes": list(nest.rsizes),
        "values": table.rows,
        "reductions": reductions,
        **({"scan": scan} if scan else {}),
        "stores": stores,
        "origin": _write_origin(nest.origin),
    }


def _write_store(store: Store, table: _Table) -> list[Json]:
    """Buffer, index and value; the indirect indices if there are any; "adds" if it does."""
    row: list[Json] = [store.buffer, format_index(store.index), table.add(store.value)]
    if store.indirect:
        row.append([table.add(e) for e in store.indirect])
    return [*row, "adds"] if store.adds else row


class _Table:
    """The expressions of a nest as rows, each distinct one once."""

    def __init__(self) -> None:
        self.rows: list[Json] = []
        self.position: dict[str, int] = {}
        self.identity: dict[int, int] = {}

    def add(self, expr: Expr) -> int:
        if id(expr) not in self.identity:
            row = self.row(expr)
            key = repr(row)
            if key not in self.position:
                self.position[key] = len(self.rows)
                self.rows.append(row)
            self.identity[id(expr)] = self.position[key]
        return self.identity[id(expr)]

    def row(self, expr: Expr) -> Json:
        match expr:
            case Const():
                return ["const", expr.dtype, _scalar(expr.value)]
            case Iota():
                return ["iota", expr.dtype, format_index(expr.index)]
            case Result():
                return ["result", expr.dtype, expr.k]
            case Call():
                return ["call", expr.dtype, expr.function, *(self.add(arg) for arg in expr.args)]
            case Load():
                row = ["load", expr.dtype, expr.buffer, format_index(expr.index)]
                if expr.other is None and not expr.guards and not expr.indirect:
                    return row
                guards = [[format_index(g.expr), g.lower, g.upper] for g in expr.guards]
                other = None if expr.other is None else self.add(expr.other)
                return [*row, guards, other, [self.add(e) for e in expr.indirect]]
            case Dot():
                return ["dot", expr.dtype, self.add(expr.left), self.add(expr.right), expr.terms]
            case _:
                assert_never(expr)


# --- reading


def _read_graph(data: Mapping[str, Json]) -> LoopGraph:
    return LoopGraph(
        name=_line(data["name"]),
        buffers=tuple(_read_buffer(*row) for row in data["buffers"]),
        inputs=_strings(data["inputs"]),
        constants=_strings(data["constants"]),
        ops=tuple(_read_op(op) for op in data["ops"]),
        outputs=tuple(_read_output(output) for output in data["outputs"]),
    )


def _read_buffer(
    name: Json, dtype: Json, shape: Json, stride: Json, kind: Json, device: Json, base: Json = None
) -> Buffer:
    _matching(_TORCH_TEXT, dtype)
    _matching(_TORCH_TEXT, device)
    shares = None if base is None else _line(base)
    return Buffer(_line(name), dtype, _read_sizes(shape), _read_sizes(stride), kind, device, shares)


def _read_op(data: Mapping[str, Json]) -> Op:
    if "call" in data:
        group, ranks = data.get("group", ("", 0))
        return LibraryCall(
            name=_line(data["call"]),
            target=_matching(_TARGET, data["target"]),
            args=tuple(_read_arg(arg) for arg in data["args"]),
            kwargs=tuple((_line(name), _read_arg(arg)) for name, arg in data["kwargs"]),
            outputs=tuple(None if name is None else _line(name) for name in data["outputs"]),
            origin=Origin(*_strings(data["origin"])),
            mutates=_strings(data["mutates"]),
            random=_typed(bool, data["random"]),
            holds=_strings(data.get("holds", ())),
            group=_line(group),
            ranks=_typed(int, ranks),
        )
    values: list[Expr] = []
    for row in data["values"]:
        values.append(_read_value(row, values))
    return LoopNest(
        name=_line(data["nest"]),
        sizes=_read_sizes(data["sizes"]),
        rsizes=_read_sizes(data["rsizes"]),
        reductions=tuple(Reduction(_kind(kind), _at(values, k)) for kind, k in data["reductions"]),
        stores=tuple(_read_store(row, values) for row in data["stores"]),
        origin=Origin(*_strings(data["origin"])),
        scan=_read_scan(data["scan"], values) if "scan" in data else None,
    )


def _read_scan(row: Sequence[Json], values: Sequence[Expr]) -> Scan:
    operands, combine = (tuple(_at(values, k) for k in part) for part in row)
    return Scan(operands, combine)


def _read_store(row: Sequence[Json], values: Sequence[Expr]) -> Store:
    name, index, value, *rest = row
    indirect, *mode = rest or [()]
    if mode not in ([], ["adds"]):
        raise ValueError(f"a store to {name} that {mode}")
    places = tuple(_at(values, k) for k in indirect)
    return Store(_line(name), parse_index(index), _at(values, value), places, bool(mode))


def _read_value(row: Sequence[Json], values: Sequence[Expr]) -> Expr:
    tag, dtype = row[0], _line(row[1])
    match tag:
        case "const":
            return Const(_number(row[2]), dtype)
        case "iota":
            return Iota(parse_index(row[2]), dtype)
        case "result":
            return Result(_typed(int, row[2]), dtype)
        case "call":
            return Call(_line(row[2]), tuple(_at(values, k) for k in row[3:]), dtype)
        case "load":
            guards, other, indirect = row[4:] if len(row) > 4 else ((), None, ())
            return Load(
                _line(row[2]),
                parse_index(row[3]),
                dtype,
                tuple(Guard(parse_index(expr), *_read_sizes((lower, upper))) for expr, lower, upper in guards),
                None if other is None else _typed(Const, _at(values, other)),
                tuple(_at(values, k) for k in indirect),
            )
        case "dot":
            left, right = (_typed(Load, _at(values, k)) for k in row[2:4])
            return Dot(left, right, _typed(int, row[4]), dtype)
        case _:
            raise ValueError(f"unknown expression {tag!r}")


def _read_arg(data: Json) -> Arg:
    if isinstance(data, list):
        return tuple(_read_arg(item) for item in data)
    if isinstance(data, dict) and set(data) == {"view"}:
        buffer, shape, stride, offset = data["view"]
        return View(_line(buffer), _read_sizes(shape), _read_sizes(stride), *_read_sizes((offset,)))
    if isinstance(data, dict) and set(data) == {"torch"}:
        kind, text = data["torch"]
        if kind == "complex":
            real, imaginary = (repr(float(part)) for part in text.split())
            return TorchValue(kind, f"{real} {imaginary}")
        if kind not in ("dtype", "device", "layout", "memory_format"):
            raise ValueError(f"unknown kind of torch value {kind!r}")
        return TorchValue(kind, _matching(_TORCH_TEXT, text))
    return data if data is None or isinstance(data, str) else _number(data)


def _read_output(data: Json) -> View | bool | int | float | None:
    output = _read_arg(data)
    if isinstance(output, str | tuple | TorchValue):
        raise ValueError(f"{data!r} is no output")
    return output


def _read_sizes(sizes: Sequence[Json]) -> tuple[int, ...]:
    return tuple(_typed(int, size) for size in sizes)


def _number(data: Json) -> bool | int | float:
    if isinstance(data, dict) and set(data) == {"float"} and data["float"] in ("inf", "-inf", "nan"):
        return float(data["float"])
    if isinstance(data, bool | int | float):
        return data
    raise ValueError(f"{data!r} is no number")


def _at(values: Sequence[Expr], k: Json) -> Expr:
    if not 0 <= _typed(int, k) < len(values):
        raise ValueError(f"value {k} is used before it is defined")
    return values[k]


def _kind(data: Json) -> ReductionKind:
    if data not in get_args(ReductionKind):
        raise ValueError(f"unknown reduction {data!r}")
    return data


def _strings(data: Sequence[Json]) -> tuple[str, ...]:
    return tuple(_line(text) for text in data)


def _line(data: Json) -> str:
    """A string without line breaks: names and origins reach the comments of emitted source."""
    if not isinstance(data, str) or not data.isprintable():
        raise ValueError(f"{data!r} is no line of text")
    return data


def _matching(pattern: re.Pattern[str], data: Json) -> str:
    if not isinstance(data, str) or not pattern.fullmatch(data):
        raise ValueError(f"{data!r} is not of the form {pattern.pattern}")
    return data


def _typed(wanted: Callable[..., Any], data: Json) -> Any:
    if type(data) is not wanted:
        raise ValueError(f"{data!r} is not of type {wanted.__name__}")
    return data
