"""Print loop graphs as canonical text, for readers, golden files and diffs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import assert_never

from optfuse.compiler.ir.buffer_layout import row_major
from optfuse.compiler.ir.index_expressions import format_index
from optfuse.compiler.ir.nodes import (
    Arg,
    Buffer,
    Call,
    Const,
    Dot,
    Expr,
    Iota,
    LibraryCall,
    Load,
    LoopGraph,
    LoopNest,
    Result,
    Store,
    TorchValue,
    View,
)
from optfuse.compiler.ir.traversal import operands, stored

_INFIX = {
    **{"add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "remainder": "%"},
    **{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="},
    **{"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"},
}
_LITERAL_DTYPE = {bool: "bool", int: "int64", float: "float32"}


def print_graph(graph: LoopGraph) -> str:
    """The whole graph: buffers, ops in order, outputs. Ends with a newline."""
    lines = [f"graph {graph.name}"]
    lines += [f"  {_buffer(buffer)}" for buffer in graph.buffers]
    for op in graph.ops:
        text = print_nest(op) if isinstance(op, LoopNest) else print_call(op)
        lines += ["", *(f"  {line}" for line in text.splitlines())]
    outputs = ", ".join(_view(out) if isinstance(out, View) else repr(out) for out in graph.outputs)
    return "\n".join([*lines, "", f"  return {outputs}".rstrip(), ""])


def print_nest(nest: LoopNest) -> str:
    """A nest as loops. ``v0, v1, ...`` are values used more than once, ``s0, s1, ...`` the results of reductions."""
    loops = ", ".join(f"i{k} < {size}" for k, size in enumerate(nest.sizes))
    lines = [f"{nest.name}: for {loops}" if loops else f"{nest.name}: once"]
    if nest.origin.target:
        lines[0] += f"  # {nest.origin.target}"
    namer = _Namer(nest)
    results = 0
    for reduction in nest.reductions:
        count = 3 if reduction.kind == "welford" else 1
        names = ", ".join(f"s{results + k}" for k in range(count))
        over = ", ".join(f"r{k} < {size}" for k, size in enumerate(nest.rsizes))
        operand = namer.text(reduction.operand)
        lines += [*namer.definitions(), f"  {names} = {reduction.kind} of {operand} for {over}"]
        results += count
    if nest.scan is not None:
        names = [f"s{k}" for k in range(len(nest.scan.operands))]
        texts = ", ".join(namer.text(operand) for operand in nest.scan.operands)
        over = f"r0 < {nest.rsizes[0]}"
        combined = ", ".join(print_expr(expr) for expr in nest.scan.combine)
        lines += [*namer.definitions(), f"  {', '.join(names)} = scan of {texts} by {combined} along {over}"]
    for store in nest.stores:
        value = namer.text(store.value)
        place = format_index(store.index) + namer.indirect(store)
        sign = "+=" if store.adds else "="
        lines += [*namer.definitions(), f"  {store.buffer}[{place}] {sign} {value}"]
    return "\n".join(lines)


def print_call(call: LibraryCall) -> str:
    """A library call as one line, with the buffers that it mutates or holds, and "random" if it draws numbers."""
    args = [_arg(arg) for arg in call.args] + [f"{name}={_arg(arg)}" for name, arg in call.kwargs]
    outputs = ", ".join(name or "_" for name in call.outputs)
    line = f"{call.name}: {outputs + ' = ' if outputs else ''}{call.target}({', '.join(args)})"
    if call.mutates:
        line += f" mutates {', '.join(call.mutates)}"
    if call.holds:
        line += f" holds {', '.join(call.holds)}"
    return line + (" random" if call.random else "")


def print_expr(expr: Expr) -> str:
    """One scalar expression, without names for repeated subexpressions."""
    return _Namer(None).text(expr)


class _Namer:
    """Prints expressions; a call that occurs more than once in a nest is given a name before its first use."""

    def __init__(self, nest: LoopNest | None) -> None:
        self.ids: dict[object, int] = {}
        self.identity: dict[int, int] = {}
        self.uses: Counter[int] = Counter()
        self.names: dict[int, str] = {}
        self.pending: list[str] = []
        roots = [] if nest is None else operands(nest) + stored(nest)
        for root in roots:
            self.uses[self.number(root)] += 1

    def number(self, expr: Expr) -> int:
        """The value number of an expression: equal expressions have equal numbers. Counts the uses of operands."""
        if id(expr) in self.identity:
            return self.identity[id(expr)]
        children = [self.number(child) for child in _children(expr)]
        key: object = (expr.function, expr.dtype, *children) if isinstance(expr, Call) else _atom_key(expr, children)
        fresh = key not in self.ids
        number = self.ids.setdefault(key, len(self.ids))
        if fresh:
            self.uses.update(children)
        self.identity[id(expr)] = number
        return number

    def indirect(self, access: Load | Store) -> str:
        """The values of an access's indirect indices, as they stand behind its index."""
        return "".join(f"; t{k} = {self.text(e)}" for k, e in enumerate(access.indirect))

    def text(self, expr: Expr, nested: bool = False) -> str:
        if not isinstance(expr, Call):
            return self.atom(expr)
        number = self.number(expr)
        if number in self.names:
            return self.names[number]
        if self.uses[number] < 2:
            return self.call(expr, nested)
        text = self.call(expr, nested=False)
        self.names[number] = f"v{len(self.names)}"
        self.pending.append(f"  {self.names[number]} = {text}")
        return self.names[number]

    def definitions(self) -> list[str]:
        """The definitions of the names given since the last call."""
        lines, self.pending = self.pending, []
        return lines

    def call(self, call: Call, nested: bool) -> str:
        if call.function == "cast":
            return f"{call.dtype}({self.text(call.args[0])})"
        if call.function in _INFIX:
            left, right = (self.text(arg, nested=True) for arg in call.args)
            text = f"{left} {_INFIX[call.function]} {right}"
            return f"({text})" if nested else text
        return f"{call.function}({', '.join(self.text(arg) for arg in call.args)})"

    def atom(self, expr: Const | Load | Iota | Result | Dot) -> str:
        match expr:
            case Const():
                return _const(expr)
            case Iota():
                suffix = "" if expr.dtype == "int64" else f":{expr.dtype}"
                return f"index({format_index(expr.index)}){suffix}"
            case Result():
                return f"s{expr.k}"
            case Load():
                text = f"{expr.buffer}[{format_index(expr.index)}{self.indirect(expr)}]"
                if expr.other is None:
                    return text
                guards = " and ".join(
                    f"{guard.lower} <= {format_index(guard.expr)} < {guard.upper}" for guard in expr.guards
                )
                return f"({text} if {guards} else {_const(expr.other)})"
            case Dot():
                return f"dot({self.atom(expr.left)}, {self.atom(expr.right)} for r0 < {expr.terms})"
            case _:
                assert_never(expr)


