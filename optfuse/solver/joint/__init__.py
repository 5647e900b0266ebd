"""One model for kernels, recompute, order and memory together, for a cap on peak memory."""
