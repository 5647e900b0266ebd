"""Library calls as text, and which of them can write into planned memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from optfuse.compiler.codegen.python_text import literal
from optfuse.compiler.ir.nodes import Arg, LibraryCall, TorchValue, View

#: Overloads by their ``out=`` sibling that takes the same arguments and writes the one result without a copy, whatever
#: strides it has. Where the sibling is generated from the functional form (convolution, attention) nothing is gained.
OUT_VARIANTS: dict[str, str] = {
    **{
        f"aten.{name}.default": f"aten.{name}.out"
        for name in "addmm addmv avg_pool2d baddbmm bmm cat cumsum gather index_add index_select mm scatter_add".split()
    },
    "aten.max_pool2d_with_indices_backward.default": "aten.max_pool2d_with_indices_backward.grad_input",
    "aten.index.Tensor": "aten.index.Tensor_out",
    "optfuse.addmm_activation.default": "addmm_activation",
    "optfuse.exact_bmm.default": "exact_bmm",
    "optfuse.grouped_products.default": "grouped_products",
    "optfuse.joint_products.default": "joint_products",
}

#: Operators whose result is contiguous on every device.
ALWAYS_CONTIGUOUS = frozenset(
    {
        *("aten.mm.default", "aten.addmm.default", "aten.bmm.default"),
        *("optfuse.addmm_activation.default", "optfuse.exact_bmm.default"),
        *("optfuse.grouped_products.default", "optfuse.joint_products.default"),
    }
)


def takes_out(call: LibraryCall) -> bool:
    """Whether the call can write its result into planned memory. Results of other calls live outside the arena."""
    return call.target in OUT_VARIANTS and len(call.outputs) == 1 and not call.mutates


#: Overloads with a function in the torch namespace, which is a microsecond faster to call.
_FUNCTIONS = {f"aten.{name}.out": f"torch.{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "addmv")}


def quickest(overload: str) -> str:
    """The function to call for an ``out=`` overload."""
    return _FUNCTIONS.get(overload, overload)


def out_call(target: str, out: str) -> tuple[str, str]:
    """The function that writes into ``out``, and the keyword argument for it."""
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


#: Composite operators, and ours (called as functions), that never return an argument.
_FRESH = frozenset(
    {
        "aten.scaled_dot_product_attention.default",
        "optfuse.addmm_activation.default",
        "optfuse.attention.default",
        "optfuse.attention_backward.default",
        "optfuse.attention_cached.default",
        "optfuse.attention_dropout.default",
        "optfuse.convolution_relu.default",
        "optfuse.convolution_weights.default",
        "optfuse.depthwise.default",
        "optfuse.depthwise_images.default",
        "optfuse.depthwise_weights.default",
        "optfuse.exact_bmm.default",
        "optfuse.grouped_products.default",
        "optfuse.joint_products.default",
        "optfuse.max_pool.default",
        "optfuse.max_pool_backward.default",
    }
)


def returns_one_tensor(target: str) -> bool:
    """Whether the overload returns one tensor (not a tuple, a list, or nothing), by torch's schema of it."""
    kinds = _overload(target)._schema.returns  # noqa: SLF001 - the schema has no public name
    return len(kinds) == 1 and str(kinds[0].type) == "Tensor"


def owns_results(target: str) -> bool:
    """Whether a call's results never alias an argument or a cache.

    A composite operator of torch (``contiguous``, ``reshape``) may return its argument.
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
