"""What a row of labels or of predictions belongs to. Torch-free, so that processes that only read files stay small."""

from typing import Literal

Level = Literal["graph", "node", "edge"]
