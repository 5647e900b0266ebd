"""Orders of given kernels in which communication runs beside computation."""
