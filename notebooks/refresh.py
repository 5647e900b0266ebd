"""Run the notebooks and keep what is committed of them: text, code, and pictures.

python notebooks/refresh.py [NOTEBOOK.ipynb ...]
"""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import nbformat

HERE = Path(__file__).parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def kept(notebook: Any) -> Any:
    """The notebook without run counts, metadata, and outputs other than pictures."""
    found = deepcopy(notebook)
    found.metadata = nbformat.from_dict(METADATA)
    for cell in found.cells:
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [_picture(output) for output in cell.outputs if "image/png" in output.get("data", {})]
    return found


def _picture(output: Any) -> Any:
    return nbformat.v4.new_output("display_data", data={"image/png": output.data["image/png"]})


def main(paths: list[Path]) -> None:
    """Run each notebook in its folder and write it back."""
    from nbclient import NotebookClient

    for path in paths:
        notebook: Any = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
        nbformat.write(kept(notebook), path)
        print(path.name)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")))
