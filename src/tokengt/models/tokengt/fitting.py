"""A TokenGT config made to read a data set: feature sizes, layout and head follow from the graphs and their targets."""

from dataclasses import replace

import torch

from tokengt.batch import GraphBatch
from tokengt.data.store import Store
from tokengt.models.common import is_symmetric_task
from tokengt.models.features import spec_of
from tokengt.models.tokengt.heads import HeadConfig
from tokengt.models.tokengt.identifiers import IdentifierConfig, LaplacianIds
from tokengt.models.tokengt.structure import StructureConfig
from tokengt.models.tokengt.tokens import TokensConfig
from tokengt.structure.tuples import merge_directions


def fit_tokens(wanted: TokensConfig, data: Store) -> TokensConfig:
    """The tokens that were asked for, with the features of this data in place of their own.

    Graphs that are no molecules get one token for both directions of an edge only when every edge has its reverse with
    the same features.
    """
    graphs = data.graphs
    tokens = replace(
        wanted,
        node_features=spec_of(data, "node_features"),
        edge_features=spec_of(data, "edge_features"),
        hyperedge_features=spec_of(data, "hyperedge_features"),
        graph_features=spec_of(data, "graph_features"),
    )
    if data.is_molecules:
        return tokens
    merge = graphs.order == 2 and wanted.layout == "undirected" and is_symmetric(graphs)
    hyperedges = graphs.hyperedges.total > 0
    return replace(
        tokens,
        order=graphs.order,
        hyperedges=hyperedges,
        layout="undirected" if merge else "directed",
        pool_mlp=wanted.pool_mlp and (merge or hyperedges),
    )


def fit_identifiers(wanted: IdentifierConfig, data: Store) -> IdentifierConfig:
    """Fixed signs when all nodes are in one graph: a model could not recognise them under changing signs.

    Of links they change all the same: what a model reads of the graph differs with the links that it is asked about,
    and so do its eigenvectors.
    """
    return replace(wanted, sign_flip=False) if _one_graph(data) and isinstance(wanted, LaplacianIds) else wanted


def fit_structure(wanted: StructureConfig, data: Store) -> StructureConfig:
    """The same rule for the signs of eigenpairs."""
    return wanted.with_fixed_signs() if _one_graph(data) else wanted


def _one_graph(data: Store) -> bool:
    return len(data) == 1 and data.manifest.level not in ("graph", "link")


def fit_head(wanted: HeadConfig, data: Store, out_dim: int) -> HeadConfig:
    """The head for the level of the labels; settings that only another level has go back to their defaults."""
    level = data.manifest.level
    readout = wanted.readout if level == "graph" else "token"
    return replace(wanted, level=level, out_dim=out_dim, readout=readout, symmetric=is_symmetric_task(data))


def is_symmetric(graphs: GraphBatch, chunk: int = 4096) -> bool:
    """Whether every edge has its reverse, with the same features."""
    for first in range(0, len(graphs), chunk):
        batch = graphs.select(torch.arange(first, min(first + chunk, len(graphs))))
        try:
            merged = merge_directions(batch)
        except ValueError:
            return False
        loops = int((batch.edge_index[0] == batch.edge_index[1]).sum())
        if 2 * merged.segments.total - loops != batch.num_edges:
            return False
    return True
