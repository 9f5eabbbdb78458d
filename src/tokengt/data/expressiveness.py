"""Graphs that are hard to tell apart, read from a folder of public files: BREC, SR25 and CSL. Nothing is unpickled.

Graphs are graph6 strings, which NetworkX reads, or edge lists. They have no features and list both directions.
"""

from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tokengt.graph import Graph
from tokengt.interop.networkx import from_networkx

BrecCategory = Literal["basic", "regular", "str", "4vtx", "dr", "extension", "cfi"]
BREC_CATEGORIES: tuple[BrecCategory, ...] = get_args(BrecCategory)


def graph6(text: str | bytes) -> Graph:
    """The graph that a graph6 string spells."""
    try:
        import networkx
    except ImportError as error:
        raise ValueError("reading graph6 needs NetworkX; pip install networkx") from error
    try:
        return from_networkx(networkx.from_graph6_bytes(text.encode() if isinstance(text, str) else bytes(text)))
    except (networkx.NetworkXError, ValueError, IndexError) as error:
        raise ValueError(f"{text!r} is no graph6 string ({error})") from error


def brec_pairs(folder: Path, category: BrecCategory) -> list[tuple[Graph, Graph]]:
    """Pairs of graphs that are not isomorphic and that colour refinement does not tell apart (Wang and Zhang 2024).

    Args:
        folder: with ``brec/<category>.npy``.
        category: basic (60 pairs), regular (50), str (50, strongly regular), 4vtx (20), dr (20, distance-regular),
            extension (100) or cfi (100).
    """
    if category not in BREC_CATEGORIES:
        raise ValueError(f"category is {category!r}; expected one of {', '.join(BREC_CATEGORIES)}")
    # Some categories are stored flat, with the two graphs of a pair one after another.
    texts = np.load(_existing(folder / "brec" / f"{category}.npy"), allow_pickle=False).reshape(-1, 2)
    return [(graph6(first), graph6(second)) for first, second in texts.tolist()]


def strongly_regular_25(folder: Path) -> list[Graph]:
    """The 15 strongly regular graphs with parameters (25, 12, 5, 6)."""
    return [graph6(line) for line in _existing(folder / "sr25.g6").read_bytes().split()]


def circular_skip_links(folder: Path) -> tuple[list[Graph], Int[Tensor, " graphs"]]:
    """150 circular skip-link graphs of 41 nodes, and the class (0 to 9) of each (Murphy et al. 2019)."""
    with np.load(_existing(folder / "csl.npz"), allow_pickle=False) as arrays:
        edges, classes = torch.from_numpy(arrays["edges"]).long(), torch.from_numpy(arrays["y"])
    both = torch.cat([edges, edges.flip(1)], 2)
    return [Graph(num_nodes=41, edge_index=index) for index in both], classes


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise ValueError(f"{file} does not exist; expected the expressiveness data there")
    return file
