"""Why two ops share a kernel or do not."""
