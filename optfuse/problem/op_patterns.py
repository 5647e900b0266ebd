"""Find ops by pattern: an op's name, its graph node, the path of its module, or a glob of one of these."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase

from optfuse.errors import RuleError
from optfuse.problem.instance import Instance, Op
from optfuse.problem.legality import listed

#: The text that each wildcard of a module path matched, such as ("3",) for layer 3.
Parts = tuple[str, ...]

WILDCARDS = "*?["
NEAREST = 3


def find_ops(instance: Instance, pattern: str) -> dict[int, Parts]:
    """The ops that a pattern matches, ascending, each with the text that the wildcards of a module path matched.

    The first of these kinds with a match is taken: op name, node, module, then globs of the three in this order. A
    module's path names all ops in it. ``*``, ``?`` and ``[...]`` stand for characters; in a module path they do not
    reach beyond a dot.
    """
    for attempt in (_exactly(_name), _exactly(_node), _module_path, _globbed(_name), _globbed(_node), _module_glob):
        found = {number: parts for number, op in enumerate(instance.ops) if (parts := attempt(op, pattern)) is not None}
        if found:
            return found
    return {}


def one_op(instance: Instance, pattern: str) -> int:
    """The single op that a pattern matches.

    Raises:
        RuleError: When it names none, with the nearest names, or several, with those.
    """
    found = list(find_ops(instance, pattern))
    if not found:
        raise RuleError(no_match(instance, pattern))
    if len(found) > 1:
        raise RuleError(f"{pattern!r} matches {len(found)} ops ({listed(instance, found)}); name one of them")
    return found[0]


def no_match(instance: Instance, pattern: str) -> str:
    """A message that a pattern matches nothing, with the nearest names."""
    near = nearest(known_names(instance), pattern)
    return f"{pattern!r} matches no op of {instance.name!r}; the nearest names are {', '.join(map(repr, near))}"


def nearest(names: Iterable[str], pattern: str) -> list[str]:
    """The names most similar to a pattern, the best first."""
    return difflib.get_close_matches(pattern, list(names), n=NEAREST, cutoff=0.0)


def known_names(instance: Instance) -> list[str]:
    """All exact patterns: names, nodes, and module paths with their outer modules."""
    known: dict[str, None] = {}
    for op in instance.ops:
        known[op.name] = None
        if op.node:
            known[op.node] = None
    for op in instance.ops:
        known.update(dict.fromkeys(_enclosing(op.module)))
    return list(known)


def _enclosing(module: str) -> Iterator[str]:
    parts = module.split(".") if module else []
    return (".".join(parts[: k + 1]) for k in range(len(parts)))


def _name(op: Op) -> str:
    return op.name


def _node(op: Op) -> str:
    return op.node


def _exactly(text: Callable[[Op], str]) -> Callable[[Op, str], Parts | None]:
    return lambda op, pattern: () if text(op) == pattern else None


def _globbed(text: Callable[[Op], str]) -> Callable[[Op, str], Parts | None]:
    return lambda op, pattern: () if text(op) and fnmatchcase(text(op), pattern) else None


def _module_path(op: Op, pattern: str) -> Parts | None:
    return () if op.module == pattern or op.module.startswith(pattern + ".") else None


def _module_glob(op: Op, pattern: str) -> Parts | None:
    """A glob without a dot names a set of modules at once; one with dots, a module at a time."""
    wanted, found = pattern.split("."), op.module.split(".")
    if not op.module or len(found) < len(wanted):
        return None
    if not all(fnmatchcase(part, glob) for part, glob in zip(found, wanted, strict=False)):
        return None
    if len(wanted) == 1:
        return ()
    return tuple(part for part, glob in zip(found, wanted, strict=False) if any(c in glob for c in WILDCARDS))
