"""The kernels that a block may choose from, its columns: ops that stay together, how they grow, what they cost."""
