"""The host program on graphs of library calls alone: memory, lifetimes, views, outputs."""

import re

import pytest
import torch

from optfuse.compiler.codegen.host_program import MemoryLayout, host_program
from optfuse.compiler.codegen.kernel_source import KernelSource
from optfuse.compiler.codegen.library_calls import OUT_VARIANTS, owns_results, takes_out
from optfuse.compiler.codegen.module import emit_module
from optfuse.compiler.codegen.tiles import TileConfig
from optfuse.compiler.ir.nodes import Buffer, LibraryCall, LoopGraph, Origin, TorchValue, View
from optfuse.compiler.ir.verify_graph import verify
from optfuse.errors import PlanError
from optfuse.runtime.program import Program


def buffer(name, *shape, kind="temporary", dtype="float32", stride=None, device="cpu"):
    if stride is None:
        stride = tuple(torch.empty(shape, device="meta").stride())
    return Buffer(name, dtype, shape, stride, kind, device)


def whole(b):
    return View(b.name, b.shape, b.stride)


def call(name, target, args, outputs, kwargs=(), **more):
    return LibraryCall(name, target, tuple(args), tuple(kwargs), tuple(outputs), Origin(name, target), **more)


def graph(buffers, ops, outputs):
    inputs = tuple(b.name for b in buffers if b.kind == "input")
    constants = tuple(b.name for b in buffers if b.kind == "constant")
    made = LoopGraph("test", tuple(buffers), inputs, constants, tuple(ops), tuple(outputs))
    verify(made)
    return made


def program(g, memory=None, constants=None, tmp_path=None):
    return Program(emit_module(g, g.ops, memory or MemoryLayout()), constants, folder=tmp_path)


@pytest.fixture
def chain():
    """y = (x @ w).t() @ x, and exp of it."""
    x, w = buffer("x", 4, 6, kind="input"), buffer("w", 6, 4, kind="input")
    h, y, e = buffer("h", 4, 4), buffer("y", 4, 6), buffer("e", 4, 6)
    flipped = View("h", (4, 4), (1, 4))
    ops = [
        call("mm", "aten.mm.default", [whole(x), whole(w)], ["h"]),
        call("mm_1", "aten.mm.default", [flipped, whole(x)], ["y"]),
        call("exp", "aten.exp.default", [whole(y)], ["e"]),
    ]
    return graph([x, w, h, y, e], ops, [whole(e)])


def expected(x, w):
    return ((x @ w).t() @ x).exp()


LAYOUT = MemoryLayout(256, {"h": 0, "y": 128})


@pytest.mark.parametrize("memory", [MemoryLayout(), LAYOUT], ids=["individual", "arena"])
def test_chain_of_library_calls(chain, memory, tmp_path):
    x, w = torch.randn(4, 6), torch.randn(6, 4)
    (out,) = program(chain, memory, tmp_path=tmp_path).run([x, w])
    torch.testing.assert_close(out, expected(x, w))


def test_library_calls_write_into_the_arena(chain):
    text = host_program(chain, chain.ops, LAYOUT)
    assert "torch.mm(x, w, out=h)" in text
    assert "arena = scratch(256, device)" in text
    assert "y = window(arena_float32, (4, 6), (6, 1), 32)" in text
    assert "e = aten.exp.default(y)" in text


def test_dead_buffers_are_deleted_at_once(chain):
    lines = host_program(chain, chain.ops, MemoryLayout()).splitlines()
    deleted = [line.split("del ")[1] for line in lines if "del " in line]
    assert deleted == ["w", "x, h", "y"]
    assert lines.index("    del w") < next(k for k, line in enumerate(lines) if "y = aten.mm" in line)


def test_only_donated_inputs_are_deleted(chain):
    text = host_program(chain, chain.ops, MemoryLayout(donated=frozenset({"x"})))
    assert [line.split("del ")[1] for line in text.splitlines() if "del " in line] == ["x, h", "y"]


def test_inputs_die_during_the_call(chain, tmp_path):
    """The list is emptied, so that an input without another owner is freed after its last use."""
    p = program(chain, tmp_path=tmp_path)
    inputs = [torch.randn(4, 6), torch.randn(6, 4)]
    p.module.call(inputs, {})
    assert inputs == []


