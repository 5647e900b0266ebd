"""A table of routers of mixtures of experts and of a top-k sampler: kernels, library calls, and time.

    python benchmarks/router.py

Without a GPU the last two columns are empty. The times are of calls that are replayed from CUDA graphs, eager's too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import optfuse

#: Calls in one CUDA graph, and its replays.
CALLS, REPLAYS = 20, 20


class Router(nn.Module):
    """The share of each expert in each token's result: the greatest k of a softmax, which sum to one."""

    def __init__(self, k: int, *, dense: bool) -> None:
        super().__init__()
        self.k = k
        self.dense = dense

    def forward(self, logits: Tensor) -> tuple[Tensor, ...]:
        """Shares of all experts (``dense``), or of the chosen ones in the order of experts, and rows an expert."""
        chances = torch.softmax(logits, -1, dtype=torch.float32)
        shares, experts = torch.topk(chances, self.k, dim=-1)
        shares = (shares / shares.sum(-1, keepdim=True)).to(logits.dtype)
        if self.dense:
            return (torch.zeros_like(logits).scatter(1, experts, shares),)
        order = torch.argsort(experts.reshape(-1))
        counts = torch.histc(experts.reshape(-1).float(), logits.shape[-1], 0, logits.shape[-1] - 1)
        return shares.reshape(-1)[order], order, counts


class Sampler(nn.Module):
    """One of the k likeliest classes of each row, drawn by their probabilities."""

    def forward(self, logits: Tensor) -> Tensor:
        """The classes, one a row."""
        found, classes = torch.topk(logits.float() / 0.7, 8, dim=-1)
        drawn = torch.multinomial(torch.softmax(found, -1), 1)
        return classes.gather(1, drawn)[:, 0]


def cases() -> dict[str, tuple[nn.Module, tuple[int, int]]]:
    """By name: a module, and the shape of its logits."""
    return {
        "2 of 8 experts, shares of all": (Router(2, dense=True), (16, 8)),
        "8 of 128 experts, shares of all": (Router(8, dense=True), (16, 128)),
        "2 of 8 experts, rows in order": (Router(2, dense=False), (16, 8)),
        "8 of 128 experts, rows in order": (Router(8, dense=False), (16, 128)),
        "2 of 8 experts, rows in order, many": (Router(2, dense=False), (4096, 8)),
        "one of the 8 likeliest of 1024 classes": (Sampler(), (16, 1024)),
    }


def replayed_us(function: Callable[..., Any], *args: Tensor) -> float:
    """Microseconds of a call that is replayed from a CUDA graph."""
    for _ in range(3):
        function(*args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            function(*args)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    start.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end) / (CALLS * REPLAYS)


def main() -> None:
    """Print a row for each case."""
    gpu = torch.cuda.is_available()
    print("| logits | what | kernels | library calls | predicted us | us | eager us |\n|---|---|---|---|---|---|---|")
    for name, (module, shape) in cases().items():
        logits = torch.randn(shape, dtype=torch.bfloat16, device="cuda" if gpu else "cpu")
        schedule = optfuse.optimize(module, (logits,), device="h200")
        assert isinstance(schedule, optfuse.Schedule), "no training step"
        found = schedule.summary()
        calls = len(schedule.library_ops)
        times = ["", ""]
        if gpu:
            times = [f"{replayed_us(each, logits):.1f}" for each in (schedule.compile(), module)]
        own = found["kernels"] - calls
        predicted = f"{found['objective'] / 1e6:.1f}"
        print(f"| {'x'.join(map(str, shape))} | {name} | {own} | {calls} | {predicted} | {' | '.join(times)} |")


if __name__ == "__main__":
    main()
