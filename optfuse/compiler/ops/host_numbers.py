"""Copy numbers from the host's memory, several together: a program does it before a call, emitted modules inside."""

from __future__ import annotations

import torch


def numbers_on(device: torch.device, numbers: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of tensors without dimensions from the host's memory, at addresses that are multiples of 16.

    All of one dtype go in one copy, for which the host does not wait: the memory that it reads belongs to this call,
    and torch keeps it until the copy has ended. What a recorded CUDA graph copies it would read again and again, so
    while one is recorded each number is copied by itself, which torch refuses.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return [x.to(device) for x in numbers]
    found = list(numbers)
    for dtype in dict.fromkeys(x.dtype for x in numbers):
        places = [k for k, x in enumerate(numbers) if x.dtype is dtype]
        shape = len(places), max(1, 16 // dtype.itemsize)
        staged = torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")
        torch.stack([numbers[k] for k in places], out=staged[:, 0])
        for k, x in zip(places, staged.to(device, non_blocking=True)[:, 0].unbind()):  # noqa: B905
            found[k] = x
    return found