def test_output_buffers_do_not_live_in_the_arena(chain, tmp_path):
    memory = MemoryLayout(384, {"h": 0, "y": 128, "e": 256})
    p = program(chain, memory, tmp_path=tmp_path)
    (out,) = p.run([torch.randn(4, 6), torch.randn(6, 4)])
    assert out.untyped_storage().nbytes() == 4 * 6 * 4


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (MemoryLayout(256, {"h": 8}), "multiples of 16"),
        (MemoryLayout(32, {"h": 0}), "inside the arena"),
        (MemoryLayout(256, {"x": 0}), "no temporary"),
        (MemoryLayout(256, {"nobody": 0}), "no temporary"),
    ],
)
def test_impossible_plans_are_refused(chain, memory, message):
    with pytest.raises(PlanError, match=message):
        host_program(chain, chain.ops, memory)


def test_steps_out_of_order_are_refused(chain):
    with pytest.raises(PlanError, match="exp reads y before"):
        host_program(chain, chain.ops[::-1], MemoryLayout())


def test_outputs_of_every_kind(tmp_path):
    """The same tensor twice, views of an input and of a result, the input itself, scalars and None."""
    x, c = buffer("x", 4, 6, kind="input"), buffer("c", 3, kind="constant")
    y = buffer("y", 4, 6)
    outputs = [
        whole(y),
        whole(y),
        whole(x),
        View("x", (2, 3), (12, 2), 7),
        View("y", (24,), (1,)),
        View("y", (6, 4), (1, 6)),
        whole(c),
        3,
        2.5,
        float("inf"),
        True,
        None,
    ]
    p = program(
        graph([x, c, y], [call("neg", "aten.neg.default", [whole(x)], ["y"])], outputs),
        constants={"c": torch.arange(3.0)},
        tmp_path=tmp_path,
    )
    base = torch.randn(30)
    given = base.as_strided((4, 6), (6, 1), 3)
    got = p.run([given])
    assert got[0] is got[1]
    assert got[2] is given
    assert torch.equal(got[3], base.as_strided((2, 3), (12, 2), 3 + 7))
    assert got[3].untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    assert torch.equal(got[4], -given.reshape(24))
    assert torch.equal(got[5], -given.t())
    assert got[6].tolist() == [0, 1, 2]
    assert got[7:] == [3, 2.5, float("inf"), True, None]


def test_library_results_of_other_strides_are_adapted(tmp_path):
    """The plan says channels last; the library returns its own layout."""
    x, w = buffer("x", 2, 3, 5, 5, kind="input"), buffer("w", 4, 3, 3, 3, kind="input")
    y = buffer("y", 2, 4, 3, 3, stride=(36, 1, 12, 4))
    arguments = [whole(x), whole(w), None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1]
    g = graph([x, w, y], [call("conv", "aten.convolution.default", arguments, ["y"])], [whole(y)])
    a, b = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    (out,) = program(g, tmp_path=tmp_path).run([a, b])
    assert out.stride() == (36, 1, 12, 4)
    torch.testing.assert_close(out, torch.conv2d(a, b))


def test_several_results_some_unused(tmp_path):
    x = buffer("x", 4, 6, kind="input")
    v, i = buffer("v", 4, 2), buffer("i", 4, 2, dtype="int64")
    both = graph([x, v, i], [call("t", "aten.topk.default", [whole(x), 2], ["v", "i"])], [whole(i), whole(v)])
    second = graph([x, i], [call("t", "aten.topk.default", [whole(x), 2], [None, "i"])], [whole(i)])
    a = torch.randn(4, 6)
    values, indices = a.topk(2)
    got = program(both, tmp_path=tmp_path).run([a])
    assert torch.equal(got[0], indices)
    assert torch.equal(got[1], values)
    assert torch.equal(program(second, tmp_path=tmp_path).run([a])[0], indices)


