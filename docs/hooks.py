"""What the site takes from outside of docs/: documents beside what they describe, notebooks, and files linked to.

Links are written for readers of the repository, relative to the file that holds them. Here they are turned to the pages
that those files become: a document or notebook its own, any other file a page with its text.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable
from pathlib import Path
from textwrap import indent
from typing import Any

import nbformat
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from optfuse.cli.app import app

ROOT = Path(__file__).parents[1]
#: Documents of the repository that are pages of the site.
ELSEWHERE = {
    "instances/README.md": "instances.md",
    "models/README.md": "models.md",
    "notebooks/README.md": "notebooks/index.md",
    "notebooks/data/README.md": "notebooks/data.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
#: Where a page lists the commands.
COMMANDS = "<!-- commands -->"
#: Code that draws is folded from so many lines on.
FOLDED_LINES = 12
LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml", ".csv": "text"}
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents, the notebooks with their pictures, and the files that any of them links to."""
    texts = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    for origin, page in ELSEWHERE.items():
        texts[origin] = (ROOT / origin).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=texts[origin]))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text, pictures = _notebook(path)
        origin = path.relative_to(ROOT).as_posix()
        texts[origin] = text
        files.append(File.generated(config, _page_of(origin), content=text))
        files.append(File.generated(config, origin, abs_src_path=str(path)))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    linked = {target for origin, text in texts.items() for target in _targets(origin, text)}
    for target in sorted(linked - set(texts)):
        if (ROOT / target).is_file() and not target.startswith("docs/"):
            files.append(File.generated(config, _page_of(target), content=_listing(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository into links to their pages, and list the commands where they belong."""
    here = page.file.src_uri
    if COMMANDS in markdown:
        return markdown.replace(COMMANDS, _commands())
    origin = next((file for file, name in _origins(files).items() if name == here), f"docs/{here}")

    def turned(match: re.Match[str]) -> str:
        target = _target(origin, match[1])
        if not (ROOT / target).is_file():
            return match[0]
        goal = target.removeprefix("docs/") if target.startswith("docs/") else _page_of(target)
        return f"]({os.path.relpath(goal, Path(here).parent)}{match[2] or ''})"

    return markdown if here.startswith("source/") else LINK.sub(turned, markdown)


def _origins(files: Files) -> dict[str, str]:
    notebooks = (path.relative_to(ROOT).as_posix() for path in (ROOT / "notebooks").glob("*.ipynb"))
    return ELSEWHERE | {origin: _page_of(origin) for origin in notebooks}


def _page_of(origin: str) -> str:
    """The page that a file of the repository becomes."""
    if origin in ELSEWHERE:
        return ELSEWHERE[origin]
    if origin.endswith(".ipynb"):
        return str(Path(origin).with_suffix(".md"))
    return f"source/{origin}.md"


def _targets(origin: str, text: str) -> Iterable[str]:
    return (_target(origin, match[1]) for match in LINK.finditer(text))


def _target(origin: str, link: str) -> str:
    """The file that a link leads to, from the repository's root."""
    return os.path.normpath(Path(origin).parent / link)


def _listing(target: str) -> str:
    text = (ROOT / target).read_text(encoding="utf-8")
    return f"# {target}\n\n````{LANGUAGES.get(Path(target).suffix, 'text')}\n{text.rstrip()}\n````\n"


def _notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by file name."""
    cells: Any = nbformat.read(path, as_version=4).cells
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(_code(cell.source, folded=bool(cell.outputs)))
        for output in cell.outputs:
            name = f"{path.stem}_{len(pictures)}.png"
            pictures[name] = base64.b64decode(output.data["image/png"])
            parts.append(f"![]({name})")
    parts.insert(1, f"[The notebook as a file]({path.name}){{download}}")
    return "\n\n".join(parts) + "\n", pictures


def _code(source: str, *, folded: bool) -> str:
    """A cell's code; a long one that draws is folded, since the picture is what a reader is after."""
    block = f"```python\n{source}\n```"
    if not folded or source.count("\n") < FOLDED_LINES:
        return block
    return '??? example "The code of the picture"\n\n' + indent(block, "    ")


def _commands() -> str:
    """Each command of the command line with its arguments and options."""
    group: Any = typer.main.get_command(app)
    outer = group.make_context("optfuse", [], resilient_parsing=True)
    parts: list[str] = []
    for name in group.list_commands(outer):
        command = group.get_command(outer, name)
        inner = command.make_context(name, [], parent=outer, resilient_parsing=True)
        usage = command.get_usage(inner).removeprefix("Usage: ")
        records = [parameter.get_help_record(inner) for parameter in command.get_params(inner)]
        rows = [f"| `{names}` | {text} |" for names, text in records if names != "--help"]
        table = "\n".join(["| argument or option | |", "|---|---|", *rows])
        parts.append(f"## optfuse {name}\n\n{command.help}\n\n```\n{usage}\n```\n\n{table}")
    return "\n\n".join(parts)
