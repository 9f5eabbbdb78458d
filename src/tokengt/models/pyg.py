"""PyTorch Geometric's layers, imported when a model that is made of them is built: other models do not need them."""

from typing import Any

from torch import nn


def pyg_layers() -> Any:
    """The module ``torch_geometric.nn``."""
    try:
        from torch_geometric import nn as layers
    except ImportError as error:
        raise ImportError(
            "this model is made of PyTorch Geometric's layers; pip install torch_geometric brings them"
        ) from error
    return layers


def batch_norm(dim: int) -> nn.Module:
    """Batch norm that takes a single row too, with its running moments: a step may hold one node in all."""
    norm: nn.Module = pyg_layers().BatchNorm(dim, allow_single_element=True)
    return norm


def two_layers(dim: int, hidden: int) -> nn.Sequential:
    """A hidden layer with batch norm and ReLU, and a linear layer."""
    return nn.Sequential(nn.Linear(dim, hidden), batch_norm(hidden), nn.ReLU(), nn.Linear(hidden, dim))
