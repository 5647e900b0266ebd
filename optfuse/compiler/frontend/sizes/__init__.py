"""Sizes and numbers that change from call to call."""
