"""What a program of ``torch.export`` says of its inputs: examples, and the sizes that may change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from optfuse.compiler.frontend.torch_internals.torch_sizes import expression_of, is_symbolic
from optfuse.errors import InvalidOptionError

#: A size without a bound is priced up to so many times the example's.
TIMES = 4

#: By argument, its position or its keyword: by dimension the least and the most size.
Ranges = dict[int | str, dict[int, tuple[int, int]]]


def inputs_of(
    program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The given inputs; where there are none, those that the program was exported with."""
    if args or kwargs or program.example_inputs is None:
        return args, dict(kwargs or {})
    given, named = program.example_inputs
    return tuple(given), dict(named)


def ranges_of(program: ExportedProgram, inputs: tuple[tuple[Any, ...], Mapping[str, Any]]) -> Ranges | None:
    """The sizes that may change, as ``optimize(dynamic=...)`` takes them; None if all are numbers.

    Raises:
        InvalidOptionError: If one is inside of a list of inputs, or an expression of others (``2*s``).
    """
    placeholders = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    leaves = pytree.tree_flatten_with_path((list(inputs[0]), dict(inputs[1])))[0]
    names = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    found: Ranges = {}
    for name, (path, given) in zip(names, leaves, strict=False):
        traced = placeholders[name].meta.get("val")
        if not isinstance(traced, torch.Tensor) or not isinstance(given, torch.Tensor):
            continue
        for dim, size in enumerate(traced.shape):
            if not is_symbolic(size):
                continue
            symbol = expression_of(size)
            if not isinstance(symbol, sympy.Symbol) or len(path) != 2:
                where = pytree.keystr(path)
                raise InvalidOptionError(
                    f"dynamic: dimension {dim} of the exported program's input {where} is {symbol}, inside of a list "
                    "or an expression of other sizes; pass dynamic={} for a schedule of the example's sizes"
                )
            bounds = program.range_constraints.get(symbol)
            hint = given.shape[dim]
            least = 1 if bounds is None else max(1, int(bounds.lower))
            bounded = bounds is not None and isinstance(bounds.upper, sympy.Integer)
            most = int(bounds.upper) if bounds is not None and bounded else TIMES * hint
            key = path[1].idx if isinstance(path[1], pytree.SequenceKey) else str(path[1].key)
            found.setdefault(key, {})[dim] = (least, max(hint, most))
    return found or None
