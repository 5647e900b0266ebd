"""Operators of our own: library calls that ATen has no single operator for.

``attention`` holds the functions, which need torch alone: an emitted module that calls one carries its text.
``registered`` makes them torch operators, so that graphs can hold them.
"""
