"""Which ops can meet in a kernel, whatever else of as many points the graph holds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from optfuse.compiler.extract.extraction import extract
from optfuse.compiler.frontend.inference import capture
from optfuse.compiler.stages import lowered
from optfuse.problem.device_files import load_device


class Biased(nn.Module):
    """As many points three times, in rows of lengths that have no common refinement; then pointwise chains."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return tuple((((rows + bias) * 0.5).erf() + 1).sin() for rows, bias in ((x, a), (y, b), (z, c)))


def test_a_chain_can_be_one_kernel_whatever_else_has_as_many_points() -> None:
    shapes = ((96, 100), (64, 150), (40, 240))
    tensors = (*(torch.ones(shape) for shape in shapes), *(torch.ones(shape[1]) for shape in shapes))
    instance = extract(lowered(capture(Biased(), tensors, {}, name="biased")), load_device("h200")).instance
    chains: list[set[int]] = []
    for edge in sorted(instance.edges, key=lambda edge: edge.src):
        chain = next((chain for chain in chains if edge.src in chain), None)
        if chain is None:
            chains.append(chain := {edge.src})
        chain.add(edge.dst)
    assert len(chains) == 3
    for chain in chains:
        assert set.intersection(*(set(edge.schemes) for edge in instance.edges if edge.src in chain))
