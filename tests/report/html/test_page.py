from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path

import pytest

from optfuse.errors import OutputError
from optfuse.report.html.graph import graph_data
from optfuse.report.html.page import pack, save_page
from tests.report.html.pages import HOSTILE, example_page, hostile


def test_nothing_is_loaded_and_nothing_is_left_to_fill_in() -> None:
    text = example_page()

    outside = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|<link|<img|<script[^>]*\ssrc|@import|url\((?!#)", outside)
    assert "default-src 'none'" in text
    assert "{{" not in text.replace("{{script}}", "")


def test_names_cannot_leave_their_place() -> None:
    text = example_page()

    assert HOSTILE not in text
    assert text.count("<script") == text.count("</script>") == 5 + 2
    report = re.search(r'id="report">(.*?)</script>', text, re.DOTALL)
    assert report is not None
    assert json.loads(report[1])["entries"][4]["graph"] == HOSTILE


def test_a_graph_is_packed_and_the_same_each_time() -> None:
    data = graph_data(*hostile())

    packed = pack(data)

    assert json.loads(gzip.decompress(base64.b64decode(packed))) == data
    assert pack(data) == packed


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text("old")

    save_page("new \N{MICRO SIGN}", target)

    assert target.read_text(encoding="utf-8") == "new \N{MICRO SIGN}"
    with pytest.raises(OutputError, match="UTF-8"):
        save_page("\ud800", target)
    with pytest.raises(OutputError, match="No such file"):
        save_page("x", tmp_path / "missing" / "page.html")
    with pytest.raises(OutputError, match="is a folder"):
        save_page("x", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert target.read_text(encoding="utf-8").startswith("new")
