"""The version: part of every plan, run and cache key."""

__version__ = "0.1.0"
