"""What a row of labels or of predictions belongs to.

A *link* is a pair of nodes of one graph that is asked about: whether they are, or will be, joined by an edge.

This module does not import torch, so that processes that only read files start quickly and stay small.
"""

from typing import Literal

Level = Literal["graph", "node", "edge", "link"]
