"""One graph whose nodes have classes, by its name: every layout of files gives the same graph."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.published import zipped
from tokengt.data._node_graphs import benchmark, both_directions, compact, heterophilous, wikipedia
from tokengt.data.catalogue import DATASETS
from tokengt.data.manifest import Recipe
from tokengt.data.named import named_store
from tokengt.data.splits import class_split
from tokengt.data.splitting import SplitRequest, make_splits
from tokengt.data.store import Store
from tokengt.sparse import SparseRows, as_dense
from tokengt.workflow.inputs import open_data

REAL = Path(os.environ.get("TOKENGT_DATA", Path(__file__).parents[3] / "shared" / "data")) / "nodes"
# A path of four nodes with a self-loop, words of five, and three classes.
EDGES = [[0, 2, 1, 3], [1, 1, 2, 3]]
WORDS = [[0, 4], [], [1], [4, 2]]
LABELS = [2, 0, 1, 1]
DENSE = [[1, 0, 0, 0, 1], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 1]]


def compact_file(path: Path) -> Path:
    np.savez(
        path,
        edge_index=np.array(EDGES, dtype=np.uint16),
        num_nodes=np.int32(4),
        x_indptr=np.array([0, 2, 2, 3, 5]),
        x_indices=np.array([0, 4, 1, 4, 2], dtype=np.uint16),
        x_data=np.array([1, 3, 2, 7, 1]),
        x_shape=np.array([4, 5]),
        y=np.array(LABELS, dtype=np.uint8),
    )
    return path


def benchmark_file(path: Path) -> Path:
    """The adjacency in one direction, as its authors have some of them, and counts of words."""
    np.savez(
        path,
        adj_data=np.ones(4),
        adj_indices=np.array([1, 2, 1, 3]),
        adj_indptr=np.array([0, 1, 2, 3, 4]),
        adj_shape=np.array([4, 4]),
        attr_data=np.array([1.0, 3, 2, 7, 1]),
        attr_indices=np.array([0, 4, 1, 4, 2]),
        attr_indptr=np.array([0, 2, 2, 3, 5]),
        attr_shape=np.array([4, 5]),
        labels=np.array(LABELS),
    )
    return path


def test_both_directions_are_listed_once_in_order_and_without_loops() -> None:
    edges = both_directions(torch.tensor(EDGES), 4)
    assert edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]


@pytest.mark.parametrize(("read", "write"), [(compact, compact_file), (benchmark, benchmark_file)])
def test_co_authors_and_products_are_undirected_with_words_that_are_there_or_not(read, write, tmp_path: Path) -> None:
    found = read([write(tmp_path / "graph.npz")])
    assert isinstance(found.graphs.node_features, SparseRows)
    assert found.graphs.node_features.dense().tolist() == DENSE
    assert found.graphs.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert (found.targets[:, 0].tolist(), found.classes, found.level) == (LABELS, ("0", "1", "2"), "node")


def test_pages_are_joined_both_ways_and_their_traffic_becomes_six_classes(tmp_path: Path) -> None:
    files = {
        "wikipedia/chameleon/musae_chameleon_edges.csv": b"id1,id2\n0,1\n2,1\n1,2\n3,3\n",
        "wikipedia/chameleon/musae_chameleon_target.csv": b"id,target\n0,100\n2,1000\n1,31623\n3,999\n",
        "wikipedia/chameleon/musae_chameleon_features.json": json.dumps(
            {str(node): words for node, words in enumerate(WORDS)}
        ).encode(),
    }
    (tmp_path / "wikipedia.zip").write_bytes(zipped(files))
    found = wikipedia([tmp_path / "wikipedia.zip"], name="chameleon")
    assert as_dense(found.graphs.node_features).tolist() == DENSE
    assert found.graphs.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    # Cut at 10^2.5, 10^3, ..., 10^4.5: a number at a cut belongs to the class above it.
    assert found.targets[:, 0].tolist() == [0, 5, 2, 1]
    with pytest.raises(ValueError, match=r"holds no musae_crocodile_edges\.csv"):
        wikipedia([tmp_path / "wikipedia.zip"], name="crocodile")


def test_heterophilous_graphs_bring_all_their_splits(tmp_path: Path) -> None:
    masks = np.array([[[1, 0, 0, 0], [0, 1, 0, 0]], [[0, 1, 0, 0], [1, 0, 0, 0]], [[0, 0, 1, 0], [0, 0, 1, 1]]]) == 1
    np.savez(
        tmp_path / "graph.npz",
        node_features=np.array(DENSE, dtype=np.float32),
        node_labels=np.array([0, 1, 1, 0]),
        edges=np.array(EDGES).T,
        train_masks=masks[0],
        val_masks=masks[1],
        test_masks=masks[2],
    )
    found = heterophilous([tmp_path / "graph.npz"])
    assert found.classes is None, "0 and 1 are a binary task"
    assert found.split.tolist() == [[0, 1], [1, 0], [2, 2], [-1, 2]]
    store = Store.from_memory(found.graphs, found.targets, target_names=("y",), level="node", split=found.split)
    (first,), by_row = make_splits(store, SplitRequest())
    assert by_row
    assert [part.tolist() for part in (first.train, first.valid, first.test)] == [[0], [1], [2]]
    (second,), _ = make_splits(store, SplitRequest("given:1"))
    assert [part.tolist() for part in (second.train, second.valid, second.test)] == [[1], [0], [2, 3]]
    with pytest.raises(ValueError, match="the data came with 2 of them, counted from 0"):
        make_splits(store, SplitRequest("given:2"))


def test_a_split_per_class_holds_so_many_of_each_and_says_where_a_class_is_small() -> None:
    labels = torch.tensor([0] * 100 + [1] * 61 + [2] * 60 + [3] * 2 + [-1] * 5)
    split = class_split(labels, 3, names=["a", "b", "c", "d"])
    counted = [torch.bincount(labels[part], minlength=4).tolist() for part in (split.train, split.valid, split.test)]
    assert counted == [[40, 1, 20, 2], [30, 30, 20, 0], [30, 30, 20, 0]]
    every = torch.cat([split.train, split.valid, split.test]).sort().values
    assert torch.equal(every, torch.arange(223)), "each labelled place once, and none without a label"
    assert "2 classes have at most 60 labelled rows" in split.sentences()[-1]
    assert "c (60), d (2)" in split.sentences()[-1]
    again, other = class_split(labels, 3), class_split(labels, 4)
    assert torch.equal(split.test, again.test)
    assert not torch.equal(split.test, other.test)


def test_rows_without_a_label_are_in_no_part_of_a_random_split() -> None:
    labels = torch.tensor([0.0, 1.0] * 10 + [torch.nan] * 20).double()[:, None]
    graph = compact_graph(len(labels))
    store = Store.from_memory(graph, labels, target_names=("y",), level="node")
    (split,), _ = make_splits(store, SplitRequest("random", 1, (0.6, 0.2, 0.2)))
    assert [len(part) for part in (split.train, split.valid, split.test)] == [12, 4, 4]
    assert int(torch.cat([split.train, split.valid, split.test]).max()) < 20
    (split,), _ = make_splits(store, SplitRequest("per-class:3", 1))
    assert [len(part) for part in (split.train, split.valid, split.test)] == [8, 6, 6]
    with pytest.raises(ValueError, match="'per-class:0'; expected a whole number from 1"):
        SplitRequest("per-class:0")
    with pytest.raises(ValueError, match="these labels are numbers"):
        make_splits(replace(store, targets=labels + 0.5), SplitRequest("per-class"))


def compact_graph(nodes: int):
    from tokengt import Graph, GraphBatch

    return GraphBatch.collate([Graph(edge_index=torch.tensor([[0], [1]]), num_nodes=nodes)])


def test_a_data_set_of_pyg_is_taken_as_it_is(tmp_path: Path) -> None:
    """PyG's ``Amazon`` processes the raw file that it would have downloaded: the same graph as ours of that file."""
    pytest.importorskip("torch_geometric")
    from torch_geometric.datasets import Amazon

    raw = tmp_path / "Photo" / "raw"
    raw.mkdir(parents=True)
    ours = benchmark([benchmark_file(raw / "amazon_electronics_photo.npz")])
    store = open_data(Amazon(str(tmp_path), "Photo"), Recipe(level="node"), tmp_path / "store", quiet=True)
    assert torch.equal(as_dense(store.graphs.node_features), as_dense(ours.graphs.node_features))
    assert torch.equal(store.graphs.edge_index, ours.graphs.edge_index)
    assert torch.equal(store.targets, ours.targets)
    assert store.manifest.targets[0].classes == ours.classes


