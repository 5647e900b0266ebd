"""The peak of a training step that is predicted, and the memory that its program takes."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import optfuse
from optfuse.runtime import program
from optfuse.runtime.loader import load_source


class LiveBytes(TorchDispatchMode):
    """Adds up the memory of tensors: of some that are there, and of all that operators make outside of kernels."""

    def __init__(self, before: Any) -> None:
        super().__init__()
        self.peak = 0
        self.in_kernel = False
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self._see(before)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if not self.in_kernel:  # the interpreter computes a kernel with tensors, too
            self._see(found)
        return found

    def watch(self, module: Any) -> Any:
        """The module of a program, which says when it runs a kernel."""
        launch = module.launch

        def run(*args: Any, **kwargs: Any) -> None:
            self.in_kernel = True
            launch(*args, **kwargs)
            self.in_kernel = False
            gc.collect()  # the interpreter's cycles hold the kernel's arguments

        module.launch = run
        return module

    def _see(self, values: Any) -> None:
        for value in pytree.tree_leaves(values):
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()  # noqa: SLF001 - its identity
        self._live = {key: one for key, one in self._live.items() if not one[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))


class Block(nn.Module):
    """An attention block and a projection to more columns than rows are aligned for, with the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down, self.head = nn.Linear(32, 128), nn.Linear(128, 32), nn.Linear(32, 67, bias=False)

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(self.norm(x)).view(4, 64, 3, 2, 16).permute(2, 0, 3, 1, 4)
        y = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(4, 64, 32))
        y = y + self.down(F.gelu(self.up(y)))
        logits = self.head(y)
        return F.mse_loss(logits.tanh(), target), logits


class Convolutions(nn.Module):
    """Convolutions with batch norms, and the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(3))
        )

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        result = self.layers(x)
        return F.mse_loss(result, target), result


def scheduled(model: nn.Module, inputs: tuple[Tensor, Tensor], cap: int | None) -> Any:
    """A training step with what it saves searched for, within the cap."""
    options = optfuse.SolveOptions(workers=1, time_limit=5, peak_memory=cap)
    return optfuse.optimize(model, inputs, train=True, saving="search", options=options)


CASES = {
    "block": (Block, (4, 64, 32), (4, 64, 67)),
    "convolutions": (Convolutions, (4, 8, 16, 16), (4, 8, 16, 16)),
}


@pytest.mark.parametrize(
    ("case", "share"),
    [
        ("block", None),
        pytest.param("block", 0.95, marks=pytest.mark.slow),
        *(pytest.param("convolutions", share, marks=pytest.mark.slow) for share in (None, 0.95)),
    ],
)
def test_the_peak_of_a_step_is_that_of_its_program(
    case: str, share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape, wanted = CASES[case]
    torch.manual_seed(0)
    model, inputs = make().train(), (torch.randn(shape), torch.randn(wanted))
    free = None if share is None else scheduled(model, inputs, None).saving
    apart = 0 if free is None else free.workspace_bytes  # of the device, which is none here
    cap = None if free is None else apart + int(share * (free.proposals[0].peak_bytes - apart))
    live = LiveBytes([list(model.parameters()), list(model.buffers()), inputs])
    monkeypatch.setattr(program, "load_source", lambda *source: live.watch(load_source(*source)))
    step = scheduled(model, inputs, cap)
    call = step.compile(cudagraphs=False)
    with live:
        loss, result = call(*inputs)
        loss.backward()
    del result
    allocated = max(
        half.summary()["allocated_peak_bytes"] + step.saving.unseen_bytes[half.name.rpartition(".")[2]] for half in step
    )
    apart = step.saving.workspace_bytes
    assert step.saving.chosen.peak_bytes == allocated
    assert live.peak == pytest.approx(allocated - apart, rel=0.03)
