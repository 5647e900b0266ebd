"""Graphs of AOTAutograd: traced, split into a forward and a backward graph, and stated as captured graphs."""