def test_what_pyg_may_read_it_may_still_read_afterwards(tmp_path: Path) -> None:
    """A file of PyG's is read with its classes allowed; those that PyG had allowed by itself stay so."""
    data = pytest.importorskip("torch_geometric.data")
    before = set(torch.serialization.get_safe_globals())
    assert data.Data in before
    torch.save(data.Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=torch.ones(1)), tmp_path / "one.pt")
    open_data(tmp_path / "one.pt", Recipe(level="graph"), tmp_path / "store", quiet=True)
    assert set(torch.serialization.get_safe_globals()) == before


@pytest.mark.parametrize(
    ("name", "width", "edges", "classes"),
    [
        ("chameleon", 3132, 2 * 31371, 6),
        ("amazon-photo", 745, 2 * 119081, 8),
        ("chameleon-filtered", 2325, 2 * 8854, 5),
    ],
)
def test_real_graphs_by_name(
    name: str, width: int, edges: int, classes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not REAL.is_dir():
        pytest.skip("no nodes here (set TOKENGT_DATA)")
    monkeypatch.setenv("TOKENGT_DATA", str(REAL.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = named_store(DATASETS[name], progress=False)
    assert isinstance(store.graphs.node_features, SparseRows)
    assert (store.graphs.num_nodes, store.graphs.num_edges) == (DATASETS[name].rows, edges)
    assert store.graphs.node_features.shape[1] == width
    assert len(store.manifest.targets[0].classes) == classes
    assert (store.split is not None) == DATASETS[name].has_split
