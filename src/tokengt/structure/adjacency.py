"""Which nodes a graph joins: the symmetric, binary adjacency behind the Laplacian.

``A_uv = 1`` when

* an edge joins u and v, in either direction; repeated edges count once, and a self-loop sets ``A_uu = 1``;
* u and v are two distinct nodes of one k-tuple (``edge_index`` with more than two rows) or of one hyperedge:
  the clique expansion, which sets no diagonal.
"""

from itertools import combinations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.sparse import sparse_matrix

# Each pair is two entries of A, one per direction: this many pairs take a gigabyte and a half of indices.
MAX_CLIQUE_PAIRS = 100_000_000


def adjacency_pairs(batch: GraphBatch, max_pairs: int = MAX_CLIQUE_PAIRS) -> Int[Tensor, "2 pairs"]:
    """Pairs (u, v) of packed node rows with ``A_uv = A_vu = 1``; one direction is enough, repeats may occur.

    Raises:
        ValueError: when the clique expansion would need more than ``max_pairs`` pairs.
    """
    edges = batch.edge_index
    if batch.order > 2:
        pairs_each = batch.order * (batch.order - 1) // 2
        if batch.num_edges * pairs_each > max_pairs:
            graph = int(batch.edges.host_lengths.argmax())
            raise ValueError(
                f"graph {graph}: its {int(batch.edges.host_lengths[graph])} {batch.order}-tuples bring the clique "
                f"expansion of the batch above {max_pairs} pairs; use identifiers without a Laplacian "
                "(orthogonal random features)"
            )
        edges = torch.cat([edges[[i, j]] for i, j in combinations(range(batch.order), 2)], 1)
        edges = edges[:, edges[0] != edges[1]]
    if batch.num_hyperedges == 0:
        return edges
    return torch.cat([edges, _hyperedge_pairs(batch, max_pairs)], 1)


def joined_nodes(batch: GraphBatch) -> tuple[Int[Tensor, " entries"], Int[Tensor, " entries"]]:
    """Rows and columns of the entries of A that are 1, in the order of rows, then of columns."""
    pairs, nodes = adjacency_pairs(batch), max(1, batch.num_nodes)
    joined = torch.unique(torch.cat([pairs[0] * nodes + pairs[1], pairs[1] * nodes + pairs[0]]))
    return joined // nodes, joined % nodes


def normalised_adjacency(batch: GraphBatch, dtype: torch.dtype = torch.float32) -> Float[Tensor, "nodes nodes"]:
    """(D + I)^(-1/2) (A + I) (D + I)^(-1/2), sparse: what a GCN mixes with (Kipf and Welling 2017).

    D has the number of other nodes that a node is joined to. No entry lies between two graphs of the batch.
    """
    nodes, pairs = batch.num_nodes, adjacency_pairs(batch)
    # One number per entry: sorting those is several times faster than sorting columns of two.
    loops = torch.arange(nodes, device=batch.device) * (nodes + 1)
    entries = torch.unique(torch.cat([pairs[0] * nodes + pairs[1], pairs[1] * nodes + pairs[0], loops]))
    index = torch.stack([entries // nodes, entries % nodes]) if nodes else pairs
    scale = torch.bincount(index[0], minlength=nodes).to(dtype).rsqrt()
    values = scale.index_select(0, index[0]) * scale.index_select(0, index[1])
    return sparse_matrix(index, values, (nodes, nodes))


def _hyperedge_pairs(batch: GraphBatch, max_pairs: int) -> Int[Tensor, "2 pairs"]:
    """All pairs of distinct nodes of every hyperedge: each member with every later member of its hyperedge."""
    sizes = batch.members.host_lengths
    total = int((sizes * (sizes - 1) // 2).sum())
    if total > max_pairs:
        largest = int(sizes.argmax())
        graph, place = batch.graph_of_row(batch.hyperedges, largest)
        raise ValueError(
            f"graph {graph}, hyperedge {place} (the largest, {int(sizes[largest])} nodes): the clique expansion "
            f"of the batch's hyperedges needs {total} pairs, more than {max_pairs}; use identifiers without a "
            "Laplacian (orthogonal random features)"
        )
    members = batch.members
    later = members.lengths.index_select(0, members.ids) - members.positions - 1
    incidence = torch.arange(members.total, device=batch.device)
    first = torch.repeat_interleave(incidence, later, output_size=total)
    start = (later.cumsum(0) - later).index_select(0, first)
    second = first + 1 + torch.arange(total, device=batch.device) - start
    pairs = batch.hyperedge_nodes[torch.stack([first, second])]
    return pairs[:, pairs[0] != pairs[1]]
