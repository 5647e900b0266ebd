"""What a program accepts, adapts and refuses."""

import pytest
import torch

from optfuse.errors import InvalidInputError, PlanError
from optfuse.runtime.program import Program

MODULE = """
import torch
DEVICE = torch.device("cpu")
INPUTS = (
    ("x", "float32", (2, 3), (3, 1), "cuda:0", False),
    ("m", "float32", (2, 3), (3, 1), "cuda:0", True),
    ("s", "float32", (), (), "cpu", False),
    ("e", "float32", (2, 3), (1, 0), "cuda:0", False),
)
CONSTANTS = (("c", "float32", (3,), (1,), "cuda:0"),)
KERNELS = {}


def call(inputs, constants):
    x, m, s, e = inputs
    assert x.stride() == m.stride() == (3, 1) and e.stride() == (1, 0)
    assert not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    m.copy_(x + constants["c"] * s + e)
    return (m, None)
"""


@pytest.fixture
def inputs():
    x = torch.arange(6.0).reshape(2, 3)
    return [x, torch.zeros(2, 3), torch.tensor(2.0), torch.tensor([[1.0], [2.0]]).expand(2, 3)]


@pytest.fixture
def program(tmp_path):
    return Program(MODULE, {"c": torch.ones(3)}, folder=tmp_path)


def test_runs_and_mutates(program, inputs):
    out, nothing = program(*inputs)
    assert out is inputs[1]
    assert nothing is None
    assert out.tolist() == [[3, 4, 5], [7, 8, 9]]


def test_layouts_are_adapted_by_copying(program, inputs):
    inputs[0] = inputs[0].t().contiguous().t()
    inputs[3] = inputs[3].contiguous()
    assert program.run(inputs)[0].tolist() == [[3, 4, 5], [7, 8, 9]]


def test_autocast_does_not_reach_the_library_calls(program, inputs):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        program.run(inputs)


@pytest.mark.parametrize(
    ("position", "tensor", "message"),
    [
        (0, torch.zeros(3, 2), r"input x is float32\[3, 2\], .* float32\[2, 3\]"),
        (0, torch.zeros(2, 3).double(), "input x is float64"),
        (1, torch.zeros(3, 2).t(), "input m is written in place"),
        (1, torch.zeros(2, 3, device="meta"), "input m is on meta, others are on cpu"),
        (3, torch.arange(6.0).reshape(2, 3), "input e was an expanded tensor"),
    ],
)
def test_other_inputs_are_refused_by_name(program, inputs, position, tensor, message):
    inputs[position] = tensor
    with pytest.raises(InvalidInputError, match=message):
        program.run(inputs)


def test_wrong_number_of_inputs(program, inputs):
    with pytest.raises(InvalidInputError, match="3 inputs were given to a program of 4"):
        program.run(inputs[:3])


@pytest.mark.parametrize(
    ("constants", "message"),
    [({}, "needs the constant c"), ({"c": torch.ones(4)}, r"constant c is float32\[4\]")],
)
def test_constants_are_checked_at_once(tmp_path, constants, message):
    with pytest.raises(PlanError, match=message):
        Program(MODULE, constants, folder=tmp_path)


def test_strides_of_single_elements_mean_nothing(tmp_path):
    text = MODULE.replace("(2, 3), (3, 1)", "(1, 3), (3, 1)").replace("(2, 3), (1, 0)", "(1, 3), (9, 0)")
    text = text.replace("assert x.stride()", "assert True or x.stride()")
    program = Program(text, {"c": torch.ones(3)}, folder=tmp_path)
    x = torch.zeros(1, 3).as_strided((1, 3), (77, 1))
    out, _ = program.run([x, x.clone(), torch.tensor(1.0), torch.zeros(1, 1).expand(1, 3)])
    assert out.tolist() == [[1, 1, 1]]


def test_numbers_on_the_host_go_to_the_device_of_the_rest(program):
    """A kernel there would read the host's memory."""
    x = torch.zeros(2, 3, device="meta")
    given, main = program.accept([x, x.clone(), torch.tensor(2.0), torch.zeros(2, 1, device="meta").expand(2, 3)])
    assert main.type == "meta"
    assert [tensor.device.type for tensor in given] == ["meta"] * 4


TEMPORARIES = """
import torch
DEVICE = torch.device("cpu")
INPUTS = (("x", "float32", (4,), (1,), "cpu", False),)
CONSTANTS = ()


def scratch(size, device):
    return torch.empty(size, dtype=torch.uint8, device=device)


def doubled(x, minus=0, *, times=2):
    return scratch(16, x.device).view(torch.float32).copy_(x).mul_(times).sub_(minus)


def call(inputs, constants):
    (x,) = inputs
    return (doubled(x) + 1,)
"""


def test_memory_that_one_call_is_given_is_not_another_ones(tmp_path):
    """As when a thread records a program while another one runs it: both are of one module, defaults included."""
    first, second = (Program(TEMPORARIES, folder=tmp_path) for _ in range(2))
    x, taken = torch.ones(4), []

    def take(size, device):
        taken.append(torch.zeros(size, dtype=torch.uint8, device=device))
        assert second.run([x + 1])[0].tolist() == [5, 5, 5, 5]
        return taken[0]

    assert first.execute([x], x.device, take)[0].tolist() == [3, 3, 3, 3]
    assert first.run([x])[0].tolist() == [3, 3, 3, 3]
    assert len(taken) == 1
    assert taken[0].view(torch.float32).tolist() == [2, 2, 2, 2]
