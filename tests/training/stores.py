"""Small stores in memory."""

import torch

from tests.workflow.small import molecules
from tokengt import Graph, GraphBatch, from_smiles
from tokengt.data.store import Store


def molecule_store(count: int = 12, texts: list[str] | None = None) -> Store:
    """The first molecules of the small set, or these ones with labels 0, 1, 2, ..."""
    if texts is None:
        texts, values = molecules(count)
    else:
        values = [float(place) for place in range(len(texts))]
    graphs = GraphBatch.collate([from_smiles(text) for text in texts])
    return Store.from_memory(graphs, torch.tensor(values)[:, None], target_names=("y",), texts=texts)


def graph_store(graphs: list[Graph], level: str = "graph", split: torch.Tensor | None = None) -> Store:
    batch = GraphBatch.collate(graphs)
    rows = {"graph": len(batch), "node": batch.num_nodes, "edge": batch.num_edges}[level]
    targets = torch.arange(rows, dtype=torch.float64)[:, None]
    return Store.from_memory(batch, targets, target_names=("y",), level=level, split=split)  # type: ignore[arg-type]


def ring(size: int) -> Graph:
    nodes = torch.arange(size)
    ahead = torch.stack([nodes, nodes.roll(-1)])
    return Graph(torch.ones(size, 1), torch.cat([ahead, ahead.flip(0)], 1))
