"""tokengt: graphs in, predictions out, with a plain Transformer (Tokenized Graph Transformer)."""
