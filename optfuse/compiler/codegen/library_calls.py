"""Calls of ATen operators as text, and which of them can write into memory that the plan has set aside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from optfuse.compiler.codegen.python_text import literal
from optfuse.compiler.ir.nodes import Arg, LibraryCall, TorchValue, View

#: Overloads by their ``out=`` sibling that takes the same arguments and writes the one result without a copy, whatever
#: strides it has. Where the sibling is generated from the functional form (convolution, attention) nothing is gained.
OUT_VARIANTS: dict[str, str] = {
    "aten.addmm.default": "aten.addmm.out",
    "aten.addmv.default": "aten.addmv.out",
    "aten.avg_pool2d.default": "aten.avg_pool2d.out",
    "aten.avg_pool2d_backward.default": "aten.avg_pool2d_backward.grad_input",
    "aten.baddbmm.default": "aten.baddbmm.out",
    "aten.bmm.default": "aten.bmm.out",
    "aten.cat.default": "aten.cat.out",
    "aten.cumsum.default": "aten.cumsum.out",
    "aten.gather.default": "aten.gather.out",
    "aten.index.Tensor": "aten.index.Tensor_out",
    "aten.index_add.default": "aten.index_add.out",
    "aten.index_select.default": "aten.index_select.out",
    "aten.max_pool2d_with_indices_backward.default": "aten.max_pool2d_with_indices_backward.grad_input",
    "aten.mm.default": "aten.mm.out",
    "aten.scatter_add.default": "aten.scatter_add.out",
    "optfuse.addmm_activation.default": "addmm_activation",
}


#: Operators whose result is contiguous on every device.
ALWAYS_CONTIGUOUS = frozenset(
    {"aten.mm.default", "aten.addmm.default", "aten.bmm.default", "optfuse.addmm_activation.default"}
)


def takes_out(call: LibraryCall) -> bool:
    """Whether the call can write its result into planned memory. Results of other calls live outside the arena."""
    return call.target in OUT_VARIANTS and len(call.outputs) == 1 and not call.mutates


#: Overloads that torch has functions of its own for, which take a microsecond less to call.
_FUNCTIONS = {f"aten.{name}.out": f"torch.{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "addmv")}


def quickest(overload: str) -> str:
    """The function to call for an ``out=`` overload."""
    return _FUNCTIONS.get(overload, overload)


def out_call(target: str, out: str) -> tuple[str, str]:
    """The function that writes, and the keyword argument that says where."""
    sibling = OUT_VARIANTS[target]
    keyword = "grad_input" if sibling.endswith(".grad_input") else "out"
    return quickest(sibling), f"{keyword}={out}"


def arguments(call: LibraryCall, window: Callable[[View], str], device: Callable[[str], str]) -> list[str]:
    """The call's arguments as text. ``window`` and ``device`` say how a view and a device are written."""

    def text(arg: Arg) -> str:
        match arg:
            case View():
                return window(arg)
            case TorchValue(kind="device"):
                return device(arg.text)
            case TorchValue(kind="complex"):
                return f"complex({', '.join(literal(float(part)) for part in arg.text.split())})"
            case TorchValue():
                return f"torch.{arg.text.removeprefix('torch.')}"
            case tuple():
                return f"[{', '.join(map(text, arg))}]"
            case _:
                return literal(arg)

    return [text(arg) for arg in call.args] + [f"{key}={text(value)}" for key, value in call.kwargs]


#: Operators that stand for several others (ours are called as functions), none of which hands on an argument.
_FRESH = frozenset(
    {
        "aten.scaled_dot_product_attention.default",
        "optfuse.addmm_activation.default",
        "optfuse.attention.default",
        "optfuse.attention_backward.default",
        "optfuse.attention_dropout.default",
        "optfuse.convolution_relu.default",
        "optfuse.max_pool.default",
        "optfuse.max_pool_backward.default",
    }
)


def returns_one_tensor(target: str) -> bool:
    """Whether the overload returns a tensor, not a tuple or list of them, nor nothing.

    Needs torch, which has the operators' schemas.
    """
    kinds = _overload(target)._schema.returns  # noqa: SLF001 - the schema has no public name
    return len(kinds) == 1 and str(kinds[0].type) == "Tensor"


def owns_results(target: str) -> bool:
    """Whether a call's results have memory that nobody else has: no argument's, and no cache's.

    An operator that torch composes of others (``contiguous``, ``reshape``) may return its argument.
    """
    import torch

    if target in _FRESH or not target.startswith("aten."):
        return target in _FRESH
    overload = _overload(target)
    if any(result.alias_info is not None for result in overload._schema.returns):  # noqa: SLF001 - as above
        return False
    return not overload.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)  # noqa: SLF001


def _overload(target: str) -> Any:
    import torch

    import optfuse.compiler.ops.registered  # noqa: F401 - has the schemas of ours

    overload: Any = torch.ops
    for part in target.split("."):
        overload = getattr(overload, part)
    return overload
