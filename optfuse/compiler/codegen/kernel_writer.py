"""The statements of a kernel under construction: scopes, names, comments, and an estimate of register pressure.

A kernel has an outer scope and, inside a loop over r, a body scope. The axes of a value decide on its scope: a value
that does not vary along r is computed once, before the loop. Equal text in one scope is computed once.
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
from optfuse.compiler.codegen.triton_expressions import Value
from optfuse.compiler.ir.dtypes import BITS

_WORD = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_PYTHON = frozenset(keyword.kwlist) | frozenset(dir(builtins))


@dataclass(frozen=True, slots=True)
class Note:
    """The origin of a statement: its place in the user's model, and the node of the graph."""

    place: str = ""
    node: str = ""


NOWHERE = Note()


@dataclass(frozen=True, slots=True)
class Line:
    """A statement. ``target`` is the name that it defines, ``axes`` and ``bits`` give the size of the value.

    ``choice``: of a value that is one of two for a whole program, the condition and the texts of both.
    """

    text: str
    target: str = ""
    axes: frozenset[str] = frozenset()
    bits: int = 32
    note: Note = NOWHERE
    indent: int = 1
    choice: tuple[str, str, str] | None = None


class Scope:
    """Statements in order, and the named values among them."""

    def __init__(self, indent: int = 1) -> None:
        self.indent = indent
        self.lines: list[Line] = []
        self.named: dict[str, Value] = {}
        self.names: set[str] = set()


class Writer:
    """The statements of a kernel, in an outer scope and, inside a loop over r, a body scope for what varies along r."""

    def __init__(self, reserved: Iterable[str]) -> None:
        self.taken = set(reserved)
        self.outer = Scope()
        self.body = self.outer
        self.note = NOWHERE
        #: text to its name in earlier loop bodies: a recomputed value gets the same name
        self.remembered: dict[str, str] = {}

    def open_body(self) -> None:
        """Start the body of a loop over r."""
        self.body = Scope(indent=2)

    def close_body(self, header: str) -> None:
        """End the loop: append its header and body to the outer scope."""
        body, self.body = self.body, self.outer
        self.outer.lines.append(Line(header))
        self.outer.lines += body.lines
        self.taken -= body.names

    def scope(self, axes: frozenset[str]) -> Scope:
        """The scope of a value that varies along ``axes``."""
        return self.body if "r" in axes else self.outer

    def name(self, value: Value, hint: str, choice: tuple[str, str, str] | None = None) -> Value:
        """The value under a name: the existing one of the same text, else a new one like ``hint``."""
        if value.simple:
            return value
        scope = self.scope(value.axes)
        for known in (scope, self.outer):
            if value.text in known.named and known.named[value.text].dtype == value.dtype:
                return known.named[value.text]
        target = self.new_name(hint, scope, value.text)
        named = Value(target, value.dtype, value.axes)
        scope.named[value.text] = named
        text, bits = f"{target} = {value.text}", BITS[value.dtype]
        scope.lines.append(Line(text, target, value.axes, bits, self.note, scope.indent, choice))
        return named

    def new_name(self, hint: str, scope: Scope, text: str = "") -> str:
        """A free name: the one of ``text`` in an earlier body, ``hint``, or ``hint`` with a number."""
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
        """Define a name of the outer scope although its value varies along r: an accumulator."""
        self.outer.lines.append(Line(f"{target} = {text}", target, axes, bits, self.note, self.outer.indent))

    def sources(self, text: str) -> set[str]:
        """The names of the open body on which a text depends."""
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
        """Append a statement that defines no name, in the scope of ``axes``."""
        scope = self.scope(axes)
        note = self.note if note is None else note
        scope.lines.append(Line(text, axes=axes, note=note, indent=scope.indent))

    def statement_once(self, text: str, axes: frozenset[str] = frozenset()) -> None:
        """``statement``, unless its scope or the outer one has it already."""
        if not any(line.text == text for scope in (self.scope(axes), self.outer) for line in scope.lines):
            self.statement(text, axes)


def words(text: str) -> set[str]:
    """The names in a text."""
    return set(_WORD.findall(text))


def render(lines: Sequence[Line]) -> list[str]:
    """The source lines, with a comment wherever the node or the place in the model changes."""
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
    """The most 32-bit values that are live at once for each element of the tile, in the order of the statements."""
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
    """The names that no value of a kernel may take."""
    own = {name for axis in axes for name in (axis.index, axis.mask, axis.constant, f"{axis.name}_start")}
    return own | set(pointers) | PRELUDE_NAMES | _PYTHON | {"tl", "triton", "libdevice", "first", "last"}
