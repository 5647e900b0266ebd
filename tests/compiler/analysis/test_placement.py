"""Which ops can meet in a kernel, whatever else of as many points the graph holds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from optfuse.compiler.analysis.iteration_orders import Cover, Piece, in_order
from optfuse.compiler.analysis.mixed_radix import Digit
from optfuse.compiler.extract.extraction import extract
from optfuse.compiler.frontend.tracing.inference import capture
from optfuse.compiler.stages import lowered
from optfuse.problem.device_files import load_device
from tests.oracle.judging import Function


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


def test_a_scan_runs_in_its_own_walk_and_its_results_are_values_of_all_points() -> None:
    def work(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (x * y).cumsum(1) + y, y.sum(1)

    x, y = torch.ones(64, 200), torch.ones(64, 200)
    problem = extract(lowered(capture(Function(work), (x, y), {}, name="scan")), load_device("h200"))
    instance = problem.instance
    ((scan, offers),) = ((op, op.offers) for op in instance.ops if op.name == "cumsum")
    assert not scan.recompute
    (offer,) = offers
    assert (offer.full, offer.reduces) == (True, True)
    scheme = instance.schemes[offer.scheme]
    assert (scheme.x, scheme.r) == (64, 200)
    for name in ("mul", "add", "sum_1"):
        (other,) = (op for op in instance.ops if op.name == name)
        assert offer.scheme in {o.scheme for o in other.offers}


def test_the_elements_of_a_scan_keep_their_order() -> None:
    rows = (Piece(Digit(4, 6)),)
    forward = (Piece(Digit(2, 3), 3), Piece(Digit(3, 1), 1))
    mixed = (Piece(Digit(3, 2), 1), Piece(Digit(2, 1), 3))
    assert in_order(Cover((rows, forward), 1))
    assert not in_order(Cover((rows, mixed), 1))
