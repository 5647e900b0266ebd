"""The origin of an FX node in the user's model, from its metadata."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from torch import fx

from optfuse.compiler.ir.nodes import Origin

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)')
_INSTALLED = re.compile(r"^.*[/\\](?:site|dist)-packages[/\\]")
_TORCH = re.compile(r"^torch[/\\]")
_TOP_MODULE = re.compile(r"^L\[['\"]self['\"]\]\.?")
#: What autograd appends to the last line of a trace, without a line break.
_REMARK = re.compile(r"Gradient addition node due to .*$")


def origin_of(node: fx.Node) -> Origin:
    """Node name, overload, path of the innermost module, and "file:line, code" of the innermost frame of the user.

    A node of a backward graph has the module and the line of the forward op that it belongs to. Files of installed
    packages are named from the package on, others below the present folder from there.
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    module = next((_module_path(entry) for entry in reversed(list(stack.values()))), "")
    return Origin(node.name, target_name(node.target), module, source_line(node.meta.get("stack_trace") or ""))


def target_name(target: object) -> str:
    """The name of an overload ("aten.add.Tensor"), the qualified name of any other callable, a string as it is."""
    if isinstance(target, str):
        return target
    if hasattr(target, "namespace"):
        return str(target)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"


@lru_cache(maxsize=4096)
def source_line(trace: str) -> str:
    """The innermost frame of a stack trace outside of torch (the innermost of all where there is none outside)."""
    frames = [(_short(file), line, code) for file, line, code in _FRAME.findall(trace)]
    user = [frame for frame in frames if not _TORCH.match(frame[0])] or frames
    if not user:
        return ""
    file, line, code = user[-1]
    return f"{file}:{line}, {_REMARK.sub('', code).strip()}"


def _short(file: str) -> str:
    """A file's path relative to the folder of installed packages, or to the current folder."""
    if _INSTALLED.match(file):
        return _INSTALLED.sub("", file)
    path, here = Path(file), Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else file


def _module_path(entry: object) -> str:
    """An entry of nn_module_stack is (path, type). Paths of torch.compile read "L['self'].layers.0": keep the path."""
    path = entry[0] if isinstance(entry, tuple) else entry
    return _TOP_MODULE.sub("", str(path))
