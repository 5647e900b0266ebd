"""Choices that are the same for a whole program become branches: only the values of the chosen side are computed.

A concatenation of large parts, one part to a program, would else load and compute the values of every part. What only
one side of such a choice uses goes into its branch, as long as no statement (a store) lies between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from optfuse.compiler.codegen.kernel_writer import Line, words


def with_branches(lines: Sequence[Line]) -> list[Line]:
    """The statements with a branch for each choice of which a side has loads of its own.

    ``lines``: statements without loops, each name defined once.
    """
    for position in reversed(range(len(lines))):
        line = lines[position]
        if line.choice is None:
            continue
        sides = [_only_for(lines, position, side) for side in (1, 2)]
        if any("tl.load(" in lines[k].text for side in sides for k in side):
            return _branched(lines, position, sides)
    return list(lines)


def _branched(lines: Sequence[Line], position: int, sides: Sequence[set[int]]) -> list[Line]:
    """The statements with the choice at ``position`` as a branch, and further ones in front of it and inside."""
    line = lines[position]
    assert line.choice is not None
    condition, *values = line.choice
    before = [other for k, other in enumerate(lines[:position]) if not any(k in side for side in sides)]
    made = with_branches(before)
    for header, side, value in zip((f"if {condition}:", "else:"), sides, values, strict=True):
        inner = [*(lines[k] for k in sorted(side)), replace(line, text=f"{line.target} = {value}", choice=None)]
        made.append(replace(line, text=header, target="", choice=None))
        made += [replace(each, indent=each.indent + 1) for each in with_branches(inner)]
    return [*made, *lines[position + 1 :]]


def _only_for(lines: Sequence[Line], position: int, side: int) -> set[int]:
    """The positions of the statements that only one side of a choice uses: 1 where the condition holds, 2 where not."""
    choice = lines[position].choice
    assert choice is not None
    wanted = words(choice[side])
    taken = words(" ".join(text for k, text in enumerate(choice) if k != side))
    taken |= {word for line in lines[position + 1 :] for word in words(line.text)}
    found: set[int] = set()
    for k in reversed(range(position)):
        line = lines[k]
        if not line.target:
            break
        if line.target in wanted and line.target not in taken:
            found.add(k)
            wanted |= words(line.text)
        else:
            taken |= words(line.text)
    return found
