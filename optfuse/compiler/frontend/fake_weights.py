"""Models whose parameters have shapes and no memory, for what is predicted without being run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


@contextmanager
def fake_parameters() -> Iterator[None]:
    """Within it, modules that are made get parameters that are fake tensors; their buffers are real ones.

    Passes of the frontend read the values of buffers (masks, tables of positions), never those of parameters.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    own = nn.Module.register_parameter

    def register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not isinstance(param, FakeTensor):  # a tied one is registered again
            with mode:
                param = nn.Parameter(mode.from_tensor(param.detach()), param.requires_grad)
        own(module, name, param)

    nn.Module.register_parameter = register
    try:
        yield
    finally:
        nn.Module.register_parameter = own
