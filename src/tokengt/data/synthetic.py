"""Random graphs of the paper's synthetic experiment (Table 1), as the authors generate them.

A Barabási-Albert graph grows node by node. Two properties of the authors' generator are kept because they make the
statistics that the paper prints (14.9 nodes, 47.8 directed edges; picks without repeats would give 62 edges):

* A new node picks among the ends of all edges so far, its own included, with replacement. Repeated picks are one edge,
  and a node that picked itself has none.
* The random stream of a graph starts anew for every node, so that successive nodes make similar picks.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.graph import Graph

# The authors draw three seeds below this bound for every graph and use the first; the other two were for features.
_STREAMS, _STREAMS_PER_GRAPH = 10_000, 3


@dataclass(frozen=True)
class BarabasiAlbertConfig:
    """Sizes of a set of graphs.

    Args:
        num_graphs: how many.
        min_nodes: n is uniform from here ...
        max_nodes: ... to here.
        min_attached: k, the edges a new node asks for, is uniform from here ...
        max_attached: ... to here.
        seed: the same seed, the same graphs (NumPy's frozen legacy stream).
    """

    num_graphs: int = 1280
    min_nodes: int = 10
    max_nodes: int = 20
    min_attached: int = 2
    max_attached: int = 3
    seed: int = 12

    def __post_init__(self) -> None:
        if self.num_graphs < 1:
            raise ValueError(f"num_graphs is {self.num_graphs}; expected at least 1")
        if not 1 <= self.min_attached <= self.max_attached < self.min_nodes <= self.max_nodes:
            raise ValueError(
                f"attached {self.min_attached} to {self.max_attached} and nodes {self.min_nodes} to {self.max_nodes}; "
                "expected 1 <= min_attached <= max_attached < min_nodes <= max_nodes"
            )


def barabasi_albert_edges(num_nodes: int, attached: int, seed: int) -> Int[Tensor, "2 edges"]:
    """Both directions of every edge of one graph, lexicographically, without self-loops and repeats.

    The first ``attached`` nodes are joined along a random permutation of themselves.
    """
    if not 0 < attached < num_nodes:
        raise ValueError(f"attached is {attached} with {num_nodes} nodes; expected 1 to {num_nodes - 1}")
    sources = np.concatenate([np.arange(attached), np.arange(attached, num_nodes).repeat(attached)])
    targets = np.empty_like(sources)
    targets[:attached] = np.random.RandomState(seed).permutation(attached)
    for drawn in range(attached, len(sources), attached):
        ends = np.concatenate([sources[: drawn + attached], targets[:drawn]])
        picks = np.random.RandomState(seed).randint(0, len(ends), attached)
        targets[drawn : drawn + attached] = ends[picks]
    joined = np.zeros((num_nodes, num_nodes), dtype=bool)
    joined[sources, targets] = joined[targets, sources] = True
    np.fill_diagonal(joined, False)
    return torch.from_numpy(np.stack(np.nonzero(joined)))


def barabasi_albert_graphs(config: BarabasiAlbertConfig) -> GraphBatch:
    """``config.num_graphs`` graphs without features, packed."""
    count = config.num_graphs
    # All three streams start from one seed, as in the authors' code, so sizes and attachments are not independent.
    nodes = np.random.RandomState(config.seed).randint(config.min_nodes, config.max_nodes + 1, count)
    attached = np.random.RandomState(config.seed).randint(config.min_attached, config.max_attached + 1, count)
    seeds = np.random.RandomState(config.seed).randint(0, _STREAMS, _STREAMS_PER_GRAPH * count)[::_STREAMS_PER_GRAPH]
    sizes = zip(nodes.tolist(), attached.tolist(), seeds.tolist(), strict=True)
    return GraphBatch.collate([Graph(None, barabasi_albert_edges(n, k, seed), num_nodes=n) for n, k, seed in sizes])


def complete_graphs(batch: GraphBatch) -> GraphBatch:
    """The same numbers of nodes, every ordered pair of distinct nodes an edge: the paper's dense input."""
    sizes = batch.nodes.host_lengths.tolist()
    return GraphBatch.collate([Graph(None, _all_pairs(n), num_nodes=n) for n in sizes])


def _all_pairs(num_nodes: int) -> Int[Tensor, "2 edges"]:
    return torch.nonzero(~torch.eye(num_nodes, dtype=torch.bool)).T.contiguous()
