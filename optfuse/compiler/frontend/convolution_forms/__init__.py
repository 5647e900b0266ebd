"""Forms in which convolutions and their gradients are fast: matrix products, and operators of ours."""
