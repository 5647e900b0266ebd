"""Tests of optfuse.compiler.frontend.aot_autograd."""
