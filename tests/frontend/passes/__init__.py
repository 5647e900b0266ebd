"""Tests of optfuse.frontend.passes."""
