"""Tests of optfuse.compiler.frontend."""
