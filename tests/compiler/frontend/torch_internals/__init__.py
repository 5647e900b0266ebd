"""Tests of optfuse.compiler.frontend.torch_internals."""
