"""Facts of a graph: no parameters, no randomness."""
