"""Molecules without a target to weights that fine-tuning begins with: what `tokengt pretrain` does."""
