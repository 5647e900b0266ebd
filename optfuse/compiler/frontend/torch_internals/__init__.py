"""Interfaces of PyTorch that are private or change between versions."""
