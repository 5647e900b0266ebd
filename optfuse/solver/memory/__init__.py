"""Order and memory of given kernels: lifetimes, the order of least peak, and offsets in one arena."""
