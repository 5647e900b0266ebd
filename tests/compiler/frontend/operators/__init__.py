"""Tests of optfuse.compiler.frontend.operators."""
