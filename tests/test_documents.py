"""What the documents say that a program can check: links lead somewhere, and examples are those that are shipped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in (".", "docs", "docs/howto", "docs/reference", "instances", "models", "notebooks", "notebooks/data")
    for path in (ROOT / folder).glob("*.md")
)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_relative_links_lead_to_files(document: str) -> None:
    path = ROOT / document
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text())

    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_every_page_has_a_place_in_the_site() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]

    assert [page for page in pages if f" {page}\n" not in navigation] == []


def test_the_example_of_the_format_is_the_file() -> None:
    text = (ROOT / "instances" / "README.md").read_text()

    (shown,) = re.findall(r"```json\n(.*?)```", text, flags=re.DOTALL)

    assert shown == (ROOT / "instances" / "example.json").read_text()
