"""Check which operators a plan may call: the file is untrusted, and names their arguments too.

Allowed are the operators of torch's dispatcher in the namespaces of ``NAMESPACES``, and in those that the caller names,
such as one of a library of custom operators. Of the text that they take, what chooses a mode is allowed
(``rounding_mode="floor"``); an operator that takes other text is not, as ``aten.from_file`` takes the name of a file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from optfuse.compiler.frontend.torch_internals.registries import checked_overload, text_arguments
from optfuse.errors import PlanError

#: ATen, the operators that its decompositions name, and our own.
NAMESPACES = frozenset({"aten", "prims", "optfuse"})

#: Arguments of text that choose among modes of an operator, or are told when it fails.
_HARMLESS = frozenset(
    "UPLO activation algorithm approximate assert_msg driver equation indexing interpolation mode norm ord p pad_mode "
    "padding padding_side reduce rounding_mode side".split()
)


def named_overload(target: str, namespaces: Collection[str] = ()) -> Any:
    """The operator of a name that a file gives, such as "aten.mm.default".

    Args:
        target: Namespace, operator and overload.
        namespaces: Namespaces beside ``NAMESPACES`` whose operators may be called, whatever they do.

    Raises:
        PlanError: If there is no such operator here, or a file may not call it.
    """
    import optfuse.compiler.ops.registered  # noqa: F401 - makes operators of ours known to torch

    found = checked_overload(target)
    if found is None:
        raise PlanError(
            f"it calls {target:.80}, which is no operator here; if it is one of a library that you trust, import that"
        )
    namespace = target.partition(".")[0]
    if namespace not in NAMESPACES and namespace not in namespaces:
        raise PlanError(
            f"it calls {target:.80}, and files may call operators of {', '.join(sorted(NAMESPACES))} alone; if you "
            f"trust it, load the plan with operators=[{namespace!r}]"
        )
    text = () if namespace in namespaces else text_arguments(found)
    other = [name for name in text if name not in _HARMLESS]
    if other and namespace != "optfuse":
        raise PlanError(f"it calls {target:.80}, whose {other[0]} may be any text, a file's name too; files may not")
    return found


def require_named(targets: Iterable[str], namespaces: Collection[str] = ()) -> None:
    """Check every target as ``named_overload`` does. Raises PlanError for the first that may not be called."""
    for target in dict.fromkeys(targets):
        named_overload(target, namespaces)
