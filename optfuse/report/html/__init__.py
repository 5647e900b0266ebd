"""Reports as one HTML file that needs no network: a table, plots, and the partition of each graph as a picture."""
