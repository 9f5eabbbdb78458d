"""What a training asks for sooner or later, loaded while other processes featurise and this one would only wait."""

from contextlib import suppress
from importlib import import_module

import torch

from tokengt.kernels.support import softmax_works

# PyTorch's compiler, which the first step of an optimizer imports though nothing is compiled; what pictures are drawn
# by; what grows a forest.
_PACKAGES, _FOREST = ("torch._dynamo", "matplotlib.figure"), "sklearn.ensemble"


def warm_up(device: torch.device, forest: bool) -> None:
    """Import packages, take hold of a GPU, and build or read the first kernels for it.

    Whatever goes wrong is left to whoever needs it later: that may be nobody.
    """
    for name in (*_PACKAGES, _FOREST) if forest else _PACKAGES:
        with suppress(Exception):
            import_module(name)
    if device.type == "cuda":
        with suppress(Exception):
            softmax_works(device)
