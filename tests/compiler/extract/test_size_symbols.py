"""The fusion problem of a graph for a range of sizes."""

from __future__ import annotations

from dataclasses import replace

from optfuse.compiler.extract.extraction import extract
from optfuse.problem.device_files import load_device
from tests.compiler.ir.graphs import update_graph


def test_kernels_of_a_range_share_no_launches_whatever_their_buffers() -> None:
    """A kernel of fixed sizes may be given a size as a number, which a shared launch does not hand on."""
    fixed = update_graph()
    found = [extract(g, load_device("h200")).instance.devices for g in (fixed, replace(fixed, symbols=(("s", 4),)))]
    assert [devices[0].shared_ps > 0 for devices in found] == [True, False]
