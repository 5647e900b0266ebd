"""Which kernel is wrong: a program run step by step, and through CUDA graphs, each beside a reference."""
