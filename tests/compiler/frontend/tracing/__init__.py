"""Tests of optfuse.compiler.frontend.tracing."""