def _children(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, Call):
        yield from expr.args
    elif isinstance(expr, Load):
        yield from expr.indirect
    elif isinstance(expr, Dot):
        yield from (expr.left, expr.right)


def _atom_key(expr: Const | Load | Iota | Result | Dot, children: list[int]) -> object:
    if isinstance(expr, Const):
        return _const(expr)
    if isinstance(expr, Load):
        return (expr.buffer, expr.index, expr.guards, expr.other and _const(expr.other), *children)
    return expr


def _buffer(buffer: Buffer) -> str:
    layout = f"[{', '.join(map(str, buffer.shape))}]"
    if tuple(buffer.stride) != row_major(buffer.shape):
        layout += f" strides ({', '.join(map(str, buffer.stride))})"
    device = "" if buffer.device == "cpu" else f" on {buffer.device}"
    return f"{buffer.kind} {buffer.name}: {buffer.dtype}{layout}{device}"


def _view(view: View) -> str:
    text = f"{view.buffer}[{', '.join(map(str, view.shape))}]"
    if tuple(view.stride) != row_major(view.shape):
        text += f" strides ({', '.join(map(str, view.stride))})"
    return text if view.offset == 0 else f"{text} at {view.offset}"


def _arg(arg: Arg) -> str:
    match arg:
        case View():
            return _view(arg)
        case TorchValue():
            return arg.text
        case tuple():
            return f"[{', '.join(map(_arg, arg))}]"
        case _:
            return repr(arg)


def _const(const: Const) -> str:
    suffix = "" if _LITERAL_DTYPE[type(const.value)] == const.dtype else f":{const.dtype}"
    return f"{const.value!r}{suffix}"
