"""A model made faster from outside: same numbers, same weights, other kernels and fewer launches.

:func:`accelerate` takes a model and returns one that computes the same. Three means, each of which can be left out:

* blocks are compiled (``compiling``), one function for the blocks of all models of a process;
* in compiled training on a GPU, what a block does between its matrix products is done by Triton kernels that read
  each row once (``rows``), also across the border between two blocks (``block``);
* the forward and backward of a training step are recorded as CUDA graphs and replayed (``recording``, ``replaying``).

The model itself knows nothing of this: its files hold the mathematics, and stay as they are whatever is done here.
"""

from tokengt.accelerate.apply import accelerate, forget, steps_replayed
from tokengt.accelerate.compiling import compiled

__all__ = ["accelerate", "compiled", "forget", "steps_replayed"]
