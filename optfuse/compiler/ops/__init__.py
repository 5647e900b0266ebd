"""Operators of our own: library calls that ATen has no single operator for.

The files with functions need torch alone: an emitted module that calls one carries its text.
``registered`` makes them torch operators, so that graphs can hold them.
"""
