"""The command line: one module a subcommand. Environment variables are read here and nowhere else in the package."""

from optfuse.cli.app import main

__all__ = ["main"]
