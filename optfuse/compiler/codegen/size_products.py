"""Whether the sizes that a kernel computes with fit into 32 bits, as its arguments do."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

from optfuse.compiler.codegen.index_arithmetic import INT32_END
from optfuse.compiler.ir.nodes import Buffer
from optfuse.compiler.ir.sizes import Size

_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def need_64_bits(lines: Sequence[str], names: Sequence[str], buffers: Iterable[Buffer]) -> bool:
    """Whether a formula of sizes in a kernel's statements, or a part of one, may need 64 bits.

    A part may be far larger than the whole: ``(s*s + 9) // 10`` is the size of an axis. ``names`` are the sizes that
    the statements use; the shapes and strides of ``buffers`` say how large they are. The answer becomes a guard of the
    range of sizes. It is True where no buffer has a size that changes: then nothing says how large a number is.
    """
    if not names:
        return False
    known = (size for buffer in buffers for size in (*buffer.shape, *buffer.stride))
    decisions = next((size.decisions for size in known if isinstance(size, Size)), None)
    if decisions is None:
        return True
    found: list[int] = []
    sizes = {name: Size.symbol(name, decisions) for name in names}
    _value(ast.parse("def kernel():\n" + "\n".join(lines)), sizes, found)
    return any(value >= INT32_END for value in dict.fromkeys(found))


def _value(node: ast.AST, sizes: Mapping[str, int], found: list[int]) -> int | None:
    """A formula's value, None of what is no formula of sizes alone; the values of all that are go to ``found``."""
    match node:
        case ast.Name(name):
            return sizes.get(name)
        case ast.Constant(int(number)):
            return number
        case ast.BinOp(left, kind, right):
            made = _computed(kind, _value(left, sizes, found), _value(right, sizes, found))
            if made is not None:
                found.append(made)
            return made
        case _:
            for child in ast.iter_child_nodes(node):
                _value(child, sizes, found)
            return None


def _computed(kind: ast.operator, left: int | None, right: int | None) -> int | None:
    """The result; None where an operand is none, or for another operator."""
    compute = _OPERATORS.get(type(kind))
    return None if compute is None or left is None or right is None else compute(left, right)
