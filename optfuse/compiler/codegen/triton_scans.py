"""Write scans along r: in one step if a tile holds all of r, else block by block, with a carry from block to block.

Lanes beyond the end of r come after all points, so whatever they hold reaches none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from optfuse.compiler.codegen.kernel_writer import Writer
from optfuse.compiler.codegen.triton_expressions import Value, call, const, tensor, triton_type
from optfuse.compiler.codegen.triton_reductions import OUTER, TILE, tile_of
from optfuse.compiler.ir.dtypes import BITS
from optfuse.compiler.ir.nodes import Call, Const, Expr, Result, Scan
from optfuse.compiler.ir.traversal import subexpressions


def combine_function(name: str, scan: Scan) -> str:
    """The text of the Triton function that combines what a scan has so far with what follows."""
    return _Combine(scan).text(name)


class Running:
    """A scan in a kernel: ``whole`` of a tile that holds all of r, or ``block`` by block inside a loop.

    ``function`` is the name of its combine function, ``name`` the stem of its variables' names.
    """

    def __init__(self, writer: Writer, function: str, name: str) -> None:
        self.writer = writer
        self.function = function
        self.name = name
        self.carries: list[str] = []

    def whole(self, operands: Sequence[Value]) -> tuple[Value, ...]:
        """The partial results at all points of the tile, from those of its start on."""
        tiles = [tile_of(operand, TILE) for operand in operands]
        if len(tiles) == 1:
            text = f"tl.associative_scan({tiles[0].text}, 1, {self.function})"
            return (self.writer.name(Value(text, tiles[0].dtype, TILE), f"{self.name}_scan"),)
        return self._several(f"tl.associative_scan(({_listed(tiles)}), 1, {self.function})", tiles, "scan")

    def block(self, operands: Sequence[Value]) -> tuple[Value, ...]:
        """The partial results at the points of a block, those of earlier blocks included."""
        inside = self.whole(operands)
        if not self.carries:
            self.carries = [self._start(f"{self.name}_carry", value.dtype) for value in inside]
        given = [*(Value(carry, value.dtype) for carry, value in zip(self.carries, inside, strict=True)), *inside]
        joined = f"{self.function}({_listed(given)})"
        if len(inside) == 1:
            both: tuple[Value, ...] = (Value(joined, inside[0].dtype, TILE),)
        else:
            both = self._several(joined, inside, "joined")
        results: list[Value] = []
        for first, later, carry in zip(inside, both, self.carries, strict=True):
            chosen = f"tl.where(r_start == 0, {first.text}, {later.text})"
            result = self.writer.name(Value(chosen, first.dtype, TILE), f"{self.name}_running")
            self.writer.statement(f"{carry} = last_of({result.text})", TILE)
            results.append(result)
        return tuple(results)

    def _start(self, hint: str, dtype: str) -> str:
        """The name of what the blocks before came to, defined before the loop."""
        name = self.writer.new_name(hint, self.writer.outer)
        self.writer.define_outer(name, f"tl.zeros((XBLOCK, 1), {triton_type(dtype)})", OUTER, BITS[dtype])
        return name

    def _several(self, text: str, like: Sequence[Value], hint: str) -> tuple[Value, ...]:
        scope = self.writer.scope(TILE)
        names = [self.writer.new_name(f"{self.name}_{hint}", scope) for _ in like]
        self.writer.statement(f"{', '.join(names)} = {text}", TILE)
        return tuple(Value(name, value.dtype, TILE) for name, value in zip(names, like, strict=True))


class _Combine:
    """The body of a combine function; what is used more than once gets a name."""

    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self.count = len(scan.operands)
        parts = set(subexpressions(scan.combine))
        self.uses = Counter(arg for part in parts if isinstance(part, Call) for arg in part.args)
        self.named: dict[Expr, Value] = {}
        self.lines: list[str] = []

    def text(self, name: str) -> str:
        results = [tensor(self.value(expr)).text for expr in self.scan.combine]
        given = [f"{side}{k}" for side in "ab" for k in range(self.count)]
        lines = [f"    {line}" for line in (*self.lines, f"return {', '.join(results)}")]
        return "\n".join(["@triton.jit", f"def {name}({', '.join(given)}):", *lines, "", ""])

    def value(self, expr: Expr) -> Value:
        """An expression of what comes before (a0, a1, ...) and what follows (b0, b1, ...)."""
        match expr:
            case Const():
                return const(expr)
            case Result():
                side, k = divmod(expr.k, self.count)
                return Value(f"{'ab'[side]}{k}", expr.dtype)
            case Call():
                if expr not in self.named:
                    value = call(expr.function, [self.value(arg) for arg in expr.args], expr.dtype)
                    self.named[expr] = self._short(value) if self.uses[expr] > 1 else value
                return self.named[expr]
            case _:
                raise AssertionError("a scan combines results alone")

    def _short(self, value: Value) -> Value:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {value.text}")
        return Value(name, value.dtype)


def _listed(values: Sequence[Value]) -> str:
    return ", ".join(value.text for value in values)
