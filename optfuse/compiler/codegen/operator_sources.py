"""Library calls of our own (``compiler.ops``): an emitted module carries their text, so that it stands alone."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

from optfuse.compiler.codegen.python_text import with_callees

#: The files of ``optfuse/compiler/ops`` that hold functions.
_FILES = (
    "attention.py",
    "attention_memory.py",
    "attention_sums.py",
    "convolution.py",
    "space_to_depth.py",
    "matmul.py",
    "max_pool.py",
    "sum_rows.py",
)

#: The function of those files that an operator of ours calls.
CARRIED: Mapping[str, str] = {
    "optfuse.addmm_activation.default": "addmm_activation",
    "optfuse.attention.default": "attention",
    "optfuse.attention_dropout.default": "attention",
    "optfuse.attention_backward.default": "attention_backward",
    "optfuse.convolution_relu.default": "convolution_relu",
    "optfuse.from_depth.default": "from_depth",
    "optfuse.max_pool.default": "max_pool",
    "optfuse.max_pool_backward.default": "max_pool_backward",
    "optfuse.norm_shift.default": "norm_shift",
    "optfuse.norm_weight.default": "norm_weight",
    "optfuse.padded_rows.default": "attention_padded_rows",
    "optfuse.to_depth.default": "to_depth",
    "optfuse.sum_rows.default": "sum_rows",
}


def callee(target: str) -> str:
    """What an emitted module calls for an operator: a function that it carries, or the operator itself.

    ``aten`` is short for ``torch.ops.aten`` there.
    """
    return CARRIED.get(target, target if target.startswith("aten.") else f"torch.ops.{target}")


def carried(targets: Iterable[str]) -> dict[str, str]:
    """The definitions that a module must carry to call these operators: name to text, in their order."""
    return with_callees(_definitions(), [CARRIED[target] for target in targets if target in CARRIED])


@cache
def _definitions() -> dict[str, str]:
    """Functions and constants of the files; their imports are those of every emitted module."""
    found: dict[str, str] = {}
    for file in _FILES:
        text = files("optfuse.compiler.ops").joinpath(file).read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in ast.parse(text).body:
            match node:
                case ast.FunctionDef(name=name):
                    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                case ast.AnnAssign(target=ast.Name(id=name)):
                    first = node.lineno - 1  # the comment above says what it is
                case _:
                    continue
            found[name] = "\n".join(lines[first - 1 : node.end_lineno]) + "\n"
    return found
