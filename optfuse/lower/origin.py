"""Where an FX node comes from, as far as its metadata says."""

from __future__ import annotations

import re
from functools import lru_cache

from torch import fx

from optfuse.ir.nodes import Origin

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)')
_LIBRARY = re.compile(r"[/\\](?:torch|torchvision)[/\\](?!.*[/\\]site-packages[/\\](?!torch))")


def origin_of(node: fx.Node) -> Origin:
    """Node name, overload, path of the innermost module, and "file:line, code" of the innermost frame of the user."""
    stack = node.meta.get("nn_module_stack") or {}
    module = next((_module_path(entry) for entry in reversed(list(stack.values()))), "")
    trace = node.meta.get("stack_trace") or ""
    return Origin(node.name, target_name(node.target), module, source_line(trace))


def target_name(target: object) -> str:
    """The name of an overload ("aten.add.Tensor"), the qualified name of any other callable, a string as it is."""
    if isinstance(target, str):
        return target
    namespace = getattr(target, "namespace", None)
    if namespace is not None and hasattr(target, "_schema"):
        return str(target)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"


@lru_cache(maxsize=4096)
def source_line(trace: str) -> str:
    """The innermost frame of a stack trace outside torch (the innermost of all where there is none outside)."""
    frames = _FRAME.findall(trace)
    user = [frame for frame in frames if not _LIBRARY.search(frame[0])] or frames
    if not user:
        return ""
    file, line, code = user[-1]
    return f"{file}:{line}, {code.strip()}"


def _module_path(entry: object) -> str:
    """An entry of nn_module_stack is (path, type). Paths of torch.compile read "L['self'].layers.0": keep the path."""
    path = entry[0] if isinstance(entry, tuple) else entry
    return re.sub(r"^L\[['\"]self['\"]\]\.?", "", str(path))
