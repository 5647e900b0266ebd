"""Tests of optfuse.compiler.frontend.graph."""
