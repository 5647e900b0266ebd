"""The text of a kernel while it is written: scopes of named values, the comments between them, and register pressure.

A kernel has an outer scope and, while an axis is walked block by block, a body scope. A value goes where its axes say:
what does not vary along that axis is computed once, before the loop. The same text in the same scope is computed once.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from optfuse.compiler.codegen.index_arithmetic import Axis
from optfuse.compiler.codegen.prelude import PRELUDE_NAMES
from optfuse.compiler.codegen.python_text import INDENT, WIDTH, comment
from optfuse.compiler.codegen.triton_expressions import BITS, Value

_WORD = re.compile(r"[A-Za-z_]\w*")
_PYTHON = frozenset(keyword.kwlist) | frozenset(dir(builtins))


@dataclass(frozen=True, slots=True)
class Note:
    """Where a statement comes from: the user's line, and the node of the graph."""

    place: str = ""
    node: str = ""


NOWHERE = Note()


@dataclass(frozen=True, slots=True)
class Line:
    """A statement. ``target`` is the name that it defines; ``axes`` and ``bits`` say how large the value is."""

    text: str
    target: str = ""
    axes: frozenset[str] = frozenset()
    bits: int = 32
    note: Note = NOWHERE
    indent: int = 1


class Scope:
    """Statements in order, and the values that they name."""

    def __init__(self, indent: int = 1) -> None:
        self.indent = indent
        self.lines: list[Line] = []
        self.named: dict[str, Value] = {}
        self.names: set[str] = set()


class Writer:
    """Statements of a kernel, in an outer scope and, inside of a loop, a body scope for what varies along its axis."""

    def __init__(self, reserved: Iterable[str]) -> None:
        self.taken = set(reserved)
        self.outer = Scope()
        self.body = self.outer
        self.note = NOWHERE
        #: names that texts had in earlier bodies: a value that is computed again has its name again
        self.remembered: dict[str, str] = {}

    def open_body(self) -> None:
        """Start the body of a loop over r."""
        self.body = Scope(indent=2)

    def close_body(self, header: str) -> None:
        """Put the body, under its loop's header, behind what the outer scope has by now."""
        body, self.body = self.body, self.outer
        self.outer.lines.append(Line(header))
        self.outer.lines += body.lines
        self.taken -= body.names

    def scope(self, axes: frozenset[str]) -> Scope:
        """Where a value that varies along ``axes`` is computed."""
        return self.body if "r" in axes else self.outer

    def name(self, value: Value, hint: str) -> Value:
        """The value under a name: an old one where the same text has one, else a new one like ``hint``."""
        if value.text.isidentifier() or value.literal:
            return value
        scope = self.scope(value.axes)
        for known in (scope, self.outer):
            if value.text in known.named and known.named[value.text].dtype == value.dtype:
                return known.named[value.text]
        target = self.new_name(hint, scope, value.text)
        named = Value(target, value.dtype, value.axes)
        scope.named[value.text] = named
        scope.lines.append(
            Line(f"{target} = {value.text}", target, value.axes, BITS[value.dtype], self.note, scope.indent)
        )
        return named

    def new_name(self, hint: str, scope: Scope, text: str = "") -> str:
        """A free name: the one that ``text`` had before, ``hint``, or ``hint`` with a number."""
        before = self.remembered.get(text)
        target = before if before is not None and before not in self.taken else hint
        number = 1
        while target in self.taken:
            target, number = f"{hint}_{number}", number + 1
        self.taken.add(target)
        if scope is not self.outer:
            scope.names.add(target)
            if text:
                self.remembered[text] = target
        return target

    def define_outer(self, target: str, text: str, axes: frozenset[str], bits: int) -> None:
        """Give a name of the outer scope a value that may vary along any axes: an accumulator."""
        self.outer.lines.append(Line(f"{target} = {text}", target, axes, bits, self.note, self.outer.indent))

    def sources(self, text: str) -> set[str]:
        """The names of the open body that a text follows from."""
        found: set[str] = set()
        lines = {line.target: line.text for line in self.body.lines if line.target}
        stack = [text]
        while stack:
            for word in _WORD.findall(stack.pop()):
                if word in lines and word not in found:
                    found.add(word)
                    stack.append(lines[word])
        return found

    def statement(self, text: str, axes: frozenset[str] = frozenset(), *, note: Note | None = None) -> None:
        """A statement that names no new value, in the scope of ``axes``."""
        scope = self.scope(axes)
        note = self.note if note is None else note
        scope.lines.append(Line(text, axes=axes, note=note, indent=scope.indent))


def render(lines: Sequence[Line]) -> list[str]:
    """Source lines, with a comment wherever the node changes, and another where the user's line does."""
    text: list[str] = []
    last = NOWHERE
    for line in lines:
        margin = INDENT * line.indent
        if line.note.place and line.note.place != last.place:
            text.append(comment(line.note.place, margin)[:WIDTH].rstrip())
        if line.note.node and line.note != last:
            text.append(comment(line.note.node, margin)[:WIDTH].rstrip())
        if line.note != NOWHERE or line.text.startswith("for "):
            last = line.note
        text.append(margin + line.text)
    return text


def pressure(lines: Sequence[Line], tile: frozenset[str]) -> float:
    """How many 32-bit values a thread holds at once for each of its elements of the tile, if nothing is reordered."""
    defined: dict[str, tuple[int, float]] = {}
    last: dict[str, int] = {}
    for k, line in enumerate(lines):
        for word in _WORD.findall(line.text):
            if word in defined:
                last[word] = k
        if line.target and line.axes >= tile:
            defined.setdefault(line.target, (k, max(line.bits, 16) / 32))
    change = [0.0] * (len(lines) + 1)
    for name, (first, weight) in defined.items():
        change[first] += weight
        change[last.get(name, first) + 1] -= weight
    return max(accumulate(change))


def identifier(name: str) -> str:
    """A buffer's name as a Python identifier."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    return text if text and not text[0].isdigit() else f"b_{text}"


def reserved_names(axes: Sequence[Axis], pointers: Iterable[str]) -> set[str]:
    """Names that no value may take."""
    own = {name for axis in axes for name in (axis.index, axis.mask, axis.constant, f"{axis.name}_start")}
    return own | set(pointers) | PRELUDE_NAMES | _PYTHON | {"tl", "triton", "libdevice", "first", "last"}
