"""CP-SAT's sections agree with trying every sequence."""

from __future__ import annotations

import threading
import time

from optfuse.lab.packing.layout import layout
from optfuse.lab.packing.sections import SectionModel
from optfuse.problem.packing import check_packing
from tests.packings import least_height, perfect, random_lifetimes


def test_agrees_with_every_sequence() -> None:
    for seed in range(40):
        buffers = random_lifetimes(seed, 5, (1, 2, 4) if seed % 2 else (1,))
        problem, least = layout(buffers), least_height(buffers)
        for capacity in (least - 1, least):
            if capacity // problem.unit < problem.loads.max():
                continue
            model = SectionModel(problem, capacity // problem.unit)
            outcome = model.run(1, 0, time.monotonic() + 60)
            assert outcome == ("packed" if capacity == least else "infeasible"), (seed, capacity)
            if outcome == "packed":
                assert check_packing(buffers, [offset * problem.unit for offset in model.offsets], capacity) == ()


def test_stops_when_told() -> None:
    model = SectionModel(layout(perfect(2, pieces=200)), 1024)
    model.stop()
    assert model.run(1, 0, time.monotonic() + 60) == "stopped"


def test_stops_while_it_runs() -> None:
    model = SectionModel(layout(perfect(2, pieces=400)), 1023)
    found: list[str] = []
    worker = threading.Thread(target=lambda: found.append(model.run(1, 0, time.monotonic() + 60)))
    worker.start()
    while worker.is_alive():
        model.stop()
        worker.join(0.05)
    assert found[0] in ("stopped", "infeasible")