def test_mutation_in_place_by_a_library_call(tmp_path):
    x, k, v = buffer("x", 5, kind="input"), buffer("k", 2, kind="input", dtype="int64"), buffer("v", 2, kind="input")
    op = call("put", "aten.index_put_.default", [whole(x), (whole(k),), whole(v), True], [None], mutates=("x",))
    p = program(graph([x, k, v], [op], [whole(x)]), tmp_path=tmp_path)
    a = torch.zeros(5, requires_grad=True)
    (out,) = p.run([a, torch.tensor([1, 1]), torch.tensor([2.0, 3.0])])
    assert a.tolist() == [0, 5, 0, 0, 0]
    assert out is a


def test_factories_take_the_device_of_the_inputs(tmp_path):
    x = buffer("x", 3, kind="input", device="cuda:0")
    z = buffer("z", 2, dtype="float64", device="cuda:0")
    kwargs = [("dtype", TorchValue("dtype", "float64")), ("device", TorchValue("device", "cuda:0"))]
    g = graph([x, z], [call("full", "aten.full.default", [(2,), float("-inf")], ["z"], kwargs)], [whole(z)])
    text = host_program(g, g.ops, MemoryLayout())
    assert 'aten.full.default([2], float("-inf"), dtype=torch.float64, device=device)' in text
    (out,) = program(g, tmp_path=tmp_path).run([torch.ones(3)])
    assert out.tolist() == [-float("inf")] * 2


def test_a_program_of_no_inputs(tmp_path):
    z = buffer("z", 2)
    (out,) = program(graph([z], [call("ones", "aten.ones.default", [(2,)], ["z"])], [whole(z)]), tmp_path=tmp_path).run(
        []
    )
    assert out.tolist() == [1, 1]


def test_empty_tensors_need_no_writer(tmp_path):
    x, e, y = buffer("x", 3, kind="input"), buffer("e", 0), buffer("y", 3)
    op = call("cat", "aten.cat.default", [(View("e", (0,), (1,)), whole(x))], ["y"])
    g = LoopGraph("test", (x, e, y), ("x",), (), (op,), (whole(y), whole(e)))
    got = program(g, MemoryLayout(128, {"e": 0}), tmp_path=tmp_path).run([torch.arange(3.0)])
    assert got[0].tolist() == [0, 1, 2]
    assert got[1].shape == (0,)


def test_names_do_not_collide_with_the_module(tmp_path):
    names = ["torch", "window", "len", "arena", "device", "device_", "inputs", "aten", "_"]
    buffers = [buffer(name, 2, kind="input") for name in names]
    outs = [buffer(f"{name}_out", 2) for name in names]
    ops = [call(o.name, "aten.neg.default", [whole(b)], [o.name]) for b, o in zip(buffers, outs, strict=True)]
    p = program(graph([*buffers, *outs], ops, [whole(o) for o in outs]), tmp_path=tmp_path)
    got = p.run([torch.full((2,), float(k)) for k in range(len(names))])
    assert [out[0].item() for out in got] == [-float(k) for k in range(len(names))]


@pytest.mark.parametrize("target", [name for name in OUT_VARIANTS if name.startswith("aten.")])
def test_out_variants_exist_and_take_the_same_arguments(target):
    def schema(name):
        overload = torch.ops
        for part in name.split("."):
            overload = getattr(overload, part)
        return overload._schema  # noqa: SLF001

    plain, out = schema(target), schema(OUT_VARIANTS[target])
    assert [a.name for a in plain.arguments] == [a.name for a in out.arguments if not a.is_out]
    assert len([a for a in out.arguments if a.is_out]) == len(plain.returns) == 1


def test_takes_out():
    assert takes_out(call("mm", "aten.mm.default", [], ["y"]))
    assert not takes_out(call("conv", "aten.convolution.default", [], ["y"]))
    assert not takes_out(call("put", "aten.index_put_.default", [], [None], mutates=("x",)))


def test_out_variants_honour_planned_strides(tmp_path):
    x = buffer("x", 3, 5, kind="input")
    y = buffer("y", 3, 3, stride=(1, 3))
    z = buffer("z", 3, 6)
    ops = [
        call("mm", "aten.mm.default", [whole(x), View("x", (5, 3), (1, 5))], ["y"]),
        call("cat", "aten.cat.default", [(whole(y), whole(y)), 1], ["z"]),
    ]
    p = program(graph([x, y, z], ops, [whole(z)]), MemoryLayout(128, {"y": 16}), tmp_path=tmp_path)
    a = torch.randn(3, 5)
    torch.testing.assert_close(p.run([a])[0], torch.cat([a @ a.t()] * 2, 1))


