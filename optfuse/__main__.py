"""``python -m optfuse``."""

from optfuse.cli import main

main()
