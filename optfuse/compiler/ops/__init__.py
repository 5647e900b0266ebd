"""Operators of our own: library calls without a single ATen operator.

The files with functions need torch alone: an emitted module includes the text of those that it calls. ``registered``
registers them with torch, so that graphs can hold them.
"""
