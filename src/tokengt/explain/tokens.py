"""Which tokens a graph has, in the order of the rows and columns of its attention maps, with names to show.

A model that has no tokens (message passing, a module of one's own) is explained in the same words: there the tokens are
the parts of the graph that can be taken out of it, its nodes and then its edges, both directions of one edge together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokengt.batch import GraphBatch
from tokengt.interop.pyg import as_batch
from tokengt.models.tokengt.model import TokenGT
from tokengt.models.tokengt.token_batch import TokenBatch
from tokengt.structure.tuples import merge_directions

GRAPH, NULL, NODE, EDGE = "graph", "null", "node", "edge"


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of one graph.

    Args:
        kinds: [tokens] "graph" and "null" (the special tokens), "node" or "edge".
        endpoints: [tokens, 2] the nodes (u, v) of each token; a node has u = v, a special token -1. At order k there
            are k columns, and an "edge" is a k-tuple.
        names: [tokens] what each is called: "[graph]", "3", "3-4"; of a molecule "N3", "N3=C4".
        of_edge: [listed edges] the token of every edge, in the order of ``edge_index``.
        directed: whether an edge's token has a direction; False where one stands for both.
    """

    kinds: tuple[str, ...]
    endpoints: NDArray[np.int64]
    names: tuple[str, ...]
    of_edge: NDArray[np.int64]
    directed: bool

    def __len__(self) -> int:
        return len(self.kinds)

    @cached_property
    def nodes(self) -> NDArray[np.int64]:
        """[nodes] the token of every node."""
        return np.flatnonzero(np.array(self.kinds) == NODE)

    @cached_property
    def edges(self) -> NDArray[np.int64]:
        """[edge tokens] the tokens of edges."""
        return np.flatnonzero(np.array(self.kinds) == EDGE)

    @cached_property
    def specials(self) -> NDArray[np.int64]:
        """[special tokens] the tokens that are neither nodes nor edges."""
        return np.flatnonzero(self.endpoints[:, 0] < 0)

    def per_node(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """[nodes] a number per token as one per node: its own, and of each edge an equal part for each of its nodes.

        NaN of an edge counts as 0, NaN of a node's own token stays NaN.
        """
        found = scores[self.nodes].copy()
        for token in self.edges:
            ends, share = np.unique(self.endpoints[token]), np.nan_to_num(scores[token])
            found[ends] += share / len(ends)
        return found

    def named(self, nodes: Sequence[str], joints: Sequence[str] | None = None) -> "Tokens":
        """The same with these names of nodes; ``joints`` [edge tokens] stand between the two names of an edge."""
        names, between = list(self.names), dict(zip(self.edges.tolist(), joints or (), strict=False))
        for node, token in enumerate(self.nodes):
            names[token] = nodes[node]
        for token in self.edges.tolist():
            joint = between.get(token, "→" if self.directed else "-")
            names[token] = joint.join(nodes[end] for end in self.endpoints[token])
        return replace(self, names=tuple(names))


def one_graph(graph: Any) -> GraphBatch:
    """A batch of one graph, whatever a model takes.

    Raises:
        ValueError: there are several, or it has hyperedges.
    """
    packed = as_batch(graph)
    if len(packed) != 1:
        raise ValueError(f"{len(packed)} graphs were given; an explanation is of one, such as batch[0]")
    if packed.num_hyperedges:
        raise ValueError(
            f"the graph has {packed.num_hyperedges} hyperedges; explanations are of nodes and edges (or k-tuples)"
        )
    return packed


def tokens_of(model: Any, batch: GraphBatch, tokens: TokenBatch | None = None) -> Tokens:
    """The tokens of one graph as this model lays them out; ``tokens`` where they are there already."""
    if not isinstance(model, TokenGT):
        return _of_parts(batch)
    laid_out = model.input_terms(batch)[0] if tokens is None else tokens
    config, endpoints = model.config.tokens, laid_out.endpoints.cpu().numpy()
    specials = [GRAPH] * config.graph_token + [NULL] * config.null_token
    count = len(laid_out.node_rows)
    kinds = (*specials, *[NODE] * count, *[EDGE] * (len(endpoints) - len(specials) - count))
    blank = Tokens(
        kinds,
        endpoints,
        tuple(f"[{kind}]" for kind in kinds),
        laid_out.edge_rows.cpu().numpy(),
        config.layout == "directed",
    )
    return blank.named([str(node) for node in range(count)])


def _of_parts(batch: GraphBatch) -> Tokens:
    """Nodes, then edges; both directions of an edge together where they have the same features, else each by itself."""
    try:
        merged = merge_directions(batch)
        first, of_edge, directed = merged.first, merged.of_edge, False
    except ValueError:
        first = of_edge = torch.arange(batch.num_edges)
        directed = True
    nodes = np.arange(batch.num_nodes)[:, None].repeat(batch.order, 1)
    pairs = batch.edge_index[:, first.to(batch.device)].T.cpu().numpy()
    kinds = (*[NODE] * batch.num_nodes, *[EDGE] * len(pairs))
    places = batch.num_nodes + of_edge.cpu().numpy()
    blank = Tokens(kinds, np.concatenate([nodes, pairs]), kinds, places, directed)
    return blank.named([str(node) for node in range(batch.num_nodes)])
