"""What a training step saves for its backward graph: proposals, lifetimes of values, and bounds."""
