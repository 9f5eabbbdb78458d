"""The models: one contract, and one file or folder for each kind."""
