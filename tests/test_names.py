"""The package's public names stay what they are, whatever was imported before."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest

import optfuse

MODULES = {"errors", "rules"}


@pytest.mark.parametrize("name", [name for name in optfuse.__all__ if name not in {*MODULES, "__version__"}])
def test_a_public_name_is_no_module_the_second_time_either(name: str) -> None:
    first = getattr(optfuse, name)
    import_module(first.__module__)

    assert not isinstance(first, ModuleType)
    assert getattr(optfuse, name) is first
