"""The graphs of one cell: generated, split, laid out on a device, and counted."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tokengt.batch import GraphBatch
from tokengt.data.synthetic import barabasi_albert_graphs, complete_graphs
from tokengt.experiments.basis.groups import TokenGroup, group_tokens
from tokengt.experiments.basis.settings import LAPLACIAN_DIM, BasisConfig, Input
from tokengt.structure.laplacian import laplacian_eigenvectors, laplacian_fact


@dataclass(frozen=True, eq=False)
class BasisGraphs:
    """Graphs of one input kind and seed: batches on the CPU, groups of tokens on the device."""

    train: GraphBatch
    test: GraphBatch
    train_groups: list[TokenGroup]
    test_groups: list[TokenGroup]
    statistics: Mapping[str, int | float]


def basis_graphs(config: BasisConfig, kind: Input, seed: int, device: torch.device | str = "cpu") -> BasisGraphs:
    """The authors' graphs. As dense input all pairs are edges; Laplacian identifiers still see the graph itself."""
    generated = barabasi_albert_graphs(config.graphs(kind, seed))
    vectors = laplacian_eigenvectors(generated, LAPLACIAN_DIM).vectors
    batch = complete_graphs(generated) if kind == "dense" else generated
    batch = batch.with_fact(laplacian_fact(LAPLACIAN_DIM, "lowest"), vectors)
    train = batch.select(range(config.train_graphs))
    test = batch.select(range(config.train_graphs, batch.num_graphs))
    train_groups, test_groups = ([group.to(device) for group in group_tokens(part)] for part in (train, test))
    statistics = graph_statistics(generated) | {"tokens": _tokens(batch), "train": len(train), "test": len(test)}
    return BasisGraphs(train, test, train_groups, test_groups, statistics)


def graph_statistics(batch: GraphBatch) -> dict[str, int | float]:
    """Counts as the paper's table of data statistics has them; edges are directed."""
    nodes, edges = batch.nodes.host_lengths, batch.edges.host_lengths
    return {
        "graphs": len(batch),
        "nodes": batch.num_nodes / len(batch),
        "edges": batch.num_edges / len(batch),
        "min_nodes": int(nodes.min()),
        "max_nodes": int(nodes.max()),
        "min_edges": int(edges.min()),
        "max_edges": int(edges.max()),
    }


def _tokens(batch: GraphBatch) -> float:
    return (batch.num_nodes + batch.num_edges) / len(batch)
