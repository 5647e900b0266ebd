"""The text of three kernels, to be read by a person when it changes."""

from __future__ import annotations

import pytest

from optfuse.compiler.codegen.triton_kernel import emit_kernel
from tests.compiler.codegen.specs import layer_norm, softmax, transposed_copy


@pytest.mark.parametrize(
    ("pattern", "sizes"), [(softmax, (8192, 1000)), (layer_norm, (4, 70_000)), (transposed_copy, (512, 768))]
)
def test_text(pattern, sizes, golden):
    kernel = emit_kernel(*pattern(*sizes, "bfloat16"))
    facts = "\n".join(f"# {line}" for line in (kernel.config, kernel.interpret, kernel.grid_text, kernel.signature))
    golden(f"{kernel.source}\n{facts}\n", suffix=".py.txt")
