"""The emitted module as a whole: kernels and library calls together, run, compiled ahead of time, and on its own."""

import ast
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from optfuse.compiler.codegen.host_program import MemoryLayout
from optfuse.compiler.codegen.module import emit_module, mutated_inputs
from optfuse.compiler.codegen.triton_kernel import emit_kernel
from optfuse.compiler.ir.interpreter import interpret
from optfuse.compiler.ir.kernel_spec import KernelSpec, Member, Space, rdigit, xdigit
from optfuse.compiler.ir.nodes import (
    Buffer,
    Call,
    Const,
    LibraryCall,
    Load,
    LoopGraph,
    LoopNest,
    Origin,
    Reduction,
    Result,
    Store,
    View,
    ivar,
    rvar,
)
from optfuse.compiler.ir.verify_graph import verify
from optfuse.errors import PlanError
from optfuse.runtime.aot import compile_kernels
from optfuse.runtime.check.verify import verify as judge
from optfuse.runtime.environment import mode
from optfuse.runtime.program import Program

ROWS, COLUMNS = 7, 129


def load(buffer, dtype, row, column):
    return Call("cast", (Load(buffer, row * COLUMNS + column, dtype),), "float32")


def build(dtype="float32", *, mutate=False):
    """Row sums s of exp(x); y = (x / s) @ w; z = tanh(y) (written to the input z if ``mutate``)."""
    shape, stride = (ROWS, COLUMNS), (COLUMNS, 1)
    buffers = [
        Buffer("x", dtype, shape, stride, "input"),
        Buffer("w", dtype, (COLUMNS, COLUMNS), stride, "constant"),
        Buffer("s", "float32", (ROWS, 1), (1, 1)),
        Buffer("q", dtype, shape, stride),
        Buffer("y", dtype, shape, stride),
        Buffer("z", dtype, shape, stride, "input" if mutate else "temporary"),
    ]
    i, j, r = ivar(0), ivar(1), rvar(0)
    total = LoopNest(
        "total",
        (ROWS,),
        (COLUMNS,),
        (Reduction("sum", Call("exp", (load("x", dtype, i, r),), "float32")),),
        (Store("s", i, Result(0, "float32")),),
        Origin("sum_1", "aten.sum.dim_IntList"),
    )
    share = Call("div", (load("x", dtype, i, j), Load("s", i, "float32")), "float32")
    quotient = LoopNest("quotient", shape, (), (), (Store("q", i * COLUMNS + j, share),), Origin("div", "aten.div"))
    product = LibraryCall(
        "mm",
        "aten.mm.default",
        (View("q", shape, stride), View("w", (COLUMNS, COLUMNS), (COLUMNS, 1))),
        (),
        ("y",),
        Origin("mm", "aten.mm.default", "layer.0"),
    )
    shifted = Call("add", (load("y", dtype, i, j), Const(1.0, "float32")), "float32")
    squash = LoopNest(
        "squash",
        shape,
        (),
        (),
        (Store("z", i * COLUMNS + j, Call("tanh", (shifted,), "float32")),),
        Origin("tanh", "aten.tanh.default"),
    )
    graph = LoopGraph(
        "toy.inference",
        tuple(buffers),
        ("x", "z") if mutate else ("x",),
        ("w",),
        (total, quotient, product, squash),
        (View("z", shape, stride), View("s", (ROWS,), (1,))),
    )
    verify(graph)
    return graph


def steps(graph):
    """The sum and the quotient share a kernel; tanh has its own."""
    buffers = {b.name: b for b in graph.buffers}
    total, quotient, product, squash = graph.ops
    row, column = xdigit(0), rdigit(0)
    members = (Member(total, (row,), (column,), True), Member(quotient, (row, column), (), True))
    fused = KernelSpec("k0_softmax", Space((ROWS,), (COLUMNS,)), members, frozenset({"s"}), ("s", "q"))
    flat = Space((ROWS, COLUMNS))
    last = KernelSpec("k2_tanh", flat, (Member(squash, (xdigit(0), xdigit(1)), (), True),), frozenset(), ("z",))
    return [emit_kernel(fused, buffers), product, emit_kernel(last, buffers)]


def module(graph, memory=None):
    return emit_module(graph, steps(graph), memory or MemoryLayout(), certificate="proven by hand")