@pytest.mark.parametrize(
    ("target", "owns"),
    [
        ("aten.convolution.default", True),
        ("aten.scaled_dot_product_attention.default", True),
        ("optfuse.attention.default", True),
        ("aten.view.default", False),
        ("aten.contiguous.default", False),  # may return its argument
        ("optfuse.to_depth.default", False),
        ("aten.relu_.default", False),
    ],
)
def test_whose_memory_a_result_has(target, owns):
    assert owns_results(target) is owns


def test_an_heir_takes_the_place_of_what_dies():
    a, b, d, e = buffer("a", 8, 8, kind="input"), buffer("b", 8, 8), buffer("d", 8, 8), buffer("e", 8, 8)
    first, last = (
        call("mm", "aten.mm.default", [whole(a), whole(a)], ["b"]),
        call("neg", "aten.neg.default", [whole(d)], ["e"]),
    )
    middle = call("mm_1", "aten.mm.default", [whole(b), whole(a)], ["d"])
    g = graph([a, b, d, e], [first, middle, last], [whole(e)])
    steps = (first, _kernel("b", "d"), last)
    text = host_program(g, steps, MemoryLayout(heirs={"d": "b"}))
    assert text.index("d = window(b, (8, 8), (8, 1))") < text.index("launch(copy, b, d)") < text.index("del b")
    for wrong in ("a", "e"):  # the caller's, and what is not there yet
        with pytest.raises(PlanError, match=f"place of {wrong}"):
            host_program(g, steps, MemoryLayout(heirs={"d": wrong}))


def test_a_kernel_writes_nothing_on_the_host_of_a_gpu():
    x, y = buffer("x", 8, 8, kind="input", device="cuda:0"), buffer("y", 8, 8)
    g = LoopGraph("test", (x, y), ("x",), (), (), (whole(y),))
    with pytest.raises(PlanError, match="copy writes y, which is on cpu; kernels run on cuda:0"):
        host_program(g, (_kernel("x", "y"),), MemoryLayout())


def test_an_heir_is_on_the_same_device():
    x, n, r, y = (
        buffer("x", kind="input", device="cuda:0"),
        buffer("n", kind="input"),
        buffer("r"),
        buffer("y", device="cuda:0"),
    )
    root = call("sqrt", "aten.sqrt.default", [whole(n)], ["r"])
    last = call("mul", "aten.mul.Tensor", [whole(x), whole(y)], ["z"])
    z = buffer("z", device="cuda:0")
    g = graph([x, n, r, y, z], [root, call("mul_1", "aten.mul.Tensor", [whole(x), whole(r)], ["y"]), last], [whole(z)])
    with pytest.raises(PlanError, match="y take the place of r"):
        host_program(g, (root, _kernel("r", "y"), last), MemoryLayout(heirs={"y": "r"}))


def test_numbers_stay_on_the_host_where_operators_there_use_them(tmp_path):
    x, n, m, c, d = (
        buffer("x", 2, kind="input", device="cuda:0"),
        buffer("n", kind="input"),
        buffer("m", kind="input"),
        buffer("c", kind="constant"),
        buffer("d", kind="constant"),
    )
    r, t, y = buffer("r"), buffer("t", 2, device="cuda:0"), buffer("y", 2, device="cuda:0")
    ops = [
        call("add", "aten.add.Tensor", [whole(n), whole(c)], ["r"]),
        call("mul", "aten.mul.Tensor", [whole(x), whole(m)], ["t"]),
        call("mul_1", "aten.mul.Tensor", [whole(t), whole(d)], ["y"]),
    ]
    g = graph([x, n, m, c, d, r, t, y], ops, [whole(y), whole(r)])
    text = emit_module(g, g.ops, MemoryLayout())
    assert 'HOST = ("n", "c")' in text
    assert "DRAWS_ON_HOST" not in text
    program = Program(text, {"c": torch.tensor(1.0), "d": torch.tensor(2.0)}, folder=tmp_path)
    assert [value.tolist() for value in program.run([torch.ones(2), torch.tensor(3.0), torch.tensor(5.0)])] == [
        [10, 10],
        4,
    ]
    far = [torch.ones(2, device="meta"), torch.tensor(3.0), torch.tensor(5.0)]
    given, main = program.accept(far)
    assert [value.device.type for value in given] == ["meta", "cpu", "meta"]
    placed = program._constants_on({"cuda:0": main, "cpu": given[1].device}, main)  # noqa: SLF001
    assert [placed[name].device.type for name in "cd"] == ["cpu", "cpu"], "there are numbers on the host"
    placed = program._constants_on({"cuda:0": main}, main)  # noqa: SLF001
    assert [placed[name].device.type for name in "cd"] == ["cpu", "meta"]


