"""Tests of optfuse.compiler.frontend.passes."""
