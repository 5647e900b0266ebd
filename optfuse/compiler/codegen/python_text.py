"""Print Python source: variables, literals, and calls wrapped to a readable width."""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Iterable, Mapping, Sequence

WIDTH = 112
INDENT = "    "


def variables(names: Iterable[str], reserved: Iterable[str] = ()) -> dict[str, str]:
    """A distinct variable for every name: the name itself (names of the loop IR are identifiers) unless it is taken."""
    taken = set(dir(builtins)) | {"_", *reserved}
    chosen: dict[str, str] = {}
    for name in names:
        candidate = name
        while candidate in taken:
            candidate += "_"
        taken.add(candidate)
        chosen[name] = candidate
    return chosen


def literal(value: bool | int | float | str | None) -> str:
    """A Python expression for a scalar: its repr, or a call of float for inf and nan."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def docstring(text: str) -> str:
    """Text escaped to stand between triple quotes, provided that no quote follows it."""
    return text.replace("\\", "\\\\").replace('"""', "'''")


def comment(text: str, indent: str = INDENT) -> str:
    """A comment of one line; unprintable characters become blanks."""
    return f"{indent}# {''.join(c if c.isprintable() else ' ' for c in text)}"


def tuple_text(items: Sequence[object]) -> str:
    """A tuple literal: "(2, 3)", "(2,)", "()"."""
    return f"({', '.join(map(str, items))}{',' if len(items) == 1 else ''})"


def call_text(head: str, arguments: Sequence[str], *, indent: str = INDENT, tail: str = ")") -> list[str]:
    """The lines of ``head + arguments + tail``: one line if it fits, else the arguments wrapped below the head.

    ``head`` ends with the opening bracket.
    """
    line = f"{indent}{head}{', '.join(arguments)}{tail}"
    if len(line) <= WIDTH or not arguments:
        return [line]
    lines, current = [f"{indent}{head}"], ""
    for argument in arguments:
        grown = f"{current} {argument}," if current else f"{indent}{INDENT}{argument},"
        if current and len(grown) > WIDTH:
            lines.append(current)
            grown = f"{indent}{INDENT}{argument},"
        current = grown
    return [*lines, current, f"{indent}{tail.removeprefix(',')}"]  # what is wrapped ends with a comma as it is


def with_callees(definitions: Mapping[str, str], texts: Iterable[str]) -> dict[str, str]:
    """The definitions (name to text) that ``texts`` use, directly or through each other, in their order.

    An attribute of such a name (``tl.maximum``) is no use of it.
    """
    used: set[str] = set()
    waiting = list(texts)
    while waiting:
        fresh = (set(re.findall(r"(?<![.\w])\w+", waiting.pop())) & definitions.keys()) - used
        used |= fresh
        waiting += [definitions[name] for name in fresh]
    return {name: text for name, text in definitions.items() if name in used}
