"""Run captured graphs as they stand, and compare results of any structure with eager ones."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import optfuse
from optfuse.compiler.frontend import Captured, apply_mutations, capture, gather_inputs, own_tensors, restore_outputs
from optfuse.compiler.frontend.torch_internals.torch_bridge import tree_flatten


def run_graph(captured: Captured) -> Callable[[Sequence[torch.Tensor]], Sequence[Any]]:
    """A ``compile_graph`` that interprets the graph node by node, and checks what each node's fake value promises."""

    class Checked(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            result = super().run_node(n)
            if isinstance(result, torch.Tensor):
                fake = n.meta["val"]
                assert (result.shape, result.dtype, result.device) == (fake.shape, fake.dtype, fake.device), n.name
            return result

    def run(inputs: Sequence[torch.Tensor]) -> Sequence[Any]:
        outputs = Checked(captured.graph).run(*inputs)
        if captured.call is not None:  # ``call`` writes
            return outputs
        written = dict(captured.mutations)
        for position, target in written.items():
            inputs[target].copy_(outputs[position])
        return [value for k, value in enumerate(outputs) if k not in written]

    return run


def call(captured: Captured, model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a graph of ``capture`` as its user would call the model, in-place changes included."""
    inputs = gather_inputs(captured, model, args, kwargs)
    targets = own_tensors(captured, model, args, kwargs)
    with torch.no_grad():
        outputs = run_graph(captured)(inputs)
    apply_mutations(captured, targets, outputs)
    return restore_outputs(captured, outputs)


def copied(values: Any) -> Any:
    """Independent copies of arguments, with what they share, how they are strided and whether they need gradients."""
    return copy.deepcopy(values)


def assert_gradients_near_eagers(model: torch.nn.Module, x: torch.Tensor, share: float, **options: Any) -> None:
    """A scheduled step's gradients of ``x`` and of all parameters are as near float64 as eager execution's.

    Args:
        model: Makes one tensor of ``x``, which needs a gradient. The loss is outside: the mean of squares.
        share: What a gradient may be off beside 1.5 times eager's error, as a share of its norm.
        options: For ``optfuse.optimize``.
    """

    def gradients(run: Any, model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        given = x.detach().requires_grad_()
        return list(torch.autograd.grad(run(given).square().mean(), [given, *model.parameters()]))

    fast = optfuse.optimize(model, (x,), train=True, **options).compile()
    truth = copy.deepcopy(model).double()
    found, eager, exacts = (gradients(fast, model, x), gradients(model, model, x), gradients(truth, truth, x.double()))
    for ours, theirs, exact in zip(found, eager, exacts, strict=True):
        assert ours.shape == exact.shape
        assert (ours.double() - exact).norm() <= 1.5 * (theirs.double() - exact).norm() + share * exact.norm()


def assert_same(actual: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """The same structure, and equal or close leaves."""
    leaves, spec = tree_flatten(actual)
    wanted, wanted_spec = tree_flatten(expected)
    assert spec == wanted_spec
    for ours, theirs in zip(leaves, wanted, strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, equal_nan=True)
        else:
            assert type(ours) is type(theirs)
            assert ours == theirs


def capture_and_compare(
    model: torch.nn.Module, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
) -> Captured:
    """Capture, run against eager on copies of the same arguments, compare results and all in-place changes."""
    kwargs = dict(kwargs or {})
    captured = capture(model, args, kwargs, name="model")
    eager_model, (eager_args, eager_kwargs) = copied(model), copied((args, kwargs))
    with torch.no_grad():
        expected = eager_model(*eager_args, **eager_kwargs)
    actual = call(captured, model, args, kwargs)
    assert_same(actual, expected)
    assert_same((args, kwargs), (eager_args, eager_kwargs))
    assert_same(dict(model.state_dict()), dict(eager_model.state_dict()))
    return captured


def targets(captured: Captured) -> Counter[str]:
    """How often each operator occurs."""
    return Counter(str(node.target) for node in captured.graph.graph.nodes if node.op == "call_function")
