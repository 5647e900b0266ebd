"""The fit gives back the device that measurements were made up from."""

from __future__ import annotations

from typing import Any

import pytest

from optfuse.lab.calibrate.fit import GOP, MIB, PS, fit, line, special_weights
from optfuse.lab.calibrate.probes import SIZES
from optfuse.problem.device_files import load_device

TINY_US, RAMP_US, DRAM, L2 = 1.2, 1.7, 4.2e6, 9e6  # bytes a microsecond


def probe(family: str, key: list[Any], amount: int, cold: float, warm: float | None = None) -> dict[str, Any]:
    return {
        "family": family, "key": key, "amount": amount, "cold_us": cold, "warm_us": cold if warm is None else warm
    }  # fmt: skip


def measurements() -> dict[str, Any]:
    cold = {size: TINY_US + 2 * RAMP_US + size / DRAM for size in SIZES}
    warm = {size: TINY_US + size / L2 if size <= 48 * MIB else cold[size] for size in SIZES}
    moved = 400 * MIB
    base = TINY_US + 2 * RAMP_US
    return {
        "launch": {"graph_us": 1.9, "plain_us": 4.5, "duration_us": TINY_US},
        "probes": [
            *(probe("copy", [size], size, cold[size], warm[size]) for size in SIZES),
            *(
                probe("turned", [k], moved, base + moved / DRAM / 2 * (1 + factor))
                for k, factor in enumerate((2, 3, 4))
            ),
            probe("gather", [0], moved, base + moved / DRAM / 2 * 2.5),
            *(probe("programs", [n], moved, TINY_US + moved / DRAM * max(1, 132 / n)) for n in (33, 66, 132, 264)),
            probe("arithmetic", ["fma"], GOP, TINY_US + 20),
            probe("arithmetic", ["exp"], GOP, TINY_US + 200),
            probe("arithmetic", ["erf"], GOP, TINY_US + 1000),
            probe("atomics", [1 << 20], GOP, TINY_US + 5000),
            *(probe("matmul", [k], GOP, TINY_US + 1.5) for k in range(3)),
            probe("attention", ["forward"], GOP, TINY_US + 3),
            probe("convolution", [1], GOP, TINY_US + 4.5),
            probe("convolution", [96], GOP, TINY_US + 900),
        ],
        "failed": {},
    }


def test_a_device_is_recovered() -> None:
    found = fit(load_device("h200"), measurements(), "made up")
    assert found.name == "made up"
    assert found.launch_ps == 1_900_000
    assert found.dram_ps_per_mib == pytest.approx(MIB / DRAM * PS, rel=1e-3)
    assert found.ramp_ps == pytest.approx(RAMP_US * PS, rel=1e-3)
    assert found.l2_ps_per_mib == found.l2_write_ps_per_mib == pytest.approx(MIB / L2 * PS, rel=1e-3)
    assert 8 * 16 * MIB <= found.l2_bytes <= 8 * 24 * MIB
    assert (found.strided_percent, found.gather_percent) == (300, 150)
    assert found.saturating_programs == 132
    assert found.fp32_ps_per_gop == 20 * PS
    assert found.special_ps_per_gop == 200 * PS
    assert found.atomic_ps_per_gop == 5000 * PS
    assert found.tensor_ps_per_gop == 1_500_000
    assert (found.attention_percent, found.convolution_percent) == (200, 300)


def test_what_was_not_measured_stays() -> None:
    base = load_device("h200")
    partial = measurements()
    partial["probes"] = [p for p in partial["probes"] if p["family"] == "gather"]
    partial["launch"] = {}
    found = fit(base, partial, "h200")
    assert found.gather_percent != base.gather_percent
    assert (found.launch_ps, found.dram_ps_per_mib, found.tensor_ps_per_gop) == (
        base.launch_ps, base.dram_ps_per_mib, base.tensor_ps_per_gop
    )  # fmt: skip


def test_special_functions_are_told_in_exponentials() -> None:
    assert special_weights(measurements())["erf"] == pytest.approx(5, rel=0.01)
    assert special_weights({"probes": []}) == {}


def test_a_line_needs_two_sizes() -> None:
    with pytest.raises(ValueError, match="two different"):
        line([(1.0, 2.0)])
    assert line([(1.0, 3.0), (2.0, 5.0), (10.0, 21.0)]) == pytest.approx((1, 2))
