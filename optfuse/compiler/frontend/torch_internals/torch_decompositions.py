"""PyTorch's decompositions: its tables of them, and how an exported program falls apart by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._subclasses.fake_tensor import unset_fake_temporarily

from optfuse.compiler.frontend.torch_internals.torch_bridge import OpOverload, tracing

try:  # most of a small model's capture; absent, torch overrides 500 operators that fall apart as they would anyway
    from torch.export.exported_program import _decompose_exported_program, _split_decomp_table_to_cia_and_python_decomp
except ImportError:
    _decompose_exported_program, _split_decomp_table_to_cia_and_python_decomp = None, None

Rules = Mapping[Any, Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Decompositions:
    """A table of decompositions, and its two parts as ``torch.export`` takes them.

    Attributes:
        table: Overload to decomposition.
        composite: Of operators that torch composes of others: where the table says another thing than torch, or
            nothing, so that the operator stays whole.
        others: Of all other operators.
    """

    table: Rules
    composite: Rules
    others: Rules


def standard_decompositions() -> dict[Any, Callable[..., Any]]:
    """Torch's decompositions to the core ATen opset, composite operators included."""
    return dict(core_aten_decompositions().items())


def decomposition_of(overload: OpOverload) -> Callable[..., Any] | None:
    """Torch's own decomposition of ``overload``, if it has one."""
    return decomposition_table.get(overload)


def composite_operators() -> int:
    """How many operators are composed of others: more, once a library has registered some."""
    return len(torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd"))  # noqa: SLF001


def for_exported(table: Rules) -> Decompositions:
    """``table`` for ``decompose_exported``: of the operators that are registered now."""
    if _split_decomp_table_to_cia_and_python_decomp is None:
        return Decompositions(table, {}, {})
    composite, others = _split_decomp_table_to_cia_and_python_decomp(dict(table))
    return Decompositions(table, {op: rule for op, rule in composite.items() if not _is_own(op, rule)}, others)


def decompose_exported(
    program: torch.export.ExportedProgram, decompositions: Decompositions
) -> torch.export.ExportedProgram:
    """Functionalise, and decompose what the table lists, composite operators included; what it lacks stays whole."""
    with tracing(), unset_fake_temporarily():
        if _decompose_exported_program is None:
            return program.run_decompositions(dict(decompositions.table))
        return _decompose_exported_program(
            program,
            cia_to_decomp=dict(decompositions.composite),
            python_decomp_table=dict(decompositions.others),
            joint_loss_index=None,
            decompose_custom_triton_ops=False,
        )


def _is_own(operator: Any, rule: Callable[..., Any]) -> bool:
    """Whether a composite operator falls apart as it does by itself."""
    return isinstance(rule, partial) and rule.keywords == {"kernel": operator}
