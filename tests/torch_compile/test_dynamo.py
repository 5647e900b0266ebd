"""torch.compile(backend="optfuse"): inference, training, options."""

import copy
import logging
import os
import subprocess
import sys

import pytest
import torch

from optfuse.errors import InvalidOptionError
from optfuse.runtime.environment import mode
from optfuse.solver.control.options import SolveOptions
from optfuse.torch_compile.backend import backend, options_of_mode, parse_options

pytestmark = pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")

OPTIONS = {"time_limit": 10, "workers": 1, "deterministic": True}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(9, 17), torch.nn.GELU(), torch.nn.LayerNorm(17), torch.nn.Dropout(0.0), torch.nn.Linear(17, 3)
    )


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()  # noqa: SLF001 - its public face


def test_inference_is_recorded_and_said_once(model, caplog):
    x = torch.randn(5, 9)
    seen = []

    def spying(graph, inputs, **more):
        seen.append(backend(graph, inputs, **more))
        return seen[-1]

    fast = torch.compile(model, backend=spying, options=OPTIONS)
    with torch.no_grad(), caplog.at_level(logging.INFO, logger="optfuse"):
        torch.testing.assert_close(fast(x), model(x))
        fast(x)
    (compiled,) = seen
    assert [s.name for s in compiled.record.schedules] == ["compiled0.inference"]
    assert compiled.record.library_ops == ("aten.addmm.default", "aten.mm.default")
    assert all(caplog.text.count(name) == 1 for name in compiled.record.library_ops)


def test_training_step(model):
    other = copy.deepcopy(model)
    fast = torch.compile(model, backend="optfuse", options=OPTIONS)
    x = torch.randn(5, 9)
    for module, function in ((model, fast), (other, other)):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            function(x).square().sum().backward()
            optimizer.step()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_in_place_changes_and_aliases():
    def step(x, cache):
        cache[1].mul_(2.0)
        y = x + cache.sum(0)
        return y, y, x, cache[0]

    x, cache = torch.randn(4), torch.randn(3, 4)
    expected_cache = cache.clone()
    expected = step(x, expected_cache)
    got = torch.compile(step, backend="optfuse", options=OPTIONS)(x, cache)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(cache, expected_cache)
    assert got[0] is got[1]
    assert got[2] is x
    assert got[3].data_ptr() == cache.data_ptr()


def test_other_sizes_compile_again(model):
    fast = torch.compile(model, backend="optfuse", options=OPTIONS)
    with torch.no_grad():
        for rows in (2, 5, 7):
            x = torch.randn(rows, 9)
            torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tim_limit": 3}, "did you mean 'time_limit'"),
        ({"devise": "h200"}, "did you mean 'device'"),
        ({"time_limit": 0}, "time_limit must be"),
        ({"device": "h2000"}, "did you mean 'h200'"),
        ({"device": "rtx"}, "known: h100, h200, h200-hosts, or the path"),
        ({"device": 3}, "device must be"),
        ({"triton.cudagraphs": True}, 'is Inductor\'s; write {"cudagraphs": True}'),
        ({"max_autotune": True}, 'is Inductor\'s; write {"tune": True}'),
        ({"epilogue_fusion": True}, "is Inductor's; leave it out"),
        ({"unheard_of": 1}, r"unknown option 'unheard_of' \(known: device, "),
        ({"tune": "yes"}, "tune must be"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InvalidOptionError, match=message):
        parse_options(options)


@pytest.mark.parametrize("options", ["time_limit", ["time_limit"]])
def test_options_are_a_dictionary(options):
    with pytest.raises(Exception, match="options must be a dictionary"):
        torch.compile(lambda x: x + 1, backend="optfuse", options=options)(torch.ones(2))


def test_options():
    assert parse_options({"time_limit": 3, "seed": 1}) == ("h200", SolveOptions(time_limit=3, seed=1))


def test_modes_have_their_usual_meaning():
    assert options_of_mode(None) == options_of_mode("default") == {}
    assert options_of_mode("reduce-overhead") == {"cudagraphs": True}
    assert options_of_mode("max-autotune") == {"cudagraphs": True, "tune": torch.cuda.is_available()}
    assert options_of_mode("max-autotune-no-cudagraphs") == {"cudagraphs": False, "tune": torch.cuda.is_available()}


@pytest.mark.spread(3)
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_every_mode_runs(model, mode):
    x = torch.randn(5, 9)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="optfuse", mode=mode)(x), model(x))


def test_an_unknown_mode_is_refused_with_the_known_ones(model):
    graph = torch.fx.symbolic_trace(model)
    with pytest.raises(InvalidOptionError, match="reduce-overhead"):
        backend(graph, [torch.randn(5, 9)], mode="fastest")


@pytest.mark.slow
def test_registered_by_entry_point_for_those_who_import_torch_alone():
    code = """if True:
        import torch
        fast = torch.compile(lambda x: torch.softmax(x, -1).sum(0), backend="optfuse", options={"workers": 1})
        x = torch.randn(5, 9)
        torch.testing.assert_close(fast(x), torch.softmax(x, -1).sum(0))
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("does not race") == 1
