"""Which device a graph's loops run on.

What a graph keeps elsewhere, such as numbers in the host's memory of a graph on a GPU, is computed by library calls
alone: a kernel reads a copy of it, and would write to one.
"""

from __future__ import annotations

from collections.abc import Iterable

HOST = "cpu"


def main_device(devices: Iterable[str]) -> str:
    """The device of the kernels, of all those that a graph's tensors are on: the first that is not the host."""
    return next((device for device in devices if device != HOST), HOST)
