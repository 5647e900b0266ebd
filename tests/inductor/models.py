"""A model whose fusion can be worked out by hand, and its graph."""

from __future__ import annotations

import torch

from optfuse.compiler.extract.extraction import Extraction
from optfuse.compiler.frontend.graph.captured import Captured
from optfuse.compiler.frontend.tracing.inference import capture
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


class Projected(torch.nn.Module):
    """A narrow linear layer and a residual, which a dot may add in its own kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Linear(64, 128, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """The projection beside the residual."""
        return residual + self.out(x)


def projected() -> Extraction:
    """The fusion problem of ``Projected``: the library's product or a dot."""
    args = (torch.empty(50176, 64, dtype=torch.bfloat16), torch.empty(50176, 128, dtype=torch.bfloat16))
    return fusion_problem(capture(Projected(), args, name="projected.inference"), "h200")


class Patches(torch.nn.Module):
    """Rows of a residual that is read twice, put side by side and normalized: stored, or computed where they go."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.reduce = torch.nn.LayerNorm(32), torch.nn.Linear(32, 32)
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Half the rows, of twice the width."""
        x = torch.tanh(x)
        x = x + self.down(torch.relu(self.up(x)))
        return self.reduce(self.norm(torch.cat([x[:, 0::2], x[:, 1::2]], -1)))


def patches() -> Extraction:
    """The fusion problem of ``Patches``."""
    return fusion_problem(capture(Patches(), (torch.empty(4, 8192, 16),), name="patches.inference"), "h200")


def rows_added() -> Extraction:
    """The fusion problem of ``Rows``."""
    args = (torch.zeros(4096, 32), torch.zeros(4096, dtype=torch.int64))
    return fusion_problem(capture(Rows(), args, name="rows.inference"), "h200")
