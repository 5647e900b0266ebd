"""What makes an instance smaller before it is solved: blocks that can be decided apart, and which are the same."""