def test_a_gpu_program_whose_inputs_are_all_on_the_host_runs_on_the_gpu(tmp_path):
    n, y = buffer("n", 2, kind="input"), buffer("y", 2, device="cuda:0")
    ops = [call("ones", "aten.ones_like.default", [whole(n)], ["y"], [("device", TorchValue("device", "cuda:0"))])]
    g = graph([n, y], ops, [whole(y)])
    program = Program(emit_module(g, g.ops, MemoryLayout()), folder=tmp_path)
    program.module.DEVICE = torch.device("meta")
    assert program.accept([torch.ones(2)])[1] == torch.device("meta")
    x = buffer("x", kind="input", device="cuda:0")
    assert "MAKES_DEVICE" not in emit_module(graph([n, x, y], ops, [whole(y)]), g.ops, MemoryLayout())


def test_what_draws_on_the_host_says_so(tmp_path):
    x, r, y = buffer("x", 2, kind="input", device="cuda:0"), buffer("r"), buffer("y", 2, device="cuda:0")
    kwargs = [("device", TorchValue("device", "cpu"))]
    ops = [
        call("rand", "aten.rand.default", [()], ["r"], kwargs, random=True),
        call("mul", "aten.mul.Tensor", [whole(x), whole(r)], ["y"]),
    ]
    g = graph([x, r, y], ops, [whole(y)])
    assert "DRAWS_ON_HOST = True" in emit_module(g, g.ops, MemoryLayout())
    here = graph([buffer("x", 2, kind="input"), r, buffer("y", 2)], ops, [whole(y)])
    assert "DRAWS_ON_HOST" not in emit_module(here, here.ops, MemoryLayout())


def _kernel(read, written):
    tile = TileConfig((("XBLOCK", 64),), 4, 1, "none")
    return KernelSource("copy", "", (read, written), (written,), (), tile, tile, ((64, "XBLOCK"),))


def test_results_that_nothing_reads_may_be_absent(tmp_path):
    """Attention on a GPU returns None for the logarithms that only gradients need."""
    x = buffer("x", 4, 6, kind="input")
    values, places, e = buffer("values", 4, 6), buffer("places", 4, 6, dtype="int64"), buffer("e", 4, 6)
    ops = [
        call("sort", "aten.sort.default", [whole(x)], ["values", "places"]),
        call("exp", "aten.exp.default", [whole(values)], ["e"]),
    ]
    made = graph([x, values, places, e], ops, [whole(e)])
    text = host_program(made, made.ops, MemoryLayout())
    assert "values = planned(values" in text
    assert "planned(places" not in text
    assert re.search(r"del .*\bplaces\b", text)
    watched = host_program(made, made.ops, MemoryLayout(), watched=True)
    assert '"places"' not in watched


def test_what_a_call_waits_for_is_freed_after_it():
    x, y, e = buffer("x", 4, 6, kind="input"), buffer("y", 4, 6), buffer("e", 4, 6)
    ops = [
        call("exp", "aten.exp.default", [whole(x)], ["y"]),
        call("sin", "aten.sin.default", [whole(x)], ["e"], holds=("y",)),
    ]
    lines = host_program(graph([x, y, e], ops, [whole(e)]), ops, MemoryLayout()).splitlines()
    assert next(k for k, line in enumerate(lines) if "del" in line and "y" in line) > lines.index(
        "    e = aten.sin.default(x)"
    )
