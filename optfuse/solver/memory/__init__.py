"""Order and memory of given kernels: lifetimes, the order with the least peak, and places in one arena."""
