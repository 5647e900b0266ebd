"""An emitted module that can be called: checks its inputs, keeps its constants where the inputs are, and runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from optfuse.compiler.ops.host_numbers import numbers_on
from optfuse.errors import InvalidInputError, PlanError
from optfuse.runtime.environment import mode
from optfuse.runtime.loader import load_source
from optfuse.runtime.seen_inputs import MOST_KINDS, Seen, seen

Value = torch.Tensor | bool | int | float | None


@dataclass(frozen=True, slots=True)
class Expected:
    """What the module was generated for: a row of its INPUTS or CONSTANTS. ``device`` is the planned one."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    mutated: bool = False

    @staticmethod
    def of(row: Sequence[Any]) -> Expected:
        """Read a row of a module's table."""
        name, dtype, shape, stride, device, *mutated = row
        return Expected(name, getattr(torch, dtype), tuple(shape), tuple(stride), device, any(mutated))

    def strided_as(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's elements lie as planned (the stride of a dimension of one element means nothing)."""
        stride = tensor.stride()
        if stride == self.stride or 0 in self.shape:
            return True
        return all(n == 1 or a == b for n, a, b in zip(self.shape, stride, self.stride, strict=True))


_NOTHING = contextlib.nullcontext()

#: Gives so many bytes on a device.
Take = Callable[[int, torch.device], torch.Tensor]
#: Calls, for a reason, a function with arguments that no CUDA graph can hold: ``compiler.codegen.uncaptured_steps``.
Apart = Callable[..., Any]
#: Makes of the function that launches a kernel another one.
Launched = Callable[[Callable[..., None]], Callable[..., None]]
#: Gives memory of a device that holds some addresses: ``compiler.codegen.launch_table``.
Tabulate = Callable[[Sequence[int], torch.device], torch.Tensor]


class Program:
    """A compiled schedule over flat lists of tensors. It runs where its inputs live.

    Args:
        source: The text of an emitted module, which is loaded (executed) here.
        constants: A tensor for each name in the module's CONSTANTS. They are copied to the inputs' device when that
            differs.
        folder: Where the module's file is kept; the user's cache by default.
        module: What stands for the module instead, with its INPUTS, CONSTANTS, DEVICE and ``call``; ``source`` is not
            loaded.

    Raises:
        PlanError: A constant is missing, or has another shape or dtype.
    """

    def __init__(
        self,
        source: str,
        constants: Mapping[str, torch.Tensor] | None = None,
        *,
        folder: Path | None = None,
        module: Any = None,
    ) -> None:
        self.source = source
        self.module: Any = load_source(source, folder) if module is None else module
        self.inputs = tuple(Expected.of(row) for row in self.module.INPUTS)
        self._constants = _checked_constants(self.module, constants or {})
        self._seen: Seen | None = None
        self._kinds = 0
        self._host: frozenset[str] = frozenset(getattr(self.module, "HOST", ()))
        self._placed: dict[tuple[tuple[str, torch.device], ...], dict[str, torch.Tensor]] = {}
        # on each planned device, the input that says where that is now: one with dimensions rather than a scalar
        ranked = sorted(range(len(self.inputs)), key=lambda k: (not self.inputs[k].shape, k))
        self._witness: dict[str, int] = {}
        for k in ranked:
            self._witness.setdefault(self.inputs[k].device, k)

    @property
    def constants(self) -> dict[str, torch.Tensor]:
        """The constants that the module reads, by name."""
        return {name: x for name, (_, x) in self._constants.items()}

    def __call__(self, *inputs: torch.Tensor) -> list[Value]:
        """``run`` with the inputs as arguments."""
        return self.run(inputs)

    def run(self, inputs: Sequence[torch.Tensor]) -> list[Value]:
        """Compute the outputs, without recording gradients. Inputs that the graph mutates are written in place.

        An input whose strides are not those that the kernels were generated for is copied first.

        Raises:
            InvalidInputError: A wrong number of inputs; an input of another dtype, shape or device; another layout of
                an input that the graph writes in place.
        """
        return self.consume(list(inputs))

    def consume(self, inputs: list[torch.Tensor]) -> list[Value]:
        """``run`` with a list that is emptied: an input without another owner is freed after its last use."""
        given, main = self.accept(inputs)
        inputs.clear()
        return self.execute(given, main)

    def accept(self, inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], torch.device]:
        """The inputs as the kernels take them, and the device that they run on. Raises what ``run`` raises."""
        known = self._seen
        if known is not None and known.matches(inputs):
            return _moved(list(inputs), known.moved, known.main), known.main
        given, main = self._checked(inputs)
        moved = self._numbers(given, main)
        if self._kinds < MOST_KINDS and all(x is y for x, y in zip(given, inputs, strict=True)):
            self._kinds += 1
            self._seen = seen(inputs, moved, main)
        return _moved(given, moved, main), main

    def _checked(self, inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], torch.device]:
        """The inputs in the planned layout, on their own devices, and the device that the kernels run on."""
        if len(inputs) != len(self.inputs):
            raise InvalidInputError(f"{len(inputs)} inputs were given to a program of {len(self.inputs)}")
        devices = {planned: inputs[k].device for planned, k in self._witness.items()}
        given = [
            x
            if x.shape == expected.shape
            and x.stride() == expected.stride
            and x.dtype is expected.dtype
            and x.device == devices[expected.device]
            and not (x.is_neg() or x.is_conj())
            else self._accept(expected, x, devices[expected.device])
            for expected, x in zip(self.inputs, inputs, strict=True)
        ]
        main = next((d for d in devices.values() if d.type != "cpu"), next(iter(devices.values()), self.module.DEVICE))
        if getattr(self.module, "MAKES_DEVICE", False):
            main = self.module.DEVICE
        if main.type == "cpu" and mode() == "compile":
            raise InvalidInputError(
                "the inputs are on the CPU, and kernels are compiled for the GPU here: move model and inputs to "
                "the GPU, or set TRITON_INTERPRET=1 before starting to check them on the CPU"
            )
        return given, main

    def _numbers(self, given: Sequence[torch.Tensor], main: torch.device) -> tuple[int, ...]:
        """Positions of numbers elsewhere that go along: kernels read no memory of the host's."""
        elsewhere = [k for k, x in enumerate(given) if x.device != main]
        if any(given[k].shape for k in elsewhere):
            return ()
        return tuple(k for k in elsewhere if not self.inputs[k].mutated and self.inputs[k].name not in self._host)

    def execute(
        self,
        given: list[torch.Tensor],
        main: torch.device,
        take: Take | None = None,
        apart: Apart | None = None,
        launched: Launched | None = None,
        table: Tabulate | None = None,
    ) -> list[Value]:
        """Run with inputs that ``accept`` has returned (the list is emptied), temporaries in what ``take`` gives.

        ``apart`` calls the steps that no CUDA graph can hold; ``launched`` changes the function that launches kernels;
        ``table`` makes the tables of launches of many kernels.
        """
        constants = {}
        if self._constants:
            constants = self._constants_on({planned: given[k].device for planned, k in self._witness.items()}, main)
        call = self.module.call
        if any(hook is not None for hook in (take, apart, launched, table)):
            named = (("scratch", take), ("apart", apart), ("address_table", table))
            hooks = {name: hook for name, hook in named if hook is not None}
            if launched is not None and hasattr(self.module, "launch"):
                hooks["launch"] = launched(self.module.launch)
            call = _call_with(self.module, hooks)
        context = around_calls(main)
        if context is _NOTHING:
            return list(call(given, constants))
        with context:
            return list(call(given, constants))

    @property
    def has_cuts(self) -> bool:
        """Whether steps are called through ``apart``, because no CUDA graph can hold them, or perhaps none."""
        return hasattr(self.module, "apart")

    @property
    def has_collectives(self) -> bool:
        """Whether other processes take part in a call."""
        return bool(getattr(self.module, "HAS_COLLECTIVES", False))

    @property
    def is_part_of_collective(self) -> bool:
        """Whether a collective is in flight when a call begins or returns."""
        return bool(getattr(self.module, "IS_PART_OF_COLLECTIVE", False))

    def _accept(self, expected: Expected, x: torch.Tensor, device: torch.device) -> torch.Tensor:
        if x.is_neg() or x.is_conj():  # bits that tell readers to turn the elements: kernels read memory as it is
            if expected.mutated:
                raise InvalidInputError(
                    f"input {expected.name} is written in place and is a negated or conjugated view; give it resolved"
                )
            x = x.resolve_conj().resolve_neg()
        if x.shape == expected.shape and x.dtype is expected.dtype and x.device == device and expected.strided_as(x):
            return x
        if x.dtype is not expected.dtype or tuple(x.shape) != expected.shape:
            raise InvalidInputError(
                f"input {expected.name} is {_text(x.dtype)}{list(x.shape)}, and the program was made for "
                f"{_text(expected.dtype)}{list(expected.shape)}; optimize again for these inputs"
            )
        if x.device != device and (x.shape or expected.mutated):
            raise InvalidInputError(f"input {expected.name} is on {x.device}, others are on {device}; move it there")
        if expected.mutated:
            raise InvalidInputError(
                f"input {expected.name} is written in place and has strides {x.stride()} instead of "
                f"{expected.stride}; give it in that layout"
            )
        return _restrided(x, expected, device)

    def _constants_on(self, devices: Mapping[str, torch.device], main: torch.device) -> dict[str, torch.Tensor]:
        key = tuple(sorted(devices.items()))
        if key not in self._placed:
            planned_main = next((e.device for e, _ in self._constants.values() if e.device != "cpu"), "cpu")
            places = {planned_main: main, **devices}
            # where no input is on the host nothing runs there
            other = torch.device("cpu") if torch.device("cpu") in devices.values() else main
            self._placed[key] = {
                name: _restrided(
                    x, expected, torch.device("cpu") if name in self._host else places.get(expected.device, other)
                )
                for name, (expected, x) in self._constants.items()
            }
        return self._placed[key]


