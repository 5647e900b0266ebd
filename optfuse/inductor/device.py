"""The description of an H200, for Inductor to compile for on a machine without a GPU.

No kernel can run on it. On a machine with a GPU nothing is replaced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

TARGET = torch.device("cuda", 0)

#: What ``torch.cuda.get_device_properties`` says of an H200.
_PROPERTIES = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=150_000_000_000,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=62914560,
    gcnArchName="",
    is_integrated=0,
    is_multi_gpu_board=0,
    clock_rate=1980000,
    memory_clock_rate=3201000,
    memory_bus_width=6144,
    uuid="0",
    pci_bus_id=0,
)
_DRAM_GBPS = 4800.0
_TFLOPS = {torch.float32: 67.0, torch.float64: 67.0}
_TENSOR_TFLOPS = 989.0


class _Driver:
    """A driver for Triton that describes the GPU to compile for."""

    def __init__(self) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", 90, 32)
        figures = {
            "max_shared_mem": 232448,
            "max_num_regs": 65536,
            "multiprocessor_count": 132,
            "warpSize": 32,
            "sm_clock_rate": 1980000,
            "mem_clock_rate": 3201000,
            "mem_bus_width": 6144,
        }
        self.utils = SimpleNamespace(get_device_properties=lambda device: figures)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_active_torch_device(self) -> torch.device:
        return TARGET


def _contiguous(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The method without a switch to the tensor's device."""
    return torch.ops.aten.contiguous.default(self, *args, **kwargs)


def _copy(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The method without a switch to the tensor's device."""
    return torch.ops.aten.copy_.default(self, *args, **kwargs)


def _invert(self: torch.Tensor) -> torch.Tensor:
    """The operator without a switch to the tensor's device."""
    return torch.ops.aten.bitwise_not.default(self)


def _getitem(self: torch.Tensor, key: Any) -> torch.Tensor:
    """The method without a switch to the tensor's device, for the indices that Inductor uses."""
    keys = list(key) if isinstance(key, tuple) else [key]
    plain = (torch.Tensor, slice, type(None))
    if not all(type(k) is int or isinstance(k, plain) for k in keys):
        return _TORCH_GETITEM(self, key)
    aten = torch.ops.aten
    found, dim = self, 0
    gathered: dict[int, torch.Tensor] = {}
    for k in keys:
        if isinstance(k, int):
            found = aten.select.int(found, dim, k)
            continue
        if isinstance(k, torch.Tensor):
            gathered[dim] = k
        elif isinstance(k, slice) and k != slice(None):
            found = aten.slice.Tensor(found, dim, k.start, k.stop, 1 if k.step is None else k.step)
        elif k is None:
            found = aten.unsqueeze.default(found, dim)
        dim += 1
    return aten.index.Tensor(found, [gathered.get(d) for d in range(max(gathered) + 1)]) if gathered else found


_TORCH_GETITEM = torch.Tensor.__getitem__


@contextlib.contextmanager
def gpu() -> Generator[str]:
    """Context in which Inductor finds a GPU; yields its name. Changes caches of the process for good."""
    if torch.cuda.is_available():
        yield torch.cuda.get_device_name(0)
        return
    import torch._dynamo.device_interface as interfaces
    from triton.runtime.driver import driver

    answers = _answers()
    of_dynamo: dict[str, Any] = {
        "exchange_device": lambda index: 0,
        "maybe_exchange_device": lambda index: 0,
        "get_raw_stream": lambda index: 0,
        "get_compute_capability": lambda device=None: 90,
        "is_triton_capable": lambda device=None: True,
        "raise_if_triton_unavailable": lambda device=None: None,
    }
    interfaces.caching_worker_device_properties["cuda"] = [_PROPERTIES]
    interfaces.caching_worker_current_devices["cuda"] = 0
    driver.set_active(_Driver())
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            if hasattr(torch.cuda, name):
                stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        for name, answer in {**answers, **of_dynamo}.items():
            if hasattr(interfaces.CudaInterface, name):
                stack.enter_context(mock.patch.object(interfaces.CudaInterface, name, staticmethod(answer)))
        import torch._subclasses.fake_tensor as fake_tensor

        # torch 2.11 and older make a tensor on the device before the first fake one
        stack.enter_context(mock.patch.object(fake_tensor, "init_gpu_context"))
        convolution = "_conv_determine_backend_memory_format"
        stack.enter_context(mock.patch.object(torch._C, convolution, _convolution_layout))  # noqa: SLF001
        import torch._inductor.scheduler as scheduler

        stack.enter_context(mock.patch.object(scheduler, "get_gpu_dram_gbps", return_value=_DRAM_GBPS))
        tflops = mock.patch.object(scheduler, "get_device_tflops", lambda dtype: _TFLOPS.get(dtype, _TENSOR_TFLOPS))
        stack.enter_context(tflops)
        _forget_answers()
        methods = {"contiguous": _contiguous, "copy_": _copy, "__invert__": _invert, "__getitem__": _getitem}
        for name, method in methods.items():
            stack.enter_context(mock.patch.object(torch.Tensor, name, method))
        yield _PROPERTIES.name


def _answers() -> dict[str, Any]:
    """Replacements for functions of ``torch.cuda``, by name."""
    stream = SimpleNamespace(cuda_stream=0, stream_id=0, device_index=0, device_type=1)
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda device=None: _PROPERTIES,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: _PROPERTIES.name,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "_lazy_init": lambda: None,
        "is_bf16_supported": lambda *args, **kwargs: True,
        "memory_allocated": lambda device=None: 0,
        "current_stream": lambda device=None: stream,
        "get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda state, device=None: None,
        "is_initialized": lambda: False,  # fake tensors then never ask the device for anything
    }


def _convolution_layout(image: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
    """What cuDNN returns: channels-last where the image or the weight is."""
    if image.dim() != 4:
        return torch.contiguous_format
    last = any(x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous() for x in (image, weight))
    return torch.channels_last if last else torch.contiguous_format


def _forget_answers() -> None:
    """Empty what Inductor remembers about the machine from before there was a GPU."""
    import torch._inductor.utils as inductor_utils
    import torch.utils._triton as triton_utils
    from torch._inductor.runtime.hints import DeviceProperties

    remembered = [getattr(module, name) for module in (inductor_utils, triton_utils) for name in dir(module)]
    for function in (*remembered, DeviceProperties.create):
        if hasattr(function, "cache_clear"):
            function.cache_clear()
