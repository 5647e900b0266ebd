"""Tests of optfuse.compiler.frontend.layouts."""