def _moved(given: list[torch.Tensor], moved: Sequence[int], main: torch.device) -> list[torch.Tensor]:
    """The inputs, numbers at some positions copied to a device. The list is changed."""
    if moved:
        for k, x in zip(moved, numbers_on(main, [given[k] for k in moved]), strict=True):
            given[k] = x
    return given


def _checked_constants(module: Any, constants: Mapping[str, torch.Tensor]) -> dict[str, tuple[Expected, torch.Tensor]]:
    checked = {}
    for expected in map(Expected.of, module.CONSTANTS):
        x = constants.get(expected.name)
        if x is None:
            raise PlanError(f"the program needs the constant {expected.name}, which was not given")
        if x.dtype is not expected.dtype or tuple(x.shape) != expected.shape:
            raise PlanError(
                f"constant {expected.name} is {_text(x.dtype)}{list(x.shape)} instead of "
                f"{_text(expected.dtype)}{list(expected.shape)}"
            )
        checked[expected.name] = (expected, x.detach())
    return checked


def _restrided(x: torch.Tensor, expected: Expected, device: torch.device) -> torch.Tensor:
    """The tensor on ``device`` with the planned strides; itself where it is like that already."""
    if x.device == device and expected.strided_as(x):
        return x
    extent = 1 + sum((n - 1) * step for n, step in zip(expected.shape, expected.stride, strict=True))
    memory = torch.empty(0 if 0 in expected.shape else extent, dtype=x.dtype, device=device)
    # dimensions that were expanded when the program was made share memory: every copy of an element lands in one place
    shared = tuple(step == 0 and n > 1 for n, step in zip(expected.shape, expected.stride, strict=True))
    source = x[tuple(slice(0, 1) if s else slice(None) for s in shared)] if any(shared) else x
    if any(shared) and not torch.equal(source.expand(x.shape), x):
        raise InvalidInputError(
            f"input {expected.name} was an expanded tensor (strides {expected.stride}) when the program was made, "
            f"and now has values that differ along it; optimize again for these inputs"
        )
    memory.as_strided(source.shape, expected.stride).copy_(source)
    return memory.as_strided(expected.shape, expected.stride)


