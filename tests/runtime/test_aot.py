"""Ahead-of-time compilation for a GPU that is not here. One module, compiled once by the fixture."""

import pytest

from optfuse.errors import InvalidOptionError, PlanError, VerificationError
from optfuse.runtime.aot import compile_kernels, main, table

MODULE = """
import triton
import triton.language as tl


@triton.jit
def shared_function(a, b):
    return a + b


@triton.jit
def light(x, y, n, XBLOCK: tl.constexpr):
    # a comment
    i = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(y + i, shared_function(tl.load(x + i, mask=i < n), 1.0), mask=i < n)


@triton.jit
def light_again(input, output, n, XBLOCK: tl.constexpr):
    # another comment
    where = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(output + where, shared_function(tl.load(input + where, mask=where < n), 1.0), mask=where < n)


@triton.jit
def other(x, y, n, XBLOCK: tl.constexpr):
    i = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(y + i, shared_function(tl.load(x + i, mask=i < n), 2.0), mask=i < n)


@triton.jit
def heavy(x, y, R: tl.constexpr):
    i = tl.arange(0, R)
    a = tl.load(x + i)
    m = tl.max(a, 0)
    tl.store(y + i, tl.exp(a - m) / tl.sum(tl.exp(a - m), 0))


@triton.jit
def broken(x, y, XBLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, XBLOCK), unknown_name)


def row(function, signature, **constants):
    return {
        "function": function,
        "signature": signature | dict.fromkeys(constants, "constexpr"),
        "constants": constants,
        "options": {"num_warps": 1 if "R" in constants else 4},
    }


KERNELS = {
    "light": row(light, {"x": "*fp32", "y": "*fp32", "n": "i32"}, XBLOCK=512),
    "light_again": row(light_again, {"input": "*fp32", "output": "*fp32", "n": "i32"}, XBLOCK=512),
    "other": row(other, {"x": "*fp32", "y": "*fp32", "n": "i32"}, XBLOCK=512),
    "heavy": row(heavy, {"x": "*fp32", "y": "*fp32"}, R=8192),
    "broken": row(broken, {"x": "*fp32", "y": "*fp32"}, XBLOCK=512),
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("aot")
    path = folder / "kernels.py"
    path.write_text(MODULE)
    return path, folder / "cache", compile_kernels(path, cache=folder / "cache")


def test_figures_of_every_kernel_in_the_order_of_the_module(compiled):
    _, _, reports = compiled
    assert [r.name for r in reports] == ["light", "light_again", "other", "heavy", "broken"]
    light, _, _, heavy, _ = reports
    assert light.passed
    assert 8 <= light.registers < 64
    assert light.spills == light.shared == 0
    assert heavy.spills > 0
    assert heavy.stack > 0
    assert not heavy.passed


def test_what_does_not_compile_says_why(compiled):
    broken = compiled[2][-1]
    assert not broken.passed
    assert "unknown_name" in broken.error
    assert "unknown_name" in table(compiled[2])


def test_names_and_comments_do_not_matter_to_the_cache(compiled):
    first, second, third = compiled[2][:3]
    assert not first.cached
    assert second.cached
    assert not third.cached
    assert second.registers == first.registers


def test_second_time_compiles_nothing(compiled, capsys, monkeypatch):
    path, cache, reports = compiled
    again = compile_kernels(path, cache=cache)
    assert [r.cached for r in again] == [True, True, True, True, False]
    assert [r.spills for r in again] == [r.spills for r in reports]


def test_table_sums_up(compiled):
    assert table(compiled[2]).splitlines()[-1] == "5 kernels, 1 do not compile, 1 spill"


def test_bad_requests(tmp_path, capsys):
    with pytest.raises(PlanError, match=r"nowhere\.py: no such file"):
        compile_kernels(tmp_path / "nowhere.py")
    path = tmp_path / "kernels.py"
    path.write_text("raise RuntimeError('no module of ours')")
    with pytest.raises(InvalidOptionError, match="hip"):
        compile_kernels(path, "hip:gfx942")
    with pytest.raises(VerificationError, match="no module of ours"):
        compile_kernels(path, cache=tmp_path)
    assert main([]) == 2
