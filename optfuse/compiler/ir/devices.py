"""The device on which a graph's loops run.

Tensors on another device, such as scalars in the host's memory, are computed by library calls alone; kernels read
copies of them.
"""

from __future__ import annotations

from collections.abc import Iterable

HOST = "cpu"


def main_device(devices: Iterable[str]) -> str:
    """The device of the kernels among those of a graph's tensors: the first that is not the host."""
    return next((device for device in devices if device != HOST), HOST)