ARENA = MemoryLayout(8192, {"q": 0, "y": 4096})


def eager(dtype, w):
    def run(inputs):
        x = inputs[0]
        s = x.float().exp().sum(1) if x.dtype != torch.float64 else x.exp().sum(1)
        y = (x / s[:, None].to(x.dtype)) @ w.to(x.dtype)
        return [torch.tanh(y + 1), s if x.dtype == torch.float64 else s.float()]

    return run


@pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("memory", [None, ARENA], ids=["individual", "arena"])
def test_kernels_and_library_calls_together(dtype, memory, tmp_path):
    graph = build(str(dtype).removeprefix("torch."))
    w = torch.randn(COLUMNS, COLUMNS, generator=torch.Generator().manual_seed(0)).to(dtype)
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1)).to(dtype)
    program = Program(module(graph, memory), {"w": w}, folder=tmp_path)
    report = judge(program.run, eager(dtype, w), eager(dtype, w), [x])
    assert report.passed, report
    oracle = interpret(graph, [x], {"w": w})
    for got, wanted in zip(program.run([x]), oracle, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.skipif(mode() == "compile", reason="these tensors live on the CPU")
def test_mutated_input_is_stored_to(tmp_path):
    graph = build(mutate=True)
    assert mutated_inputs(graph) == {"z"}
    w, x, z = torch.randn(COLUMNS, COLUMNS), torch.randn(ROWS, COLUMNS), torch.zeros(ROWS, COLUMNS)
    out, _ = Program(module(graph, ARENA), {"w": w}, folder=tmp_path).run([x, z])
    assert out is z
    torch.testing.assert_close(z, eager(torch.float32, w)([x])[0])


def test_the_text_is_one_readable_module():
    graph = build()
    text = module(graph, ARENA)
    assert text == module(graph, ARENA)
    tree = ast.parse(text)
    assert ast.get_docstring(tree).startswith("toy.inference: 2 launches of 2 kernels and 1 library call for 4 ops.")
    assert "proven by hand" in ast.get_docstring(tree)
    assert "# layer.0: mm" in text
    assert "optfuse" not in "".join(line for line in text.splitlines() if "import" in line)
    assert max(map(len, text.splitlines())) <= 120


def test_only_the_shared_functions_in_use_are_there():
    text = module(build())
    assert "def divide(" in text
    assert "def welford(" not in text


def test_one_kernel_may_be_launched_twice_but_two_need_two_names():
    graph = build()
    first, product, last = steps(graph)
    text = emit_module(graph, [first, product, last, last], MemoryLayout())
    assert text.count("def k2_tanh(") == 1
    assert text.count("launch(k2_tanh, ") == 2
    with pytest.raises(PlanError, match="k0_softmax is taken"):
        emit_module(graph, [first, product, replace(last, name="k0_softmax")], MemoryLayout())
    with pytest.raises(PlanError, match="window is taken"):
        emit_module(graph, [first, product, replace(last, name="window")], MemoryLayout())


@pytest.mark.slow
def test_compiles_ahead_of_time_without_spills(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(module(build("bfloat16"), ARENA))
    reports = compile_kernels(path, cache=tmp_path / "cache")
    assert [r.name for r in reports] == ["k0_softmax", "k2_tanh"]
    assert all(r.passed for r in reports), reports


@pytest.mark.slow
@pytest.mark.skipif(mode() == "compile", reason="runs by interpretation")
def test_runs_on_its_own(tmp_path):
    """The module imports nothing of ours: only the interpreter, which has no libdevice, is mended beforehand."""
    path = tmp_path / "kernels.py"
    path.write_text(module(build()))
    code = """if True:
        import sys, runpy
        from optfuse.runtime.environment import prepare
        prepare()
        for name in [name for name in sys.modules if name.startswith("optfuse")]:
            sys.modules[name] = None
        runpy.run_path(sys.argv[1], run_name="__main__")
    """
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"torch.float32[{ROWS}, {COLUMNS}]", f"torch.float32[{ROWS}]"]


class Stub:
    """A Triton function that records its launches instead; ``ready`` are those that went past triton's checks."""

    __name__ = "stub"
    arg_names = ("x", "y", "BLOCK")

    def __init__(self):
        self.checked, self.ready = [], []

    def __getitem__(self, grid):
        def run(*pointers, **constants):
            self.checked.append((grid, pointers, constants))
            return self

        return run

    function, packed_metadata = 77, "metadata"

    def run(self, *arguments):
        self.ready.append(arguments)


@pytest.fixture
def stubbed(tmp_path, monkeypatch):
    graph = build()
    module = Program(
        emit_module(graph, steps(graph), MemoryLayout()), {"w": torch.zeros(COLUMNS, COLUMNS)}, folder=tmp_path
    ).module
    stub = Stub()
    row = {"grid": lambda BLOCK: (8 // BLOCK,), "constants": {"BLOCK": 4}, "options": {"num_warps": 2}}
    row["signature"] = {"x": "*fp32", "y": "*fp32", "BLOCK": "constexpr"}
    monkeypatch.setattr(module, "KERNELS", {"stub": row})
    monkeypatch.setattr(module, "COMPILED", {})
    monkeypatch.setattr(module, "INTERPRET", False)
    monkeypatch.setattr(module, "stream_of", lambda device: 5)
    return module, stub


def test_the_second_launch_goes_past_the_checks(stubbed):
    module, stub = stubbed
    x, y = torch.zeros(8), torch.zeros(8)
    for _ in range(3):
        module.launch(stub, x, y)
    assert stub.checked == [((2,), (x, y), {"BLOCK": 4, "num_warps": 2})]
    wanted = (2, 1, 1, 5, 77, "metadata", None, None, None, x.data_ptr(), y.data_ptr(), 4)
    assert stub.ready == [wanted, wanted]


def test_modules_of_other_sizes_share_what_triton_compiles(stubbed, monkeypatch):
    module, stub = stubbed
    monkeypatch.setattr(Stub, "arg_names", ("x", "n", "BLOCK"))
    x = torch.zeros(8)
    launched = []
    for size, block in ((32, 4), (48, 4), (33, 4), (35, 4), (2**31, 4), (48, 8)):
        row = {"grid": lambda n, BLOCK: (n // BLOCK,), "constants": {"n": size, "BLOCK": block}, "options": {}}
        row["signature"] = {"x": "*fp32", "n": "i32", "BLOCK": "constexpr"}
        monkeypatch.setattr(module, "KERNELS", {"stub": row})
        before = len(stub.checked)
        module.launch(stub, x)
        launched.append(len(stub.checked) - before)
    assert launched == [1, 0, 1, 0, 1, 1]  # 16 divides 32 and 48; numbers of 32 bits, and blocks
    assert [(given[0], *given[-2:]) for given in stub.ready] == [(12, 48, 4), (8, 35, 4)]


def test_unaligned_pointers_are_checked_each_time(stubbed):
    module, stub = stubbed
    x = torch.zeros(9)
    for _ in range(2):
        module.launch(stub, x[:8], x[1:])
    assert len(stub.checked) == 2
    assert not stub.ready


def test_triton_of_3_6_is_launched_without_its_wrapper(stubbed, monkeypatch):
    module, stub = stubbed
    direct = []

    class Launcher:
        global_scratch_size = profile_scratch_size = 0
        launch_cooperative_grid, launch_pdl = False, True

        def launch(self, *arguments):
            direct.append(arguments)

    monkeypatch.setattr(module, "LAUNCH_DIRECTLY", True)
    monkeypatch.setattr(Stub, "run", Launcher())
    x, y = torch.zeros(8), torch.zeros(8)
    for _ in range(2):
        module.launch(stub, x, y)
    assert len(stub.checked) == 1
    after = (None, None, "metadata", None, None, None, x.data_ptr(), y.data_ptr(), 4)
    assert direct == [(2, 1, 1, 5, 77, False, True, *after)]


def test_kernels_that_ask_for_memory_are_launched_by_triton(stubbed, monkeypatch):
    module, stub = stubbed
    calls = []

    class Launcher:
        global_scratch_size, profile_scratch_size = 64, 0

        def __call__(self, *arguments):
            calls.append(arguments)

    monkeypatch.setattr(module, "LAUNCH_DIRECTLY", True)
    monkeypatch.setattr(Stub, "run", Launcher())
    x, y = torch.zeros(8), torch.zeros(8)
    for _ in range(2):
        module.launch(stub, x, y)
    assert calls == [(2, 1, 1, 5, 77, "metadata", None, None, None, x.data_ptr(), y.data_ptr(), 4)]
