"""What a row of labels or of predictions belongs to.

This module does not import torch, so that processes that only read files start quickly and stay small.
"""

from typing import Literal

Level = Literal["graph", "node", "edge"]
