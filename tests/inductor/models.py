"""A model whose fusion can be worked out by hand, and its graph."""

from __future__ import annotations

import torch

from optfuse.compiler.extract.extraction import Extraction
from optfuse.compiler.frontend.captured import Captured
from optfuse.compiler.frontend.inference import capture
from optfuse.compiler.stages import fusion_problem

#: What TorchInductor makes of ``Small``: the norm reads its input once and writes its result once; the matmul is a
#: library's, and the activation is a kernel of its own behind it.
KERNELS = ({"var_mean", "add", "rsqrt", "sub", "mul", "mul_1", "add_1"}, {"relu"})


class Small(torch.nn.Module):
    """Layer norm, linear, ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(512)
        self.linear = torch.nn.Linear(512, 256, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One normalized, projected, rectified tensor."""
        return torch.relu(self.linear(self.norm(x)))


def small() -> tuple[Captured, Extraction]:
    """The graph of ``Small`` and its fusion problem."""
    captured = capture(Small(), (torch.zeros(1024, 512),), name="small.inference")
    return captured, fusion_problem(captured, "h200")


class Gated(torch.nn.Module):
    """A pointwise value that leaves, and its sum over all rows: one kernel and a second stage for the solver."""

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The gated tensor in half precision, and its sum."""
        gated = torch.tanh(x) * gate
        return gated.bfloat16(), gated.sum((0, 1))


def gated() -> tuple[Captured, Extraction]:
    """The graph of ``Gated`` and its fusion problem."""
    captured = capture(Gated(), (torch.zeros(8, 1024, 768), torch.zeros(768)), name="gated.inference")
    return captured, fusion_problem(captured, "h200")


class Rows(torch.nn.Module):
    """Rows added into zeros by index: two ops write one buffer. Other readers of the rows may compute them again."""

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The sums, and a pointwise value of the same rows."""
        rows = torch.tanh(x.sum(1, keepdim=True) + x)
        return torch.zeros(64, 32).index_add(0, index, rows), rows.exp()


def rows_added() -> Extraction:
    """The fusion problem of ``Rows``."""
    args = (torch.zeros(4096, 32), torch.zeros(4096, dtype=torch.int64))
    return fusion_problem(capture(Rows(), args, name="rows.inference"), "h200")
