"""What the documents say that a program can check: links lead somewhere, and examples are those that are shipped."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from optfuse.cli.app import app

ROOT = Path(__file__).parents[1]
FOLDERS = (".", "instances", "models", "notebooks", "notebooks/data")
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*(file for folder in FOLDERS for file in (ROOT / folder).glob("*.md")), *(ROOT / "docs").rglob("*.md"))
)
#: The change log speaks of names as they were.
PRESENT = [name for name in DOCUMENTS if name != "CHANGELOG.md"]
#: Python files that pages speak of and this repository does not hold: a user's, and what optfuse writes.
ELSEWHERE = {
    *("MODEL.py", "model.py", "mine.py", "broken.py", "tutorial.py", "weight_meta.py", "input_meta.py"),
    *("kernels.py", "modeling_gpt2.py"),
}
FOLDERS_ELSEWHERE = {"runs/zoo"}
SOURCES = [f"/{path.relative_to(ROOT).as_posix()} " for path in ROOT.glob("*/**/*.py") if ".venv" not in path.parts]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_relative_links_lead_to_files(document: str) -> None:
    path = ROOT / document
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text())

    assert [target for target in targets if not (path.parent / target).exists()] == []


NOTEBOOKS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "notebooks").glob("*.ipynb"))
SCRIPTS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("benchmarks", "docs", "instances", "models", "notebooks", "notebooks/data")
    for path in (ROOT / folder).glob("*.py")
)
NOTEBOOK = ROOT / "docs" / "lab" / "notebook"
NOTES = sorted(path.name for path in NOTEBOOK.glob("*.md") if path.name != "index.md")


def missing(text: str) -> list[str]:
    """The paths in optfuse, Python files, and dotted names of optfuse in a text that do not exist."""
    paths = [name.rstrip(".") for name in re.findall(r"\boptfuse(?:/\w[\w.]*)+", text)]
    files = [name for name in re.findall(r"[\w/]*\w\.py\b", text) if Path(name).name not in ELSEWHERE]
    folders = [name for name in re.findall(r"`([a-z]\w*(?:/\w+)+)/?`", text) if name not in FOLDERS_ELSEWHERE]
    names = re.findall(r"\boptfuse(?:\.[A-Za-z_]\w*)+", text)
    names += [
        f"{module}.{name.strip()}"
        for module, imported in re.findall(r"from (optfuse[\w.]*) import ([\w, ]+)", text)
        for name in imported.split(",")
    ]
    return [
        *(folder for folder in folders if not (ROOT / folder).is_dir() and not in_sources(f"/{folder}/")),
        *(path for path in paths if not (ROOT / path).exists()),
        *(file for file in files if not in_sources(f"/{file.lstrip('/')} ")),
        *(name for name in names if not exists(name)),
    ]


def in_sources(part: str) -> bool:
    """Whether a part of a path, between slashes or ended by a blank, is one of some Python file of the repository."""
    return any(part in source for source in SOURCES)


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    found: Any = import_module("optfuse")
    for depth, part in enumerate(name.split(".")[1:], start=2):
        if not hasattr(found, part):
            try:
                import_module(".".join(name.split(".")[:depth]))
            except ModuleNotFoundError:
                return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("document", PRESENT)
def test_files_and_names_of_optfuse_exist(document: str) -> None:
    assert missing((ROOT / document).read_text()) == []


@pytest.mark.parametrize("document", PRESENT)
def test_a_link_that_is_named_like_a_file_leads_to_it(document: str) -> None:
    links = re.findall(r"\[`?([\w/]+\.py)`?\]\(([^)#]+)", (ROOT / document).read_text())

    assert [(name, target) for name, target in links if not f"/{target}".endswith(f"/{name}")] == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_a_script_imports_of_optfuse_exists(script: str) -> None:
    imports = [node for node in ast.walk(ast.parse((ROOT / script).read_text())) if isinstance(node, ast.ImportFrom)]
    names = [f"{node.module}.{alias.name}" for node in imports for alias in node.names]

    assert [name for name in names if name.startswith("optfuse.") and not exists(name)] == []


def test_what_does_not_exist_is_found() -> None:
    text = """See `solve/cpsat`, `optfuse/solve/model.py`, `exact_order.py`, [the cost](optfuse/problem/cost.py),
    `optfuse.api.solved`, `optfuse.api.optimize` and `from optfuse.problem import Instance, Problem`."""

    assert missing(text) == [
        *("solve/cpsat", "optfuse/solve/model.py", "exact_order.py"),
        *("optfuse.api.solved", "optfuse.problem.Problem"),
    ]


@pytest.mark.parametrize("note", NOTES)
def test_a_laboratory_note_begins_with_its_date_and_command(note: str) -> None:
    title, first, dated, second, fence, command, *_ = (NOTEBOOK / note).read_text().splitlines()

    assert (title[:2], first, second, fence) == ("# ", "", "", "```")
    assert re.match(r"20\d\d-\d\d-\d\d( to 20\d\d-\d\d-\d\d)?, .*:$", dated)
    assert command.split()[0] in {"optfuse", "python"}


@pytest.mark.parametrize("page", [*PRESENT, *NOTEBOOKS])
def test_pages_and_notebooks_import_from_optfuse_alone(page: str) -> None:
    text = (ROOT / page).read_text()

    assert re.findall(r"(?:from|import) optfuse\.[\w.]+", text) == []


def test_the_architecture_names_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = [path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "optfuse").glob("*/**/__init__.py")]

    named = set(re.findall("`(.+?)`", text))

    assert [name for name in packages if not {name, name.removeprefix("optfuse/")} & named] == []


def test_every_laboratory_note_is_listed() -> None:
    text = (NOTEBOOK / "index.md").read_text()

    assert [note for note in NOTES if f"({note})" not in text] == []


def test_every_page_has_a_place_in_the_site() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]

    assert [page for page in pages if f" {page}\n" not in navigation] == []


def test_the_readme_is_short_and_says_how_to_test() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()

    assert len(lines) <= 80
    assert any(line.startswith("make test ") for line in lines)


def test_every_command_is_listed() -> None:
    text = (ROOT / "docs" / "reference" / "cli.md").read_text()
    commands = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]

    assert sorted(re.findall(r"^\| `optfuse (\w+)` \|", text, flags=re.MULTILINE)) == sorted(commands)


def test_the_example_of_the_format_is_the_file() -> None:
    text = (ROOT / "instances" / "README.md").read_text()

    (shown,) = re.findall(r"```json\n(.*?)```", text, flags=re.DOTALL)

    assert shown == (ROOT / "instances" / "example.json").read_text()
