"""Device files: those that ship, and what is said of one that cannot be read."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from optfuse.errors import InvalidOptionError
from optfuse.problem.device_files import DEFAULT_DEVICE, device_of, known_devices, load_device


def test_those_that_ship() -> None:
    assert "h200" in known_devices()
    assert [load_device(name).name for name in known_devices()] == list(known_devices())


def test_kernels_may_share_launches_on_all_that_ship() -> None:
    devices = [load_device(name) for name in known_devices()]
    assert all(0 < device.shared_ps < device.launch_ps for device in devices)


def test_a_gpu_is_known_by_a_word_of_its_name() -> None:
    assert device_of("NVIDIA H200") == "h200"
    assert device_of("NVIDIA GH200 480GB") is None
    assert device_of("NVIDIA A10G") is None
    assert DEFAULT_DEVICE in known_devices()


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    device = dataclasses.replace(load_device("h200"), name="mine", launch_ps=7)
    (tmp_path / "mine.json").write_text(json.dumps(dataclasses.asdict(device)))

    assert load_device(str(tmp_path / "mine.json")) == device


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidOptionError, match="did you mean 'h200'"):
        load_device("h20")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"launch_ps": -1}, "launch_ps must be from 0"),
        ({"launch_ps": 10**400}, "launch_ps must be from 0"),
        ({"launch_ps": "2"}, "launch_ps: expected a whole number, got '2'"),
        ({"launch_ps": 2.0}, "launch_ps: expected a whole number"),
        ({"name": 3}, "name: expected a string"),
        ({"lunch_ps": 3}, "lunch_ps: unknown key; the nearest known one is 'launch_ps'"),
    ],
)
def test_a_malformed_file_is_one_clear_line(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    data = {**dataclasses.asdict(load_device("h200")), **change}
    (tmp_path / "bad.json").write_text(json.dumps(data))

    with pytest.raises(InvalidOptionError, match=reason) as caught:
        load_device(str(tmp_path / "bad.json"))
    assert "bad.json" in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b"\xff\xfe\x00", b"[" * 100_000])
def test_what_is_no_device_at_all(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "bad.json").write_bytes(text)

    with pytest.raises(InvalidOptionError, match=r"bad\.json") as caught:
        load_device(str(tmp_path / "bad.json"))
    assert "\n" not in str(caught.value)


def test_a_missing_file() -> None:
    with pytest.raises(InvalidOptionError, match="does not exist"):
        load_device("absent.json")
