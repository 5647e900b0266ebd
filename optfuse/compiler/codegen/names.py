"""Names of a kernel's variables: of buffers as identifiers, and those that no value may take."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable, Sequence

from optfuse.compiler.codegen.indexing import Axis
from optfuse.compiler.codegen.prelude import PRELUDE_NAMES

_PYTHON = frozenset(keyword.kwlist) | frozenset(dir(builtins))


def identifier(name: str) -> str:
    """A buffer's name as a Python identifier."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    return text if text and not text[0].isdigit() else f"b_{text}"


def reserved_names(axes: Sequence[Axis], pointers: Iterable[str]) -> set[str]:
    """Names that no value may take."""
    own = {name for axis in axes for name in (axis.index, axis.mask, axis.constant, f"{axis.name}_start")}
    return own | set(pointers) | PRELUDE_NAMES | _PYTHON | {"tl", "triton", "libdevice", "first", "last"}
