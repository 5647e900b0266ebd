"""A block as a model over numbered kernels: each op in one of a few slots. For the smallest number of kernels."""
