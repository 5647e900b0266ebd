"""Made-up operands: the layout of the buffers, and positions that stay inside of what they index."""

from __future__ import annotations

import torch

from optfuse.compiler.codegen.triton_kernel import emit_kernel
from optfuse.compiler.ir.nodes import Load, tvar
from optfuse.tuning.operands import index_ends, make_operands
from tests.compiler.codegen.specs import Kernel, call, const, i0, i1, padded_and_gathered, softmax

CPU = torch.device("cpu")


def test_tensors_have_the_buffers_layout():
    k = Kernel((3, 4))
    k.input("a", 3, 4, dtype="bfloat16", stride=(1, 3))
    k.input("flag", 3, 4, dtype="bool", stride=(0, 1))
    k.pointwise("out", call("where", k.load("flag", i0, i1), k.load("a", i0, i1), const(0.0)))
    spec = k.spec("out")
    names = emit_kernel(spec, k.buffers).pointers
    made = make_operands(names, k.buffers, {}, CPU)
    for name, tensor in zip(names, made, strict=True):
        b = k.buffers[name]
        assert (tuple(tensor.shape), tensor.stride(), str(tensor.dtype)) == (b.shape, b.stride, f"torch.{b.dtype}")


def test_positions_are_inside():
    spec, buffers = padded_and_gathered(500, 16, "float32")
    ends = index_ends(spec, buffers)
    assert ends == {"ids": 5}
    (ids,) = make_operands(("ids",), buffers, ends, CPU)
    assert set(ids.tolist()) == set(range(5))


def test_nothing_is_indexed():
    assert index_ends(*softmax(4, 8, "float32")) == {}


def gathering(position, registers: bool = False):
    k = Kernel((6, 8))
    k.input("ids", 6, dtype="int64")
    k.input("table", 5, 8)
    if registers:
        k.pointwise("made", call("add", Load("ids", i0, "int64"), const(1, "int64")), dtype="int64")
        position = Load("made", 8 * i0 + i1, "int64")
    k.pointwise("out", Load("table", 8 * tvar(0) + i1, "float32", indirect=(position,)))
    return k.spec("out"), k.buffers


def test_negative_positions_are_followed_through_their_mending():
    ids = Load("ids", i0, "int64")
    wrapped = call("where", call("lt", ids, const(0, "int64"), dtype="bool"), call("add", ids, const(5, "int64")), ids)
    assert index_ends(*gathering(wrapped)) == {"ids": 5}


def test_computed_positions_are_not_followed():
    assert index_ends(*gathering(call("add", Load("ids", i0, "int64"), const(1, "int64")))) is None
    assert index_ends(*gathering(None, registers=True)) is None
