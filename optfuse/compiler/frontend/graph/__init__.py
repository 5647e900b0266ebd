"""A captured graph as data, how it is edited, and what is known of its values."""
