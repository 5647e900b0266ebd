"""The user's rules before the solver: which ops they put together, whether they can be obeyed, which conflict."""
