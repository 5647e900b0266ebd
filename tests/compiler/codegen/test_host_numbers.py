"""Numbers in the host's memory that kernels read: copied together, once for all kernels, and again when written."""

from __future__ import annotations

from optfuse.compiler.codegen.host_numbers import HostNumbers
from optfuse.compiler.codegen.kernel_source import KernelSource
from optfuse.compiler.codegen.tiles import TileConfig


def kernel(*pointers: str) -> KernelSource:
    tile = TileConfig((), 1, 1, "none")
    return KernelSource("kernel", "", pointers, (), (), tile, tile, ())


def test_numbers_are_copied_together_and_once() -> None:
    numbers = HostNumbers({"a": "a", "b": "b_", "c": "c"}, frozenset({"c"}), cut=False)
    assert numbers.copied(kernel("x")) == []
    assert numbers.copied(kernel("x", "a", "b", "c", "a")) == [
        "    c_there1 = c.to(device)",  # which is there already: a program moves such inputs before a call
        "    numbers = [a, b_]",
        "    (a_there1, b__there1) = numbers_on(device, numbers)",
    ]
    assert numbers.there == {"a": "a_there1", "b": "b__there1", "c": "c_there1"}
    assert numbers.copied(kernel("a", "x", "c")) == []
    numbers.forget(["a", "x"])
    assert numbers.copied(kernel("a", "b")) == ["    numbers = [a]", "    (a_there1,) = numbers_on(device, numbers)"]


def test_they_are_copied_outside_of_cuda_graphs_under_names_of_their_own() -> None:
    numbers = HostNumbers({"a": "a", "b": "a_there1"}, frozenset(), cut=True)
    *_, last = numbers.copied(kernel("a"))
    assert last == '    (a_there2,) = apart("reads numbers from host memory", numbers_on, device, numbers)'
