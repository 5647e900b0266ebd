"""Random loops over programs that hand results on, through graphs: each value is right as long as it is held.

With a stand-in for the GPU's graphs, that reads and writes where a recording did.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from optfuse.runtime.arena import Arena
from optfuse.runtime.graph_choice import Interest
from optfuse.runtime.graphs import GraphedProgram
from optfuse.runtime.program import Program
from tests.runtime.test_graphs import COPIED, LARGE, SMALL, Outside, Tape

HEAD = """
import torch
CONSTANTS = ()
DEVICE = torch.device("cpu")

def scratch(size, device):
    return torch.empty(size, dtype=torch.uint8, device=device)

"""
FORWARD = (
    HEAD
    + """
INPUTS = (
    ("weight", "float32", ({n},), (1,), "cpu", False),
    ("x", "float32", ({n},), (1,), "cpu", False),
)

def call(inputs, constants):
    weight, x = inputs
    inputs.clear()
    arena = scratch({n} * 4, x.device).view(torch.float32)
    torch.mul(weight, x, out=arena)
    return arena + 1, arena * 2, x.view(-1), weight
"""
)
BACKWARD = (
    HEAD
    + """
INPUTS = (
    ("double", "float32", ({n},), (1,), "cpu", False),
    ("x", "float32", ({n},), (1,), "cpu", False),
    ("weight", "float32", ({n},), (1,), "cpu", False),
    ("grad", "float32", ({n},), (1,), "cpu", False),
)

def call(inputs, constants):
    double, x, weight, grad = inputs
    inputs.clear()
    arena = scratch({n} * 4, x.device).view(torch.float32)
    torch.mul(grad, double, out=arena)
    return arena - x, grad * weight + arena
"""
)


class Layers:
    """Programs for layers of one kind, each with weights of its own, forward and backward; they share results."""

    def __init__(
        self, folder: Path, n: int, layers: int, choice: object, *, training: bool, arena: Arena | None = None
    ) -> None:
        self.n = n
        self.weights = [torch.arange(float(n)) % 7 + k for k in range(layers)]
        arena = arena or Arena()
        interest = Interest(frozenset({0}) if training else None, frozenset({0}), training)
        self.forward, self.backward = (
            GraphedProgram(
                Program(source.replace("{n}", str(n)), folder=folder),
                choice,
                interest,
                Outside(),
                arena,
                small=COPIED,  # type: ignore[arg-type]
            )
            for source, interest in ((FORWARD, interest), (BACKWARD, Interest(None, frozenset({2}), training)))
        )

    def run(self, x: torch.Tensor) -> tuple[torch.Tensor, list[list[torch.Tensor]], torch.Tensor]:
        """What the last layer hands out, what the layers have saved, and what the former is to be."""
        wanted, saved = x.clone(), []
        for weight in self.weights:
            x, *kept = map(torch.as_tensor, self.forward.run([weight, x]))
            saved.append(kept)
            wanted = weight * wanted + 1
        return x, saved, wanted

    def gradients(self, saved: list[list[torch.Tensor]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each layer's gradient, and what it is to be."""
        grad, found = torch.full((self.n,), 0.5), []
        for (double, x, weight), known in zip(reversed(saved), reversed(self.weights), strict=True):
            wanted = grad * double - x
            assert torch.equal(double, 2 * known * x)
            following = grad * weight + grad * double
            mine, grad = map(torch.as_tensor, self.backward.run([double, x, weight, grad]))
            assert torch.equal(grad, following)
            found.append((mine, wanted))
        return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_inference(tmp_path: Path, n: int, seed: int) -> None:
    draw = random.Random(seed)
    layers = Layers(tmp_path, n, draw.randint(1, 4), "auto", training=False)
    program = Program(FORWARD.replace("{n}", str(n)), folder=tmp_path)
    before = GraphedProgram(program, "auto", Interest(None, frozenset({0})), Tape(), layers.forward.arena, small=COPIED)
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    reused = torch.zeros(n)
    for k in range(25):
        x = reused.fill_(float(k)) if draw.random() < 0.5 else torch.full((n,), float(k))
        if draw.random() < 0.5:  # what lies in another recording's memory
            x = torch.as_tensor(before.run([layers.weights[0], x])[0])
        y, _, wanted = layers.run(x)
        held.append((y, wanted))
        while held and draw.random() < 0.6:
            held.pop(draw.randrange(len(held)))
        assert all(torch.equal(*pair) for pair in held), k
    assert layers.forward.statistics.replays


@pytest.mark.parametrize("choice", ["auto", True])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_training(tmp_path: Path, n: int, seed: int, choice: object) -> None:
    draw = random.Random(seed)
    layers = Layers(tmp_path, n, draw.randint(1, 4), choice, training=True)
    reused = torch.zeros(n)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for k in range(16):
        waiting = []
        for _ in range(1 if draw.random() < 0.7 else 2):  # several forward calls before the backward ones
            x = torch.full((n,), float(k)) if draw.random() < 0.7 or waiting else reused.fill_(float(k))
            y, saved, wanted = layers.run(x)
            assert torch.equal(y, wanted), k
            waiting.append(saved)
        for saved in waiting if draw.random() < 0.5 else reversed(waiting):
            for _ in range(1 if draw.random() < 0.8 else 2):  # a graph that is kept runs backward again
                kept += layers.gradients(saved)
            assert all(torch.equal(*pair) for pair in kept), k
        del waiting, saved
        if draw.random() < 0.8:
            kept.clear()
    assert layers.forward.statistics.replays
    assert layers.backward.statistics.replays


@pytest.mark.parametrize("choice", ["auto", True])
def test_programs_that_read_each_others_results_settle(tmp_path: Path, choice: object) -> None:
    """Inputs of the first come from two places in turn, so that it cannot read them where they lie."""
    arena = Arena()
    first, second = (Layers(tmp_path, LARGE, count, choice, training=True, arena=arena) for count in (2, 1))
    programs = [first.forward, first.backward, second.forward, second.backward]
    buffers, plain = (torch.zeros(LARGE), torch.zeros(LARGE)), []
    for k in range(80):  # what the clock cannot tell is decided after 64 rounds
        x = buffers[k.bit_count() % 2].fill_(float(k % 5))
        y, saved, wanted = first.run(x)
        z, more, _ = second.run(y)
        assert torch.equal(z, second.weights[0] * wanted + 1), k
        del y, z
        found = [*second.gradients(more), *first.gradients(saved)]
        assert all(torch.equal(*pair) for pair in found), k
        del found, saved, more
        plain.append(sum(program.statistics.plain for program in programs))
    assert plain[-1] == plain[-8], plain
    assert sum(program.statistics.recordings for program in programs) <= 24, "four for each caller"
