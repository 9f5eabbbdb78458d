"""A model made faster from outside: same numbers, same weights, other kernels and fewer launches.

:func:`accelerate` takes a model and returns one that computes the same. Three means, each of which can be left out:

* blocks are compiled (``compiling``), one function for the blocks of all models of a process;
* on a GPU, what a block does between its matrix products is done by Triton kernels that read each row once (``rows``),
  also across the border between two blocks (``fast_block``);
* whatever launches the same kernels again and again is recorded as CUDA graphs and replayed (``recording``).

The model itself knows nothing of this: its files hold the mathematics, and stay as they are whatever is done here.
"""

from tokengt.accelerate.apply import accelerate, fast_encoders
from tokengt.accelerate.compiling import compiled
from tokengt.accelerate.recording import Recorder

__all__ = ["Recorder", "accelerate", "compiled", "fast_encoders"]
