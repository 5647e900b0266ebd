"""The package's public names stay what they are, whatever was imported before."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import optfuse

MODULES = {"errors", "rules"}
NAMES = [name for name in optfuse.__all__ if name not in {*MODULES, "__version__"}]
REFERENCE = Path(__file__).parents[1] / "docs" / "reference" / "python.md"


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_no_module_the_second_time_either(name: str) -> None:
    first = getattr(optfuse, name)
    import_module(first.__module__)

    assert not isinstance(first, ModuleType)
    assert getattr(optfuse, name) is first


def test_the_reference_has_every_public_name_and_where_it_is() -> None:
    entries = re.findall(r"^::: ([\w.]+)\n    options: {heading: optfuse\.(\w+)\b", REFERENCE.read_text(), re.MULTILINE)

    shown = {name: path for path, name in entries if name not in MODULES}
    assert sorted(shown) == sorted(NAMES)
    for name, path in shown.items():
        module, attribute = path.rsplit(".", 1)
        assert getattr(import_module(module), attribute) is getattr(optfuse, name)
