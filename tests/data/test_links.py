"""Stores of links: negatives beside positives, parts that share nothing, PyG's edge_label_index."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tokengt import Graph, GraphBatch
from tokengt.data.graph_sources import read_pyg, read_pyg_graphs, read_pyg_list
from tokengt.data.links import as_links, asked_alone, read_without, with_negatives
from tokengt.data.splits import Split
from tokengt.data.splitting import SplitRequest, make_splits
from tokengt.data.store import Store
from tokengt.links import joined

# Two triangles with a bridge, 2 - 3, in both directions.
ENDS = torch.tensor([[0, 0, 1, 2, 3, 3, 4], [1, 2, 2, 3, 4, 5, 5]])
EDGES = torch.cat([ENDS, ENDS.flip(0)], 1)


def _store(graphs: int = 1) -> Store:
    whole = GraphBatch.collate([Graph(num_nodes=6, edge_index=EDGES) for _ in range(graphs)])
    return as_links(Store.from_memory(whole, torch.zeros(len(whole), 1), target_names=("y",)))


def _split(train: list[int], valid: list[int], test: list[int]) -> Split:
    return Split(*(torch.tensor(part, dtype=torch.int64) for part in (train, valid, test)))


def test_any_store_is_asked_about_its_edges() -> None:
    store = _store()
    assert store.graphs.link_index.tolist() == ENDS.tolist()
    assert store.targets.tolist() == [[1.0]] * 7
    assert (store.manifest.level, store.manifest.target_names) == ("link", ("link",))
    with pytest.raises(ValueError, match="no edge between two nodes"):
        as_links(Store.from_memory(GraphBatch.collate([Graph(num_nodes=2)]), torch.zeros(1, 1), target_names=("y",)))


def test_every_positive_gets_a_negative_that_goes_into_its_part() -> None:
    store = with_negatives(_store(2), seed=1)
    assert store.drawn is not None
    positive = store.targets[:, 0] == 1
    assert positive.tolist() == ([True] * 7 + [False] * 7) * 2
    assert store.drawn.tolist() == [*[-1] * 7, *range(7), *[-1] * 7, *range(14, 21)]
    assert not bool(joined(store.graphs, store.graphs.link_index[:, ~positive]).any())
    assert with_negatives(store, seed=2) is store, "a table with negatives is left as it is"
    (split,), by_row = make_splits(store, SplitRequest(seed=3))
    assert by_row
    codes = split.codes(len(store.targets))
    assert codes[~positive].tolist() == codes[store.drawn[~positive]].tolist()
    assert torch.equal(with_negatives(_store(2), seed=1).graphs.link_index, store.graphs.link_index)


def test_what_validates_or_tests_is_read_by_nobody() -> None:
    store = _store()
    left = read_without(store, _split([0, 1, 2, 3], [4], [5])).graphs
    # 3-4 and 3-5 are asked about later, and 4-5 is of no part.
    assert left.edge_index.tolist() == [[0, 0, 1, 2, 1, 2, 2, 3], [1, 2, 2, 3, 0, 0, 1, 2]]
    assert left.link_index.tolist() == ENDS.tolist(), "they are still asked about"


def test_parts_that_tell_each_other_or_leave_nothing_are_refused() -> None:
    store = _store()
    twice = store.graphs.with_own_links([torch.tensor([[0, 1], [1, 0]])])
    again = Store.from_memory(twice, torch.ones(2, 1), target_names=("link",), level="link")
    with pytest.raises(ValueError, match="nodes 1 and 0 stands in the train and the test part"):
        read_without(again, _split([0], [], [1]))
    unread = store.graphs.with_own_links([torch.cat([torch.tensor([[0], [5]]), ENDS], 1)])
    far = Store.from_memory(unread, torch.ones(8, 1), target_names=("link",), level="link")
    with pytest.raises(ValueError, match="all 14 edges are asked about by the validation and the test part"):
        read_without(far, _split([0], [1, 2, 3], [4, 5, 6, 7]))
    with pytest.raises(ValueError, match="no pair of the training part has the label 1"):
        read_without(replace(store, targets=1 - store.targets), _split([2], [0], [1]))
    with pytest.raises(ValueError, match=r"every edge of .* is asked about, so that none is left to read"):
        asked_alone(store)


def _data(**attributes: Any) -> Any:
    data = pytest.importorskip("torch_geometric.data")
    return data.Data(x=torch.arange(6.0)[:, None], edge_index=EDGES, **attributes)


def test_pyg_pairs_are_read_with_their_labels(tmp_path: Path) -> None:
    pairs, labels = torch.tensor([[0, 0, 5], [3, 4, 1]]), torch.tensor([1.0, 0.0, 1.0])
    found = read_pyg_list([_data(edge_label_index=pairs, edge_label=labels)], level="link")
    assert found.graphs.link_index.tolist() == pairs.tolist()
    assert found.targets[:, 0].tolist() == [1, 0, 1]
    named = read_pyg_list([_data(edge_label_index=pairs, will=1 - labels)], target="will", level="link")
    assert named.targets[:, 0].tolist() == [0, 1, 0]
    apart = read_pyg_list([_data(pos_edge_label_index=pairs[:, :1], neg_edge_label_index=pairs[:, 1:])], level="link")
    assert apart.targets[:, 0].tolist() == [1, 0, 0]
    assert read_pyg_list([_data()], level="link").graphs.link_index.tolist() == ENDS.tolist()
    torch.save([_data(edge_label_index=pairs)], tmp_path / "asked.pt")
    assert read_pyg_graphs(tmp_path / "asked.pt", "link").graphs.link_index.tolist() == pairs.tolist()
    assert read_pyg(tmp_path / "asked.pt", level="link").targets[:, 0].tolist() == [1, 1, 1]


def test_random_link_split_is_taken_as_it_is_and_a_leak_in_it_is_refused() -> None:
    transforms = pytest.importorskip("torch_geometric.transforms")
    torch.manual_seed(0)
    parts = transforms.RandomLinkSplit(0.2, 0.2, is_undirected=True, add_negative_train_samples=False)(_data())
    found = read_pyg_list(parts, level="link", parts=True)
    assert found.split is not None
    assert found.split.tolist() == [0] * 5 + [1] * 2 + [2] * 2
    assert found.targets[:, 0].tolist() == [1] * 5 + [1, 0] + [1, 0]
    u, v = parts[0].edge_index[:, 0].tolist()
    told = _data(edge_label_index=torch.tensor([[v], [u]]))
    with pytest.raises(ValueError, match=f"nodes {v} and {u} of the validation part is an edge of the training graph"):
        read_pyg_list([parts[0], told, parts[2]], level="link", parts=True)


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({"edge_label_index": torch.tensor([[0], [6]])}, "edge_label_index"),
        ({"edge_label_index": torch.tensor([0, 1])}, "edge_label_index must have shape"),
        ({"edge_label_index": ENDS, "edge_label": torch.ones(3)}, "expected 7 labels, one per pair"),
        ({"edge_label_index": ENDS, "edge_label": torch.full((7,), 2.0)}, "is 2; expected 1 or 0"),
        (
            {"edge_label_index": torch.tensor([[0, 1], [1, 0]]), "edge_label": torch.tensor([0.0, 1.0])},
            "nodes 1 and 0 has the label 1 and the label 0",
        ),
    ],
)
def test_pairs_that_cannot_be_asked_are_one_sentence(attributes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_pyg_list([_data(**attributes)], level="link")
