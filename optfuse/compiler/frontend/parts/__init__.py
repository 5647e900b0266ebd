"""Graphs that are compiled in parts, and parts that stay as they are."""
