"""The source text of our own operators (``compiler.ops``): an emitted module includes what it calls of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

from optfuse.compiler.codegen.python_text import with_callees

#: The files of ``optfuse/compiler/ops`` that hold functions.
_FILES = (
    *("attention.py", "attention_cached.py", "attention_cudnn.py", "attention_memory.py", "attention_sums.py"),
    *("average_pool.py", "convolution.py", "convolution_weights.py", "depthwise_kernels.py", "depthwise.py"),
    *("groups.py", "host_numbers.py", "joint_products.py", "matmul.py", "max_pool.py", "ready_kernels.py"),
    *("space_to_depth.py", "sum_rows.py"),
)

#: By operator: the function of those files that computes it. Two operators are torch's, and their files say why a
#: function of ours calls them.
CARRIED: Mapping[str, str] = {
    **{
        f"optfuse.{name}.default": name
        for name in (
            *("addmm_activation", "attention", "attention_backward", "attention_cached", "attention_dropout"),
            *("convolution_relu", "convolution_weights", "depthwise", "depthwise_images", "depthwise_weights"),
            *("exact_bmm", "from_depth", "grouped_products", "joint_products", "max_pool", "max_pool_backward"),
            *("norm_shift", "norm_weight", "resize_groups", "stack_groups", "sum_rows", "to_depth"),
        )
    },
    "optfuse.padded_rows.default": "attention_padded_rows",
    "aten.avg_pool2d_backward.default": "average_pool_backward",
    "aten._scaled_dot_product_cudnn_attention_backward.default": "attention_backward_own_plan",
}


def callee(target: str) -> str:
    """The name by which an emitted module calls an operator: a function that it includes, or the operator itself.

    ``aten`` is short for ``torch.ops.aten`` there.
    """
    return CARRIED.get(target, target if target.startswith("aten.") else f"torch.ops.{target}")


def carried(targets: Iterable[str]) -> dict[str, str]:
    """The definitions that a module must include to call these operators: name to text, in their order."""
    return definitions(CARRIED[target] for target in targets if target in CARRIED)


def definitions(functions: Iterable[str]) -> dict[str, str]:
    """The definitions of functions of those files, and of what they call: name to text, in their order."""
    return with_callees(_definitions(), list(functions))


@cache
def _definitions() -> dict[str, str]:
    """The functions and constants of the files: name to text. Their imports are those of every emitted module."""
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
