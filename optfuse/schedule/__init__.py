"""A graph's schedule as frozen data, how it is made, and plans on disk."""
