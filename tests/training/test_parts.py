"""Parts of a data set: graphs, or rows of one graph, with the labels of one part shown."""

import torch

from tokengt import Graph, GraphBatch
from tokengt.data.splits import Split
from tokengt.level import Level
from tokengt.training.labels import LabelTable
from tokengt.training.parts import Parts, cut

NAN = float("nan")


def two_graphs() -> GraphBatch:
    """Graphs of 2 and 3 nodes with 1 and 2 edges."""
    pair = Graph(num_nodes=2, edge_index=torch.tensor([[0], [1]]))
    path = Graph(num_nodes=3, edge_index=torch.tensor([[0, 1], [1, 2]]))
    return GraphBatch.collate([pair, path]).narrowed()


def split(train: list[int], valid: list[int], test: list[int]) -> Split:
    return Split(*(torch.tensor(part, dtype=torch.int64) for part in (train, valid, test)))


def parts_of(graphs: GraphBatch, targets: torch.Tensor, level: Level, chosen: Split, by_row: bool) -> Parts:
    return cut(graphs, targets, level, chosen, by_row=by_row, costs=torch.ones(len(graphs), dtype=torch.int64))


def test_rows_of_every_level() -> None:
    graphs = two_graphs()
    assert graphs.level_rows("graph").host.tolist() == [0, 1, 2]
    assert graphs.level_rows("node").host.tolist() == [0, 2, 5]
    assert graphs.level_rows("edge").host.tolist() == [0, 1, 3]


def test_labels_per_graph_by_hand() -> None:
    targets = torch.tensor([[1.0, NAN], [NAN, NAN], [0.0, 2.0], [3.0, NAN], [NAN, 1.0]], dtype=torch.float64)
    parts = parts_of(two_graphs(), targets, "node", split([0], [1], []), by_row=False)
    assert parts.labels_per_graph(parts.train, LabelTable(2)).tolist() == [1, 4]
    assert parts.train.places.tolist() == [0]


def test_rows_show_the_labels_of_their_part_only() -> None:
    targets = torch.arange(5, dtype=torch.float64)[:, None]
    parts = parts_of(two_graphs(), targets, "node", split([0, 3], [1], [2, 4]), by_row=True)
    assert parts.train.places.tolist() == [0, 1]
    assert parts.valid.places.tolist() == [0]
    assert parts.test.places.tolist() == [1]
    assert torch.isnan(parts.train.targets).flatten().tolist() == [False, True, True, False, True]
    assert parts.labels_per_graph(parts.train, LabelTable(1)).tolist() == [1, 1]
    assert parts.labels_per_graph(parts.test, LabelTable(1)).tolist() == [0, 2]
    assert parts.test.targets.flatten()[[2, 4]].tolist() == [2.0, 4.0]


def test_graphs_without_edges_hold_no_rows_of_edges() -> None:
    """The row after an empty graph belongs to the next one."""
    batch = GraphBatch.collate([Graph(num_nodes=1), Graph(num_nodes=2, edge_index=torch.tensor([[0], [1]]))])
    targets = torch.ones(1, 1, dtype=torch.float64)
    parts = parts_of(batch.narrowed(), targets, "edge", split([0], [], []), by_row=True)
    assert parts.train.places.tolist() == [1]
