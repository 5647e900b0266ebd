"""From a model to a fusion problem, and from its solution to Triton: each folder is a stage."""
