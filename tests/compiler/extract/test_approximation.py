"""Functions are approximate only where results are rounded to half precision."""

import torch

from optfuse.compiler.extract.approximation import may_approximate
from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.lower import lower


def approximated(function, *inputs):
    """The FX nodes whose ops may approximate."""

    class Model(torch.nn.Module):
        def forward(self, *args):
            return function(*args)

    captured = capture(Model(), inputs)
    graph = lower(captured.graph, name="g", mutations=captured.mutations, constants=captured.constants)
    allowed = may_approximate(graph)
    return {op.origin.target.split(".")[1] for k, op in enumerate(graph.ops) if k in allowed}


def test_a_softmax_of_half_numbers_approximates():
    found = approximated(lambda x: torch.softmax(x, -1), torch.randn(4, 9, dtype=torch.bfloat16))
    assert {"exp", "div"} <= found


def test_a_softmax_of_half_numbers_that_leaves_as_float32_does_not():
    assert not approximated(lambda x: torch.softmax(x.float(), -1), torch.randn(4, 9, dtype=torch.bfloat16))


def test_float32_never_does():
    assert not approximated(lambda x: torch.softmax(x, -1) * 2, torch.randn(4, 9))


def test_what_is_compared_or_goes_to_a_library_stays_exact():
    half = torch.randn(4, 4, dtype=torch.bfloat16)
    assert "exp" not in approximated(lambda x: x.float().exp() > 1, half)
    assert "exp" not in approximated(lambda x: (x.float().exp() @ x.float()).bfloat16(), half)


def test_one_exact_user_is_enough():
    half = torch.randn(4, 4, dtype=torch.float16)
    found = approximated(lambda x: ((y := x.float().exp()).half() + 1, y.sum()), half)
    assert "exp" not in found
    assert "add" in found
