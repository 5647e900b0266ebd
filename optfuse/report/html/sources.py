"""The parts of an emitted module that belong to each kernel of its schedule."""

from __future__ import annotations

import re

_FUNCTION = re.compile(r"^@triton\.jit\ndef (\w+)\(", re.MULTILINE)
_LAUNCH = re.compile(r"^    launch\(\s*(\w+),", re.MULTILINE)


def module_steps(source: str) -> tuple[str, ...]:
    """The source of each kernel of a schedule, in order: a Triton function, or the lines of a library call.

    Relies on how ``compiler.codegen.module`` writes: top-level parts are two blank lines apart, and steps of the host
    program are paragraphs that begin with a comment.
    """
    functions: dict[str, str] = {}
    host = ""
    for part in source.split("\n\n\n"):
        if found := _FUNCTION.search(part):
            functions[found[1]] = part.strip("\n")
        elif part.startswith("def call(inputs"):
            host = part
    steps: list[str] = []
    for paragraph in host.split("\n\n"):
        if paragraph.startswith("    # "):
            launched = _LAUNCH.search(paragraph)
            steps.append(functions.get(launched[1], "") if launched else _dedent(paragraph))
    return tuple(steps)


def _dedent(text: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in text.strip("\n").split("\n"))
