"""Which operators stay whole, which fall apart and into what, and which ones a plan may call."""
