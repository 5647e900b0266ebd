"""Tests of optfuse.frontend."""
