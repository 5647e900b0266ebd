"""Tests of optfuse.compiler.frontend.convolution_forms."""
