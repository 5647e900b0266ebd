"""Tests of optfuse.compiler.frontend.sizes."""
