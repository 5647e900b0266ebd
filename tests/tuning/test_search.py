"""The search finds the valley of a made-up clock, is not fooled by noise, and measures nothing twice."""

from __future__ import annotations

import math

from optfuse.compiler.codegen.tiles import TileConfig
from optfuse.tuning.search import FINAL_RUNS, STEP_RUNS, WIDTH, Trial, search


def tile(block: int, warps: int = 4) -> TileConfig:
    return TileConfig((("XBLOCK", block),), warps, 1, "none")


def near(_: int, config: TileConfig) -> list[TileConfig]:
    block = dict(config.blocks)["XBLOCK"]
    return [tile(b, w) for b in (block // 2, block, 2 * block) for w in (2, 4, 8) if b and tile(b, w) != config]


class Clock:
    """Microseconds by a formula; what was asked for is kept."""

    def __init__(self, best: int, fails: int = 0) -> None:
        self.best, self.fails = best, fails
        self.asked: list[tuple[Trial, int]] = []

    def time(self, trial: Trial, runs: int) -> float | None:
        block = dict(trial.config.blocks)["XBLOCK"]
        if block == self.fails:
            return None
        return 100.0 + 10 * abs(math.log2(block / self.best)) + 5 * trial.config.num_warps

    def __call__(self, trials, runs):
        self.asked += [(trial, runs) for trial in trials]
        return [self.time(trial, runs) for trial in trials]


def test_it_walks_to_the_valley():
    clock = Clock(best=128)
    (found,) = search([tile(1024)], near, clock)
    assert found.config == tile(128, 2)
    assert (found.start_us, found.us) == (150.0, 110.0)


def test_kernels_go_side_by_side_and_nothing_is_measured_twice_in_the_steps():
    clock = Clock(best=256)
    found = search([tile(1024), tile(256, 2), tile(64)], near, clock)
    assert [f.config for f in found] == [tile(256, 2)] * 3
    steps = [trial for trial, runs in clock.asked if runs == STEP_RUNS]
    assert len(steps) == len(set(steps)) == sum(f.tried for f in found)
    finals = [trial for trial, runs in clock.asked if runs == FINAL_RUNS]
    assert [trial.kernel for trial in finals] == [0, 0, 2, 2]


def test_what_does_not_run_is_passed_over():
    (found,) = search([tile(1024)], near, Clock(best=256, fails=512))
    assert found.config == tile(1024, 2)


def test_a_kernel_whose_first_tile_fails_is_left_alone():
    clock = Clock(best=256, fails=1024)
    (found,) = search([tile(1024)], near, clock)
    assert (found.config, found.start_us, found.tried) == (tile(1024), 0.0, 1)


def test_noise_does_not_win():
    class Noisy(Clock):
        """Short runs flatter every other tile; long ones say that they are all alike."""

        def time(self, trial: Trial, runs: int) -> float:
            return 50.0 if runs == FINAL_RUNS or trial.config == tile(1024) else 40.0

    (found,) = search([tile(1024)], near, Noisy(best=1))
    assert found.config == tile(1024)
    assert found.us == found.start_us == 50.0


def test_a_step_has_a_limit():
    def many(_: int, config: TileConfig) -> list[TileConfig]:
        return [tile(block) for block in range(1, 100)]

    (found,) = search([tile(1024)], many, Clock(best=1024))
    assert found.tried == 1 + WIDTH
