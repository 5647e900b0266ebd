"""PyTorch's own table of operators, ``op_db``, through ``torch.compile``: what "aot_eager" runs, optfuse runs equal.

Values, dtypes, sizes and gradients. A sample of every kind in ``make test``; every operator in ``make test-all``, and
with ``pytest -m gpu`` on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from optfuse.runtime.environment import mode

pytestmark = pytest.mark.filterwarnings("ignore")  # what torch says of its own operators is no concern of these tests
on_the_cpu = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")

PARTS = 24
#: Numbers that a run draws, or unwritten memory: two runs differ.
DRAWN = (
    "rand normal bernoulli multinomial empty uniform cauchy exponential geometric dropout fractional_max_pool "
    "efficient_attention"
)
#: Elements of a sample; larger ones only repeat in the interpreter what smaller ones show.
MOST_ELEMENTS = 100_000


@cache
def table(device: str = "cpu") -> tuple[Any, ...]:
    """The operators that float32 tensors on the device have, and that draw nothing."""
    from torch.testing._internal.common_methods_invocations import op_db

    drawn = DRAWN.split()
    known = (op for op in op_db if torch.float32 in op.supported_dtypes(device))
    return tuple(op for op in known if not any(word in op.name for word in drawn))


def samples(op: Any, most: int, device: str) -> Iterator[Any]:
    """Some of an operator's samples, spread evenly."""
    grad = op.supports_autograd and torch.float32 in op.supported_backward_dtypes(device)
    every = list(op.sample_inputs(device, torch.float32, requires_grad=grad))
    for sample in every[:: max(1, math.ceil(len(every) / most))]:
        if sum(leaf.numel() for leaf in tensors((sample.input, sample.args, sample.kwargs))) <= MOST_ELEMENTS:
            yield sample


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def results(op: Any, sample: Any, backend: str) -> tuple[Any, Any]:
    """Outputs and gradients of a sample."""
    torch.compiler.reset()

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().clone(memory_format=torch.preserve_format).requires_grad_(leaf.requires_grad)

    args, kwargs = pytree.tree_map(copied, ((sample.input, *sample.args), sample.kwargs))
    torch.manual_seed(0)
    outputs = torch.compile(lambda *a, **k: op.op(*a, **k), backend=backend)(*args, **kwargs)
    wanted = [leaf for leaf in tensors((args, kwargs)) if leaf.requires_grad]
    given = [leaf for leaf in tensors(outputs) if leaf.requires_grad]
    if not wanted or not given:
        return outputs, None
    directions = [direction(x) for x in given]
    return outputs, torch.autograd.grad(given, wanted, directions, allow_unused=True)


def direction(x: torch.Tensor) -> torch.Tensor:
    """The gradient that is given to a result: different for each of its elements."""
    return torch.linspace(-1, 1, max(x.numel(), 1), device=x.device)[: x.numel()].reshape(x.shape).to(x.dtype)


def disagreement(op: Any, sample: Any) -> str:
    """How optfuse's results differ from those of "aot_eager"; "" where they do not, or where that cannot run it.

    Where a gradient loses many digits, ours may be half as far again from float64 as the other is.
    """
    try:
        wanted = results(op, sample, "aot_eager")
    except Exception:  # an operator that torch cannot trace is not ours to run
        return ""
    try:
        got = results(op, sample, "optfuse")
        if not equal(got, wanted) and not as_near(got, wanted, results(op, sample.transform(in_float64), "aot_eager")):
            torch.testing.assert_close(got, wanted, rtol=2e-3, atol=2e-4, equal_nan=True)
    except Exception as error:
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        return f"{name}{tuple(tuple(x.shape) for x in tensors(sample.input))}: {type(error).__name__}: {error}"[:400]
    return ""


def equal(got: Any, wanted: Any) -> bool:
    try:
        torch.testing.assert_close(got, wanted, rtol=2e-3, atol=2e-4, equal_nan=True)
    except AssertionError:
        return False
    return True


def in_float64(leaf: Any) -> Any:
    """A float32 tensor in float64, and anything else as it is."""
    if not isinstance(leaf, torch.Tensor) or leaf.dtype != torch.float32:
        return leaf
    return leaf.detach().double().requires_grad_(leaf.requires_grad)


def as_near(got: Any, wanted: Any, truth: Any) -> bool:
    """Whether finite float32 results are at most half as far again from those in float64 as the wanted ones are."""
    ours, eagers, exact = tensors(got), tensors(wanted), tensors(truth)
    if [(x.shape, x.dtype) for x in ours] != [(x.shape, x.dtype) for x in eagers]:
        return False
    if any(x.dtype != torch.float32 or not x.isfinite().all() for x in (*ours, *eagers)):
        return False
    return all((x - t).norm() <= 1.5 * (y - t).norm() for x, y, t in zip(ours, eagers, exact, strict=True))


def differ(operators: Any, most: int, device: str = "cpu") -> list[str]:
    found = [disagreement(op, sample) for op in operators for sample in samples(op, most, device)]
    assert len(found) >= len(operators) // 2, "too few samples to say anything"
    return [line for line in found if line]


@on_the_cpu
def test_a_sample_of_the_operators() -> None:
    assert differ(table()[::180], 1) == []


@pytest.mark.slow
@on_the_cpu
def test_choices_and_sorts_of_rows() -> None:
    names = "topk sort argsort msort kthvalue median mode nanmedian unique unique_consecutive".split()
    assert differ([op for op in table() if op.name in names], 2) == []


@on_the_cpu
@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_operator(part: int) -> None:
    assert differ(table()[part::PARTS], 4) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("part", range(4 * PARTS))
def test_every_operator_on_a_gpu(part: int) -> None:
    assert differ(table("cuda")[part :: 4 * PARTS], 2, "cuda") == []
