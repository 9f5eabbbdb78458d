"""The paper's model: identifiers, tokens, a plain Transformer, a head."""
