"""An emitted module of a range of sizes: kernels are loaded and compiled once, the rest is executed for each size."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType, ModuleType
from typing import Any

from optfuse.compiler.ir.sizes import is_data_size
from optfuse.runtime.environment import mode
from optfuse.runtime.loader import load_source
from optfuse.runtime.parallel_compile import compile_in_parallel

#: Triton compiles a kernel anew for integers that are multiples of this, or no longer.
DIVISOR = 16


@dataclass(slots=True)
class _Parts:
    """A module at its hints, the names that are the same at every size, and the code of the rest."""

    module: ModuleType
    shared: dict[str, Any]
    code: CodeType


@dataclass
class SizedModule:
    """A module per size, made when the size is first needed.

    Args:
        source: The text of the module, at some sizes of its range.
        names: The names of its sizes.
    """

    source: str
    names: frozenset[str]
    _compiled: set[tuple[bool, ...]] = field(default_factory=set)

    def at(self, sizes: Mapping[str, int]) -> ModuleType:
        """The module with other numbers for its sizes, which must be in the range that it is valid for."""
        parts = self._parts
        made = ModuleType(parts.module.__name__, parts.module.__doc__)
        made.__dict__.update(parts.shared)
        made.__dict__.update(sizes)
        exec(parts.code, made.__dict__)
        made.__dict__["COMPILED"] = parts.module.COMPILED
        facts = tuple(size % DIVISOR == 0 for name, size in sizes.items() if not is_data_size(name))
        if mode() == "compile" and facts not in self._compiled:
            self._compiled.add(facts)
            compile_in_parallel(made.KERNELS)
        return made

    @cached_property
    def _parts(self) -> _Parts:
        module = load_source(self.source)
        tree = ast.parse(self.source)
        shared = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and _is_kernel(node)]
        tree.body = [node for node in tree.body if not _is_shared(node, {*shared, *self.names})]
        code = compile(tree, module.__file__ or module.__name__, "exec")
        return _Parts(module, {name: getattr(module, name) for name in shared}, code)


def _is_kernel(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator).startswith("triton.jit") for decorator in function.decorator_list)


def _is_shared(node: ast.stmt, names: set[str]) -> bool:
    """Whether a statement of a module defines one of these names."""
    match node:
        case ast.FunctionDef(name=name):
            return name in names
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name in names
        case _:
            return False
