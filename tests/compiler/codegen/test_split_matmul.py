"""Matmuls in two parts write what one would have written, each part along whole vectors."""

import pytest
import torch

from optfuse.compiler.codegen.split_matmul import matmul_parts
from optfuse.compiler.ir.nodes import Buffer, LibraryCall, Origin, View

aten = torch.ops.aten


def tensor(shape, stride, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.empty_strided(shape, stride).normal_(generator=generator)


def call_of(m, k, n, strides, *, bias=False, dtype="bfloat16"):
    """An mm or addmm of (m, k) @ (k, n) and its buffers; ``strides``: of a, b and the result."""
    shapes = {"a": (m, k), "b": (k, n), "out": (m, n)}
    buffers = {name: Buffer(name, dtype, shapes[name], stride) for name, stride in zip(shapes, strides, strict=True)}
    args = [View(name, buffers[name].shape, buffers[name].stride) for name in ("a", "b")]
    if bias:
        buffers["bias"] = Buffer("bias", dtype, (n,), (1,))
        args.insert(0, View("bias", (n,), (1,)))
    target = "aten.addmm.default" if bias else "aten.mm.default"
    return LibraryCall("mm", target, tuple(args), (), ("out",), Origin("mm", target)), buffers


CASES = {
    "columns": (1024, 512, 1003, ((512, 1), (1, 512), (1008, 1)), "n"),
    "rows of a transposed operand": (1003, 1024, 512, ((1, 1008), (512, 1), (512, 1)), "m"),
    "terms": (1024, 1003, 512, ((1008, 1), (512, 1), (512, 1)), "k"),
}


@pytest.mark.spread(4)
@pytest.mark.parametrize("bias", [False, True], ids=["mm", "addmm"])
@pytest.mark.parametrize("case", CASES)
def test_two_parts_are_the_whole(case, bias):
    m, k, n, strides, axis = CASES[case]
    call, buffers = call_of(m, k, n, strides, bias=bias)
    parts = matmul_parts(call, buffers)
    assert len(parts) == 2
    memory = {name: tensor(b.shape, b.stride, seed) for seed, (name, b) in enumerate(buffers.items())}
    a, b = memory["a"], memory["b"]
    expected = a @ b + (memory["bias"] if bias else 0)

    def window(view):
        return memory[view.buffer].as_strided(view.shape, view.stride, view.offset)

    for part in parts:
        getattr(aten, part.overload.split(".")[1]).out(*map(window, part.operands), out=window(part.out))
    torch.testing.assert_close(memory["out"], expected, rtol=1e-4, atol=1e-3)
    large = max(parts, key=lambda part: part.operands[-1].shape[0] * part.operands[-1].shape[1] * part.out.shape[0])
    rows, terms, columns = *large.operands[-2].shape, large.operands[-1].shape[1]
    assert {"m": rows, "k": terms, "n": columns}[axis] == 1000


@pytest.mark.parametrize(
    ("m", "k", "n", "strides", "dtype"),
    [
        (1024, 512, 1000, ((512, 1), (1, 512), (1000, 1)), "bfloat16"),  # whole vectors already
        (1024, 512, 1003, ((512, 1), (1, 512), (1003, 1)), "bfloat16"),  # rows that start anywhere: nothing gained
        (1024, 512, 1003, ((512, 1), (1, 512), (1008, 1)), "float32"),
        (8, 512, 1003, ((512, 1), (1, 512), (1008, 1)), "bfloat16"),  # too small
        (1003, 512, 1003, ((1, 1008), (1, 512), (1008, 1)), "bfloat16"),  # ragged twice
    ],
)
def test_others_stay_whole(m, k, n, strides, dtype):
    assert matmul_parts(*call_of(m, k, n, strides, dtype=dtype)) == ()
