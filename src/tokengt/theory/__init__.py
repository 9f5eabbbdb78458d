"""The paper's Section 3 and its proofs as running code, poured into the production Transformer."""
