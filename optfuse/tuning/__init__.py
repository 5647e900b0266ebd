"""Tiles and warps found by measuring: a small search a kernel, whose results are kept on disk."""
