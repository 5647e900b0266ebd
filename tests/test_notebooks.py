"""Notebooks as they are committed: pictures and nothing else of what they print, all of it small."""

from __future__ import annotations

import base64
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
KIB = 1 << 10


@pytest.fixture(scope="module")
def refresh() -> ModuleType:
    spec = importlib.util.spec_from_file_location("refresh", FOLDER / "refresh.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(name: str) -> Any:
    return nbformat.read(FOLDER / name, as_version=4)


def pictures(notebook: Any) -> list[bytes]:
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return [base64.b64decode(output.data["image/png"]) for output in outputs]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_nothing_is_left_of_a_run_but_pictures(name: str, refresh: ModuleType) -> None:
    notebook = read(name)

    assert notebook == refresh.kept(notebook), f"run python notebooks/refresh.py notebooks/{name}"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_pictures_are_there_and_small(name: str) -> None:
    sizes = [len(picture) for picture in pictures(read(name))]

    assert sizes
    assert max(sizes) < 160 * KIB
    assert sum(sizes) < 400 * KIB


def test_what_is_kept_of_a_run(refresh: ModuleType) -> None:
    output = nbformat.v4.new_output
    printed = output("stream", name="stdout", text="1")
    shown = output("execute_result", data={"image/png": "AAAA", "text/plain": "<Figure>"}, execution_count=3)
    cell = nbformat.v4.new_code_cell("f()", outputs=[printed, shown], execution_count=3, metadata={"tags": ["a"]})
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata={"kernelspec": {"name": "mine", "display_name": "Mine"}})

    (left,) = refresh.kept(notebook).cells

    assert [output.data for output in left.outputs] == [{"image/png": "AAAA"}]
    assert (left.execution_count, left.metadata, left.source) == (None, {}, "f()")
    assert notebook.cells[0].execution_count == 3


def test_every_notebook_is_listed() -> None:
    text = (FOLDER / "README.md").read_text()

    assert [name for name in NOTEBOOKS if f"({name})" not in text] == []


def test_data_is_small() -> None:
    assert sum(path.stat().st_size for path in (FOLDER / "data").rglob("*") if path.is_file()) < 1024 * KIB
