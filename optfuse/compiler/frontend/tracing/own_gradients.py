"""Detect a model's custom gradients: autograd functions of its own, and hooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from optfuse.compiler.frontend.torch_internals.torch_bridge import tree_leaves


@contextmanager
def own_gradients(model: torch.nn.Module) -> Iterator[list[str]]:
    """What brings a gradient of its own while ``model`` runs, which a trace to one graph loses: functions and hooks.

    Custom operators are not among them: they keep their gradients.
    """
    found: list[str] = []
    register_hook = torch.Tensor.register_hook

    def noting(self: torch.Tensor, hook: Any) -> Any:
        found.append(f"the hook {getattr(hook, '__name__', hook)!s} on a tensor's gradient")
        return register_hook(self, hook)

    watch = model.register_forward_hook(lambda _model, _args, result: found.extend(_functions_behind(result)))
    torch.Tensor.register_hook = noting
    try:
        yield found
    finally:
        torch.Tensor.register_hook = register_hook
        watch.remove()


def _functions_behind(result: Any) -> Iterator[str]:
    """The user's own ``torch.autograd.Function``s among those that a result's gradient goes through."""
    todo = [leaf.grad_fn for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    seen = set(todo)
    while todo:
        node = todo.pop()
        if node is None:
            continue
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            name = type(node).__name__.removesuffix("Backward")
            if not name.startswith("GeneratedBackwardFor_"):
                yield f"the torch.autograd.Function {name}"
        after = [function for function, _ in node.next_functions if function not in seen]
        seen.update(after)
        todo.extend(after)
