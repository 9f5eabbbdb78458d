"""Triton kernels over packed rows, for GPUs: attention, sparse sums, and what a block does between matrix products.

Packed means that the rows of all sequences of a batch stand one after another in one tensor, without padding.

They know rows, offsets and heads, nothing of models; what each computes is also written in plain PyTorch elsewhere.
``heads``, ``tiles``, ``cuts``, ``edge_orders``, ``runs``, ``attend`` and ``support`` can be imported without Triton,
the other files need it.
"""
