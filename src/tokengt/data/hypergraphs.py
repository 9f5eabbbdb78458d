"""Public hypergraphs with node labels, read from .npz files without pickles."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

_ARRAYS = ("he_ptr", "he_nodes", "x_indptr", "x_indices", "x_shape", "y")


@dataclass(frozen=True, eq=False)
class LabelledHypergraph:
    """One hypergraph whose nodes are to be classified.

    ``hyperedges`` are tuples of distinct nodes; ``labels`` are 0 up to ``num_classes``.
    """

    name: str
    node_features: Float[Tensor, "nodes width"]
    hyperedges: tuple[tuple[int, ...], ...]
    labels: Int[Tensor, " nodes"]

    @property
    def num_nodes(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return int(self.labels.max()) + 1


def read_hypergraph(file: Path) -> LabelledHypergraph:
    """A hypergraph from ``file``: hyperedges as CSR ``he_ptr``, ``he_nodes``; features as CSR ``x_*``; labels ``y``.

    Absent ``x_data`` means ones.

    Raises:
        ValueError: the file is missing, or is none of these.
    """
    if not file.is_file():
        raise ValueError(f"{file} does not exist; expected a hypergraph in .npz format")
    with np.load(file, allow_pickle=False) as arrays:
        missing = [name for name in _ARRAYS if name not in arrays]
        if missing:
            raise ValueError(f"{file} has no array {missing[0]!r}; expected {', '.join(_ARRAYS)}")
        bounds, nodes = arrays["he_ptr"].tolist(), arrays["he_nodes"].tolist()
        rows, columns = (int(size) for size in arrays["x_shape"])
        row = np.repeat(np.arange(rows), np.diff(arrays["x_indptr"]))
        features = np.zeros((rows, columns), np.float32)
        features[row, arrays["x_indices"]] = arrays.get("x_data", 1.0)
        labels = arrays["y"].astype(np.int64)
    return LabelledHypergraph(
        name=file.stem,
        node_features=torch.from_numpy(features),
        hyperedges=tuple(tuple(nodes[a:b]) for a, b in pairwise(bounds)),
        labels=torch.from_numpy(labels),
    )
