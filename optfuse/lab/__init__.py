"""Experiments beside the product: only the command line imports them, and they may need extras (`optfuse[lab]`)."""
