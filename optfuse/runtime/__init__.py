"""Load, run, check and measure emitted programs."""
