"""Tests of optfuse.compiler.frontend.parts."""
