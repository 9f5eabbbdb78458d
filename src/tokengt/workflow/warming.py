"""What a training asks for sooner or later, loaded while other processes featurise and this one would only wait."""

from importlib import import_module
from importlib.util import find_spec

import torch

from tokengt.kernels.support import softmax_works

# PyTorch's compiler, which the first step of an optimizer imports though nothing is compiled; what pictures are drawn
# by; what grows a forest.
_PACKAGES = ("torch._dynamo", "matplotlib.figure", "sklearn.ensemble")


def warm_up(device: torch.device) -> None:
    """Import packages, take hold of a GPU, and build or read the first kernels for it."""
    for name in _PACKAGES:
        if find_spec(name.partition(".")[0]):
            import_module(name)
    if device.type == "cuda":
        softmax_works(device)
