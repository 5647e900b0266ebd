"""The page itself: data, styles and scripts in one file that loads nothing.

A graph's data is packed (gzip in base64) and unpacked by the browser when the graph is opened, so that a page of a
hundred graphs is a few MB and opens at once. Nothing of the data is ever parsed as HTML: scripts set text only.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from optfuse.files import write_whole

#: In the order in which they are read.
SCRIPTS = (
    *("dom.js", "table.js", "charts.js", "overview.js", "extras.js", "front.js"),
    *("picture.js", "detail.js", "lanes.js", "graph.js", "app.js"),
)


def pack(data: Mapping[str, Any]) -> str:
    """A graph's data as the page holds it. The same data gives the same text."""
    plain = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(plain, 9, mtime=0)).decode()


def page(
    title: str,
    entries: Sequence[Mapping[str, Any]],
    graphs: Mapping[str, str],
    *,
    failures: Sequence[Mapping[str, Any]] = (),
    facts: Sequence[tuple[str, str]] = (),
    extras: Mapping[str, Any] | None = None,
    single: bool = False,
) -> str:
    """The text of the page.

    Args:
        title: For the window and the head of the page.
        entries: One a graph, as ``entries.entries`` gives them.
        graphs: What ``pack`` made of each graph's data, by name; a graph without has no picture.
        failures: Tasks that did not end well.
        facts: Names and values for the end of the page, such as versions.
        extras: What else to show, as ``extras`` reads it: "bench", "pareto".
        single: Open the only graph at once, rather than the overview.
    """
    # A folder's name may hold bytes that are no text.
    title = title.encode("utf-8", "replace").decode("utf-8")
    places = {name: position for position, name in enumerate(graphs)}
    report = {
        "title": title,
        "entries": [{**entry, "data": places.get(entry["graph"])} for entry in entries],
        "failures": list(failures),
        "solvers": sorted({solver for entry in entries for solver in entry["others"]}),
        "facts": [list(fact) for fact in facts],
        "single": single,
        **(extras or {}),
    }
    packed = "\n".join(
        f'<script type="text/plain" id="graph-{position}">{graphs[name]}</script>' for name, position in places.items()
    )
    parts = {
        "title": html.escape(title),
        "style": _static("style.css"),
        "report": json.dumps(report, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "graphs": packed,
        "script": "\n".join(_static(name) for name in SCRIPTS),
    }
    # Cut at the names first: what is filled in is never searched for more of them.
    pieces = _static("page.html").split("{{")
    text = [pieces[0]]
    for piece in pieces[1:]:
        name, rest = piece.split("}}", 1)
        text += [parts[name], rest]
    return "".join(text)


def save_page(text: str, path: str | Path) -> None:
    """Write a page, whole or not at all.

    Raises:
        OutputError: When the file cannot be written.
    """
    target = Path(path)
    write_whole(target, text, "name another file")


def _static(name: str) -> str:
    return (files("optfuse.report.html") / "static" / name).read_text(encoding="utf-8")