def _call_with(module: Any, hooks: Mapping[str, Any]) -> Callable[..., Any]:
    """The module's function ``call`` as it is with other functions in place of its own, by name, where it has them.

    The module stays as it is: another thread, or another program of the same text, may run it meanwhile.
    """
    own = vars(module) if hooks else {}
    given = {name: hook for name, hook in hooks.items() if name in own}
    if not given:
        return module.call
    names = {**own, **given}
    for name, value in own.items():
        if isinstance(value, FunctionType) and value.__globals__ is own and name not in given:
            names[name] = bound = FunctionType(value.__code__, names, name, value.__defaults__, value.__closure__)
            bound.__kwdefaults__ = value.__kwdefaults__
    return names["call"]


def around_calls(main: torch.device) -> contextlib.AbstractContextManager[Any]:
    """What has to hold while a program runs: no gradients recorded, autocast off, ``main`` the current device.

    Where it holds already, as in most calls of torch.compile's, nothing is done.
    """
    needed: list[contextlib.AbstractContextManager[Any]] = []
    if torch.is_grad_enabled():
        needed.append(torch.no_grad())
    if torch.is_autocast_enabled(main.type):  # casts were traced: autocast must not add its own to library calls
        needed.append(torch.autocast(main.type, enabled=False))
    if main.type == "cuda" and main.index is not None and main.index != torch.cuda.current_device():
        needed.append(torch.cuda.device(main))  # kernels are launched on the current GPU
    return _together(needed) if len(needed) > 1 else needed[0] if needed else _NOTHING


@contextlib.contextmanager
def _together(contexts: Sequence[contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def _text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
