"""Lines of Python text."""

from __future__ import annotations

import ast
import textwrap

import pytest

from optfuse.compiler.codegen.python_text import call_text


@pytest.mark.parametrize("length", [3, 300])
def test_a_tuple_of_one_stays_one_where_it_is_wrapped(length: int) -> None:
    (statement,) = ast.parse(textwrap.dedent("\n".join(call_text("made = (", ["x" * length], tail=",)")))).body
    assert isinstance(statement, ast.Assign)
    assert isinstance(statement.value, ast.Tuple)
