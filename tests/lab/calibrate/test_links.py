"""The fit of links gives back the figures that transfers were made up from, whatever single ones say."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optfuse.errors import InvalidOptionError
from optfuse.lab.calibrate.links import COLLECTIVES, Links, Transfer, fit_links, link_quality, predicted_us, read_links
from optfuse.problem.device_files import load_device
from tests.cli.conftest import Outcome, optfuse

__all__ = ["optfuse"]  # a fixture

LINKS = {"link_start_ps": 9_000_000, "link_hop_ps": 1_500_000, "link_ps_per_mib": 4_000_000}
MADE_UP = replace(load_device("h200"), **LINKS)


def made_up(ranks: Sequence[int]) -> list[Transfer]:
    """Transfers of 64 KiB to 512 MiB as the model has them, two of them far off."""
    plain = [Transfer(name, n, 1 << k, 0.0) for n in ranks for name in COLLECTIVES for k in range(16, 30)]
    exact = [replace(one, us=predicted_us(MADE_UP, one)) for one in plain]
    return [replace(one, us=one.us * (30 if number in (5, 20) else 1)) for number, one in enumerate(exact)]


def test_links_are_recovered_in_spite_of_outliers() -> None:
    transfers = made_up((2, 8))
    found = fit_links(load_device("h200"), Links(tuple(transfers), (1.5, 1.2)), "made up")
    assert {name: getattr(found, name) for name in LINKS} == pytest.approx(LINKS, rel=1e-3)
    assert (found.name, found.link_slowdown_percent) == ("made up", 34)
    quality = link_quality(found, transfers)
    assert quality.median_error < 1e-3
    assert quality.worst_error == pytest.approx(29 / 30, rel=1e-3)
    assert quality.worst in (transfers[5], transfers[20])


def test_one_number_of_ranks_leaves_the_hop_as_it_was() -> None:
    base = replace(MADE_UP, link_start_ps=1, link_ps_per_mib=1, link_slowdown_percent=17)
    found = fit_links(base, Links(tuple(made_up((4,))), ()), "made up")
    assert {name: getattr(found, name) for name in LINKS} == pytest.approx(LINKS, rel=1e-3)
    assert found.link_slowdown_percent == 17


def test_no_figure_is_negative() -> None:
    transfers = tuple(Transfer("all_gather", 2, size << 20, us) for size, us in ((1, 1.0), (2, 4.0), (4, 16.0)))
    found = fit_links(replace(MADE_UP, link_hop_ps=0), Links(transfers, (0.9,)), "steep")
    assert (found.link_start_ps, found.link_slowdown_percent) == (0, 0)
    assert found.link_ps_per_mib > 0


def lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROW = {"link": "all_reduce", "ranks": 2, "bytes": 1 << 20, "us": 20.0}


def test_what_is_too_small_or_in_symmetric_memory_does_not_count(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "bytes": 1 << 14}, {**ROW, "link": "one_shot_all_reduce, symmetric"}]
    rows.append({"beside": "copy", "alone_us": 10.0, "with_link_us": 12.0})
    found = read_links([lines(tmp_path / "links.jsonl", rows)])
    assert found == Links((Transfer("all_reduce", 2, 1 << 20, 20.0),), (1.2,))
    with pytest.raises(InvalidOptionError, match="transfers of two different sizes"):
        fit_links(MADE_UP, found, "x")


def test_a_file_that_is_no_measurement_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="cannot be read as JSON lines"):
        read_links([tmp_path / "missing.jsonl"])
    with pytest.raises(InvalidOptionError, match="line 2 is no measurement of links"):
        read_links([lines(tmp_path / "links.jsonl", [ROW, {"row": "ddp"}])])


def test_the_command_writes_a_device_file_and_says_how_near_it_comes(
    optfuse: Callable[..., Outcome], tmp_path: Path
) -> None:
    rows = [{"link": t.collective, "ranks": t.ranks, "bytes": t.whole, "us": t.us} for t in made_up((2, 8))]
    path = lines(tmp_path / "links.jsonl", rows)
    done = optfuse("calibrate", "--links", path, "--out", tmp_path / "mine.json")
    assert done.code == 0, done.err
    assert load_device(str(tmp_path / "mine.json")).link_ps_per_mib == pytest.approx(4_000_000, rel=1e-3)
    assert "after: 112 transfers, median relative error 0.0%, worst 96.7% (all_" in done.out
    refused = optfuse("calibrate", "--links", path, "--bench", path, "--out", tmp_path / "mine.json")
    assert "--links is a step of its own" in refused.error_line()
