"""What the documents show as printed, run again and put in its place.

    python benchmarks/transcripts.py docs/tutorial.md docs/rules.md docs/howto/add_model.md ...

- A block that begins with ``$ `` is commands with what they print. They run in a folder of the page's own, where
  ``models``, ``instances`` and ``notebooks`` are the repository's; ``<!-- run: COMMAND -->`` runs unseen.
- On a page where output (a block without a language) follows a Python block, its Python blocks are one program, and
  such outputs are what that prints.
- A block titled as a file that the repository does not have is written into the folder first.

A command that shows no output is not run. One that fails where the page shows no error keeps its old output, and is
named on stderr. Read the diff: prose beside an output may speak of its figures.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill

ROOT = Path(__file__).parents[1]
LINKED = ("models", "instances", "notebooks")
#: A block of code: its language and title, and its text.
BLOCK = re.compile(r"^```(?P<head>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
UNSEEN = re.compile(r"<!-- run: (?P<command>.*?) -->", re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')
ERROR = "optfuse: error: "
WIDTH = 125
#: What separates the outputs of a page's Python blocks.
MARK = "@@ the output ends here @@"


class Page:
    """A page's text and the folder that its commands run in."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder = path, folder
        self.text = path.read_text(encoding="utf-8")
        for name in LINKED:
            (folder / name).symlink_to(ROOT / name)
        for block in BLOCK.finditer(self.text):
            title = TITLE.search(block["head"])
            if title and not (ROOT / title[1]).exists():
                (folder / title[1]).write_text(block["text"], encoding="utf-8")

    def run(self, command: str) -> tuple[int, str]:
        """Exit code and all that a shell command prints."""
        print(f"{self.path.name}: {command}", file=sys.stderr)
        tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        place = {"PYTHONPATH": str(ROOT), "PATH": tools, "COLUMNS": "200"}
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env={**os.environ, **place},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, wrapped(done.stdout)

    def remade(self) -> str:
        """The text with every output as it is today."""
        outputs = self._python_outputs()
        parts: list[str] = []
        last = 0
        for found in re.finditer(f"{UNSEEN.pattern}|{BLOCK.pattern}", self.text, re.MULTILINE | re.DOTALL):
            parts.append(self.text[last : found.start()])
            last = found.end()
            if found["command"]:
                code, text = self.run(found["command"])
                if code:
                    complain(f"{found['command']}: {text.strip()[-300:]}")
                parts.append(found[0])
            elif found["text"].startswith("$ "):
                parts.append(f"```{found['head']}\n{self._commands(found['text'])}```")
            elif found.start() in outputs:
                parts.append(f"```\n{outputs[found.start()]}```")
            else:
                parts.append(found[0])
        return "".join([*parts, self.text[last:]])

    def _commands(self, text: str) -> str:
        result: list[str] = []
        for part in re.split(r"^(?=\$ )", text, flags=re.MULTILINE)[1:]:
            line, _, shown = part.partition("\n")
            if not shown.strip():
                result.append(part)
                continue
            code, output = self.run(line[2:])
            if code and ERROR not in shown:
                complain(f"{line[2:]}: {output.strip()[-300:]}")
                output = shown
            result.append(f"{line}\n{output}")
        return "".join(result)

    def _python_outputs(self) -> dict[int, str]:
        """Where each output of the page's Python starts, and what it is."""
        blocks = list(BLOCK.finditer(self.text))
        program: list[str] = []
        places: list[int] = []
        for block, after in zip(blocks, [*blocks[1:], None], strict=True):
            if block["head"] != "python":
                continue
            program.append(block["text"])
            follows = after is not None and not self.text[block.end() : after.start()].strip()
            if after is not None and follows and not after["head"] and not after["text"].startswith(("$ ", "optfuse ")):
                program.append(f"print({MARK!r}, flush=True)")
                places.append(after.start())
            else:
                program.append(f"print({MARK + '-'!r}, flush=True)")
        if not places:
            return {}
        program_file = self.folder / f"{self.path.stem}.py"
        program_file.write_text("\n".join(program), encoding="utf-8")
        code, text = self.run(f"python {program_file.name}")
        if code:
            complain(f"the program of {self.path.name}: {text.strip()[-500:]}")
            return {}
        ends = re.split(f"{MARK}(-?)\n", text)
        shown = [output for output, kind in zip(ends[0::2], ends[1::2], strict=False) if kind != "-"]
        return dict(zip(places, shown, strict=True))


def wrapped(text: str) -> str:
    """Without blanks at the ends of lines, and with long errors on several lines."""
    lines = [line.rstrip() for line in text.splitlines()]
    return "".join(f"{fill(line, WIDTH) if line.startswith(ERROR) else line}\n" for line in lines)


def complain(what: str) -> None:
    """Say what did not run."""
    print(f"FAILED: {what}", file=sys.stderr)


def main() -> None:
    """Remake the pages in place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    for path in parser.parse_args().pages:
        with TemporaryDirectory() as folder:
            path.write_text(Page(path, Path(folder)).remade(), encoding="utf-8")


if __name__ == "__main__":
    main()
