"""Where Triton kernels run in this process: compiled for a GPU, or by Triton's interpreter where there is none.

Triton reads TRITON_INTERPRET when a function is decorated, so the choice must be made before any kernel is. Importing
``torch`` leaves triton alone, but torch.compile and torch.export import it, and its own library of functions is then
decorated for compilation. ``prepare`` copes with both orders.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch

from optfuse.problem.device_files import DEFAULT_DEVICE, device_of

Mode = Literal["compile", "interpret"]

logger = logging.getLogger("optfuse")

_VARIABLE = "TRITON_INTERPRET"
_ON = ("1", "true", "on", "yes", "y")


def mode() -> Mode:
    """What ``prepare`` chooses: interpretation when there is no GPU or when TRITON_INTERPRET asks for it."""
    if os.environ.get(_VARIABLE, "").lower() in _ON or not torch.cuda.is_available():
        return "interpret"
    return "compile"


def prepare() -> Mode:
    """Make this process ready to define and launch Triton kernels, and say how they run. Idempotent.

    Without a GPU this sets TRITON_INTERPRET=1 for the process and its children, mends the interpreter
    (``interpreter_patch``), and logs one line.
    """
    chosen = mode()
    if chosen == "compile":
        return chosen
    announced = os.environ.get(_VARIABLE, "").lower() in _ON
    os.environ[_VARIABLE] = "1"
    if "triton" in sys.modules:
        _reinterpret_library()
    importlib.import_module("optfuse.runtime.interpreter_patch").apply()
    if not announced:
        logger.warning("no GPU: Triton kernels run in its interpreter, which checks their results and does not race")
    return chosen


@cache
def device_here() -> str:
    """The name of the shipped device for this process's GPU; for an unknown GPU the default one, which is logged."""
    if mode() == "interpret" or not torch.cuda.is_available():
        return DEFAULT_DEVICE
    gpu = torch.cuda.get_device_name()
    found = device_of(gpu)
    if found is None:
        logger.warning(
            "no device file is of a %s: schedules are priced for an %s; `optfuse calibrate` makes a file, which the "
            "option device takes",
            gpu,
            DEFAULT_DEVICE,
        )
    return found or DEFAULT_DEVICE


def _reinterpret_library() -> None:
    """Turn the functions of triton's own library (tl.sum, tl.sigmoid, ...) from compiled to interpreted ones.

    They are the only objects whose meaning is fixed when triton is imported; everything else looks at the variable
    when it is used. Nothing is lost: without a GPU the compiled ones cannot run.
    """
    # imported here because the variable had to be set first
    from triton.language import tensor
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    interpreted: dict[int, Any] = {}

    def convert(function: Any) -> Any:
        return interpreted.setdefault(id(function), InterpretedFunction(function.fn))

    for name, module in list(sys.modules.items()):
        if module is None or not (name == "triton" or name.startswith("triton.")):
            continue
        for attribute, value in list(vars(module).items()):
            if isinstance(value, JITFunction):
                setattr(module, attribute, convert(value))
    for attribute, value in list(vars(tensor).items()):
        if isinstance(value, JITFunction):
            setattr(tensor, attribute, _method(convert(value)))


def _method(function: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call
