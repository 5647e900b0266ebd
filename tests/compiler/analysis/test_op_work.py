"""Arithmetic of library calls and scans."""

from __future__ import annotations

import pytest

from optfuse.compiler.analysis.op_work import library_work, nest_work
from optfuse.compiler.ir.nodes import (
    Buffer,
    Call,
    LibraryCall,
    Load,
    LoopNest,
    Origin,
    Reduction,
    Result,
    Scan,
    Store,
    View,
    ivar,
    rvar,
)
from optfuse.problem.cost import GOP
from optfuse.problem.device_files import load_device
from optfuse.problem.instance import Work

BATCH, HEADS, ROWS, COLUMNS, WIDTH = 2, 4, 5, 7, 8


def view(*shape: int) -> View:
    return View("x", shape, (0,) * len(shape))


@pytest.mark.parametrize("value_width", [8, 3])
@pytest.mark.parametrize("groups", [4, 1])
@pytest.mark.parametrize(
    ("target", "products"),
    [
        ("aten._scaled_dot_product_flash_attention.default", (1, 1)),
        ("aten.scaled_dot_product_attention.default", (1, 1)),
        ("optfuse.attention.default", (1, 1)),
        ("aten._scaled_dot_product_flash_attention_backward.default", (3, 2)),
        ("optfuse.attention_backward.default", (3, 2)),
    ],
)
def test_attention_is_priced_by_its_matrix_products(
    target: str, products: tuple[int, int], groups: int, value_width: int
) -> None:
    query, key = view(BATCH, HEADS, ROWS, WIDTH), view(BATCH, groups, COLUMNS, WIDTH)
    tensors = (query, key, view(BATCH, groups, COLUMNS, value_width))
    if "backward" in target:
        tensors = (view(BATCH, HEADS, ROWS, value_width), *tensors)
    call = LibraryCall("a", target, tensors, (), ("y",), Origin("a", target))
    scores = BATCH * HEADS * ROWS * COLUMNS
    expected = 2 * scores * (products[0] * WIDTH + products[1] * value_width)
    assert library_work(call, {}).tensor == expected


@pytest.mark.parametrize(
    ("dtype", "measured", "tolerance"), [("bfloat16", 236, 0.25), ("float32", 449, 0.25)], ids=["bfloat16", "float32"]
)
def test_a_matmul_is_priced_by_its_type(dtype: str, measured: float, tolerance: float) -> None:
    """Beside 236 and, with TF32, 449 us, which one H100 took for 2048 x 768 x 50264."""
    device, item = load_device("h100"), 2 if dtype == "bfloat16" else 4
    shapes = {"a": (2048, 768), "b": (768, 50264), "y": (2048, 50264)}
    buffers = {name: Buffer(name, dtype, shape, (shape[1], 1)) for name, shape in shapes.items()}
    operands = tuple(View(name, shapes[name], (shapes[name][1], 1)) for name in "ab")
    call = LibraryCall("m", "aten.mm.default", operands, (), ("y",), Origin("m", ""))
    moved = item * sum(a * b for a, b in shapes.values())
    work = library_work(call, buffers, device, moved)
    predicted = device.launch_ps + work.tensor * device.tensor_ps_per_gop / GOP
    assert predicted == pytest.approx(measured * 1e6, rel=tolerance)


def test_a_scan_combines_each_point_twice() -> None:
    x, a, b = Load("x", 6 * ivar(0) + rvar(0), "float32"), Result(0, "float32"), Result(1, "float32")
    scan = Scan((Call("neg", (x,), "float32"),), (Call("add", (a, Call("exp", (b,), "float32")), "float32"),))
    nest = LoopNest("scan", (4,), (6,), (), (Store("y", 6 * ivar(0) + rvar(0), a),), Origin("scan", ""), scan)
    assert nest_work(nest) == Work(fp32=(1 + 2) * 24, special=2 * 24)


@pytest.mark.parametrize(("k", "kernels"), [(1, 1), (8, 2)])
def test_a_choice_from_rows_is_priced_by_its_kernels_and_elements(k: int, kernels: int) -> None:
    """Within a third of 4.5, 10 and 434 us, which one H200 took for 16 and for 65536 rows of 128."""
    device = load_device("h200")
    for rows, measured in ((16, {1: 4.5, 8: 10.3}[k]), (65536, {1: 339, 8: 434}[k])):
        call = LibraryCall("t", "aten.topk.default", (view(rows, 128), k), (), ("v", "i"), Origin("t", ""))
        work = library_work(call, {}, device, rows * (128 * 4 + k * 12))
        predicted = device.launch_ps + work.tensor * device.tensor_ps_per_gop / GOP
        assert predicted == pytest.approx(measured * 1e6, rel=0.34), kernels


def test_a_position_of_an_extremum_is_dear() -> None:
    """65536 rows of 128: a further round of a choice took an H200 16 us (arithmetic, of which memory hides none)."""
    x = Load("x", 128 * ivar(0) + rvar(0), "float32")
    folds = (Reduction("max", x), Reduction("argmax", x), Reduction("min", x))
    stores = (Store("y", ivar(0), Result(1, "int64")),)
    work = nest_work(LoopNest("round", (65536,), (128,), folds, stores, Origin("round", "")))
    assert work.fp32 * load_device("h200").fp32_ps_per_gop / GOP == pytest.approx(16e6, rel=0.5)


def test_attention_in_a_wrapper_of_random_draws_is_priced_as_without() -> None:
    operands = tuple(view(2, 4, 128, 64) for _ in range(3))
    name = "_scaled_dot_product_flash_attention"
    expected = library_work(LibraryCall("a", f"aten.{name}.default", operands, (), ("y",), Origin("a", "")), {})
    assert expected.tensor
    for stem, args in (("run_and_save_rng_state", operands), ("run_with_rng_state_1", (view(16), *operands))):
        target = f"optfuse_opaque.{stem}_{name}_3.default"
        assert library_work(LibraryCall("a", target, args, (), ("y",), Origin("a", target)), {}) == expected
