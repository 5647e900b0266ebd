"""The user's rules before the solver: which ops they fuse, whether they can be obeyed, which conflict."""
