"""PyG data sets and NetworkX folders: labels of every level, splits, bad graphs named, and nothing unpickled."""

import json
import math
import os
import pickle
import sys
from pathlib import Path

import networkx as nx
import pytest
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.data.hypergraph_data import HyperGraphData

from tokengt.batch import GraphBatch
from tokengt.data._pyg_collated import read_collated
from tokengt.data._pyg_files import pyg_files
from tokengt.data.graph_sources import LabelledGraphs, is_graph_source, load_pyg, read_networkx_folder, read_pyg
from tokengt.data.manifest import Attributes
from tokengt.interop.pyg import as_batch


def _graph(nodes: int, seed: int = 0, **more: object) -> Data:
    generator = torch.Generator().manual_seed(seed)
    edges = nodes + 1
    return Data(
        x=torch.randn(nodes, 3, generator=generator),
        edge_index=torch.randint(nodes, (2, edges), generator=generator),
        edge_attr=torch.randint(4, (edges, 2), generator=generator),
        **more,
    )


def _saved(folder: Path, content: object, name: str = "a.pt") -> Path:
    (folder / name).parent.mkdir(exist_ok=True)
    torch.save(content, folder / name)
    return folder / name


def _same(found: GraphBatch, expected: GraphBatch) -> None:
    for name in ("nodes", "edges"):
        assert torch.equal(getattr(found, name).host, getattr(expected, name).host)
    for name in ("node_features", "edge_index", "edge_features"):
        mine, theirs = getattr(found, name), getattr(expected, name)
        assert mine is theirs is None or torch.equal(mine, theirs), name


def _same_labels(found: LabelledGraphs, expected: LabelledGraphs) -> None:
    _same(found.graphs, expected.graphs)
    assert torch.equal(found.targets.nan_to_num(99.0), expected.targets.nan_to_num(99.0))
    assert (found.level, found.target_names, found.rejected) == (
        expected.level,
        expected.target_names,
        expected.rejected,
    )
    assert torch.equal(found.lines, expected.lines)
    assert found.split is expected.split is None or torch.equal(found.split, expected.split)


GRAPHS = [
    _graph(3, 0, y=torch.tensor([1.0])),
    _graph(5, 1, y=torch.tensor([math.nan])),
    _graph(2, 2, y=torch.tensor([-2.0])),
]
LAYOUTS = {
    "list": lambda graphs, path: torch.save(graphs, path),
    "tuple": lambda graphs, path: torch.save(tuple(graphs), path),
    "saved": InMemoryDataset.save,
    "older": lambda graphs, path: torch.save(InMemoryDataset.collate(graphs), path),
    "sizes": lambda graphs, path: torch.save((*_dict_and_slices(graphs), {"num": 1}, Data), path),
}


def _dict_and_slices(graphs):
    data, slices = InMemoryDataset.collate(graphs)
    return data.to_dict(), slices


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_a_file_gives_the_same(tmp_path, layout):
    LAYOUTS[layout](GRAPHS, tmp_path / "a.pt")
    labelled = read_pyg(tmp_path / "a.pt")
    _same(labelled.graphs, as_batch(GRAPHS))
    assert labelled.targets[:, 0].nan_to_num(99.0).tolist() == [1.0, 99.0, -2.0]
    assert (labelled.level, labelled.target_names, labelled.split, labelled.rejected) == ("graph", ("y",), None, ())
    assert labelled.lines.tolist() == [1, 2, 3]
    assert labelled.graphs.extras == ()
    assert [graph.num_nodes for graph in load_pyg(tmp_path / "a.pt")] == [3, 5, 2]


def test_one_data_alone(tmp_path):
    path = _saved(tmp_path, _graph(4, y=torch.tensor([0, 1, 1, 0])))
    assert load_pyg(path).num_nodes == 4
    labelled = read_pyg(path)
    assert (labelled.level, labelled.targets.tolist()) == ("node", [[0.0], [1.0], [1.0], [0.0]])
    InMemoryDataset.save([_graph(4, y=torch.tensor([[1.0, 2.0]]))], tmp_path / "b.pt")
    labelled = read_pyg(tmp_path / "b.pt")
    assert (labelled.level, labelled.targets.tolist(), labelled.target_names) == ("graph", [[1.0, 2.0]], ("y_0", "y_1"))


@pytest.mark.parametrize("level", ["graph", "node", "edge"])
@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("masks", [False, True])
def test_the_quick_way_equals_graph_by_graph(tmp_path, level, told, masks):
    graphs = []
    for seed, nodes in enumerate([3, 5, 2, 7]):
        rows = {"graph": 1, "node": nodes, "edge": nodes + 1}[level]
        y = torch.arange(2.0 * rows).reshape(rows, 2) + seed
        codes = torch.arange(rows) % 4
        more = {f"{name}_mask": codes == code for code, name in enumerate(("train", "val", "test"))} if masks else {}
        graphs.append(_graph(nodes, seed, y=y, **more))
    InMemoryDataset.save(graphs, tmp_path / "a.pt")
    torch.save(graphs, tmp_path / "b.pt")
    asked = level if told else None
    quick = read_collated(pyg_files(tmp_path / "a.pt")[0].graphs, None, asked)
    assert quick is not None
    assert quick.level == level
    _same_labels(quick, read_pyg(tmp_path / "b.pt", None, asked))
    _same_labels(quick, read_pyg(tmp_path / "a.pt", "y", asked))


def test_masks_become_codes(tmp_path):
    wide = torch.tensor([[False, True], [False, True], [True, False], [False, False]])
    y = torch.arange(4)
    path = _saved(tmp_path, _graph(4, y=y, train_mask=y < 1, val_mask=y == 1, test_mask=wide))
    assert read_pyg(path).split.tolist() == [0, 1, 2, -1]
    path = _saved(tmp_path, _graph(4, y=y, train_mask=y < 2, test_mask=y == 1))
    with pytest.raises(ValueError, match="row 1 stands in test_mask and in another mask"):
        read_pyg(path)


@pytest.mark.parametrize("folder", ["processed", "."])
def test_folders(tmp_path, folder):
    for name, seeds in (("train", [0, 1]), ("val", [2]), ("test", [3])):
        _saved(tmp_path, [_graph(3, seed, y=float(seed)) for seed in seeds], f"{folder}/{name}.pt")
    _saved(tmp_path, "None", f"{folder}/pre_filter.pt")
    labelled = read_pyg(tmp_path)
    assert labelled.targets[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert labelled.split.tolist() == [0, 0, 1, 2]
    assert len(load_pyg(tmp_path)) == 4


def test_folders_of_one_graph_per_file_and_of_unclear_files(tmp_path):
    for place in (0, 1, 2, 10):
        _saved(tmp_path, _graph(3, y=float(place)), f"processed/data_{place}.pt")
    labelled = read_pyg(tmp_path)
    assert (labelled.targets[:, 0].tolist(), labelled.split) == ([0.0, 1.0, 2.0, 10.0], None)
    _saved(tmp_path, _graph(3), "processed/other.pt")
    with pytest.raises(ValueError, match=r"several data sets \(data_0.pt, .*name one of the files"):
        read_pyg(tmp_path)
    with pytest.raises(ValueError, match=r"holds no \.pt file"):
        load_pyg(_empty(tmp_path))


def _empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def test_bad_graphs_are_rejected_and_the_others_kept(tmp_path):
    outside = _graph(3, y=torch.tensor([0.0]))
    outside.edge_index = torch.tensor([[0], [3]])
    outside.edge_attr = torch.zeros(1, 2, dtype=torch.int64)
    bad = [
        outside,
        _graph(3, y=torch.zeros(2)),
        _graph(3, y=torch.tensor([math.inf])),
        _graph(3, y="high"),
        Data(x=torch.zeros(2, 5), edge_index=torch.zeros(2, 0, dtype=torch.int64), y=torch.tensor([0.0])),
    ]
    path = _saved(tmp_path, [GRAPHS[0], *bad, GRAPHS[2], _graph(4)])
    labelled = read_pyg(path)
    assert labelled.lines.tolist() == [1, 7, 8]
    assert labelled.targets[:, 0].nan_to_num(99.0).tolist() == [1.0, -2.0, 99.0]  # the last has no label
    assert labelled.rejected == (
        (2, "edge_index column 0 names node 3; expected 0 to 2 in a graph of 3 nodes"),
        (3, "y has shape [2]; expected [1, 1]"),
        (4, "y holds an infinite number; expected finite ones, or NaN where a label is missing"),
        (5, "y is a str; expected a tensor of numbers"),
        (6, "node_features is 5 floats (float32); expected 3 floats (float32) as in most graphs"),
    )


def test_a_collated_edge_into_the_next_graph_is_rejected(tmp_path):
    stray = _graph(3, 3, y=torch.tensor([5.0]))
    stray.edge_index[:, 0] = 3  # both ends in what follows: no edge between two graphs
    InMemoryDataset.save([GRAPHS[0], stray, GRAPHS[1]], tmp_path / "a.pt")
    labelled = read_pyg(tmp_path / "a.pt")
    assert labelled.lines.tolist() == [1, 3]
    assert labelled.rejected[0][0] == 2
    assert "names node 3; expected 0 to 2" in labelled.rejected[0][1]
    _same(labelled.graphs, as_batch([GRAPHS[0], GRAPHS[1]]))


def test_graphs_without_x_and_hypergraphs(tmp_path):
    bare = [Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=n, y=torch.tensor([float(n)])) for n in (3, 4)]
    InMemoryDataset.save(bare, tmp_path / "a.pt")
    labelled = read_pyg(tmp_path / "a.pt")
    assert labelled.graphs.nodes.host_lengths.tolist() == [3, 4]
    assert labelled.targets[:, 0].tolist() == [3.0, 4.0]
    hyper = HyperGraphData(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1, 2], [0, 0, 1]]), y=torch.tensor([1.0]))
    assert read_pyg(_saved(tmp_path, hyper)).graphs.num_hyperedges == 2


def test_what_others_think_of_a_file_is_not_passed_on(tmp_path):
    """PyG's doubt about the number of nodes, torch's about an old pickle: warnings are errors in these tests."""
    counted = Data(edge_index=torch.tensor([[0, 2], [1, 1]]), y=torch.tensor([1.0]))
    assert read_pyg(_saved(tmp_path, [counted, counted])).graphs.nodes.host_lengths.tolist() == [3, 3]
    (tmp_path / "old.pt").write_bytes(pickle.dumps({"x": 1}, protocol=4))
    with pytest.raises(ValueError, match=r"old\.pt"):
        read_pyg(tmp_path / "old.pt")


def test_other_targets_and_none(tmp_path):
    path = _saved(tmp_path, [_graph(3, homo=torch.tensor([0.5]))])
    assert read_pyg(path, "homo").target_names == ("homo",)
    without = read_pyg(path)
    assert (without.targets.shape, without.target_names, without.level) == ((1, 0), (), "graph")
    with pytest.raises(ValueError, match=r"no graph has an attribute 'lumo'; there are edge_attr, edge_index, homo, x"):
        read_pyg(path, "lumo")


def test_a_vector_is_several_targets_when_the_level_is_told(tmp_path):
    path = _saved(tmp_path, [_graph(n, y=torch.arange(7.0)) for n in (3, 4)])
    with pytest.raises(ValueError, match=r"y fits none of graphs, nodes and edges .*choose one as the level"):
        read_pyg(path)
    assert read_pyg(path, level="graph").targets.tolist() == [list(range(7))] * 2
    path = _saved(tmp_path, Data(x=torch.ones(1, 1), edge_index=torch.zeros(2, 0, dtype=torch.int64), y=torch.ones(1)))
    with pytest.raises(ValueError, match="y fits graphs and nodes alike"):
        read_pyg(path)


class _Evil:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


class _Dataset(InMemoryDataset):
    pass


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("zipped", [False, True])
def test_nothing_is_unpickled(tmp_path, inside, zipped):
    evil = _Evil(tmp_path / "created")
    content = [_graph(3, y=torch.tensor([1.0]), note=evil)] if inside else evil
    path = tmp_path / "a.pt"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"a\.pt wants posix\.system, which is refused for safety") as caught:
        read_pyg(path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "created").exists()
    path.write_bytes(pickle.dumps(evil))
    with pytest.raises(ValueError, match=r"a\.pt"):
        read_pyg(path)
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"a": 1}, "holds a dict; expected PyG's Data"),
        ([], "holds a list; expected PyG's Data"),
        (torch.ones(3), "holds a Tensor; expected"),
        (HeteroData(), "wants torch_geometric.data.storage.BaseStorage, which is refused"),
        ((Data(x=torch.ones(3, 1)), {"x": torch.tensor([0, 2, 9])}), "slices that do not fit its tensors"),
        ((Data(x=torch.ones(3, 1)), {"x": 3}), "slices that are no vectors"),
        (_Dataset, "refused for safety"),
    ],
)
def test_other_contents_are_one_sentence(tmp_path, content, sentence):
    path = _saved(tmp_path, content)
    with pytest.raises(ValueError, match=sentence) as caught:
        read_pyg(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04torn"])
def test_torn_files(tmp_path, content):
    path = tmp_path / "a.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.pt cannot be read as a PyG data set"):
        load_pyg(path)
    torch.save(GRAPHS, path)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(ValueError, match=r"a\.pt cannot be read as a PyG data set"):
        load_pyg(path)
    with pytest.raises(ValueError, match="does not exist"):
        load_pyg(tmp_path / "b.pt")


def test_without_pyg_the_error_says_how_to_install(tmp_path, monkeypatch):
    path = _saved(tmp_path, GRAPHS)
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(ImportError, match="pip install torch_geometric"):
        load_pyg(path)


def _json(folder: Path, name: str, graph: nx.Graph, edges: str = "edges") -> None:
    (folder / name).write_text(json.dumps(nx.node_link_data(graph, edges=edges)))


def _molecule(charges: list[float], solubility: object, **more: object) -> nx.Graph:
    graph = nx.path_graph(len(charges))
    graph.graph.update({"name": "x", "solubility": solubility, **more})
    for node, charge in enumerate(charges):
        graph.nodes[node].update(charge=charge, element=6, label="C", site=node % 2)
    for u, v in graph.edges:
        graph.edges[u, v].update(order=u + 1, weak=u)
    return graph


@pytest.mark.parametrize("edges", ["links", "edges"])
def test_networkx_by_hand(tmp_path, edges):
    _json(tmp_path, "b.json", _molecule([1, 0], None), edges)
    _json(tmp_path, "a.json", _molecule([0.5, 1, 2], -1), edges)
    labelled = read_networkx_folder(tmp_path, ["solubility"], None)
    assert (labelled.level, labelled.target_names, labelled.rejected) == ("graph", ("solubility",), ())
    assert labelled.targets[:, 0].nan_to_num(99.0).tolist() == [-1.0, 99.0]
    # charge, element, site by name; one charge is a real number, so all are floats in all graphs
    x = [[0.5, 6.0, 0.0], [1.0, 6.0, 1.0], [2.0, 6.0, 0.0], [1.0, 6.0, 0.0], [0.0, 6.0, 1.0]]
    assert labelled.graphs.node_features.tolist() == x
    assert labelled.graphs.edge_index.tolist() == [[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]]
    assert labelled.graphs.edge_features.tolist() == [[1, 0], [1, 0], [2, 1], [2, 1], [1, 0], [1, 0]]
    assert not labelled.graphs.edge_features.is_floating_point()
    assert labelled.graphs.extras == ()


def test_networkx_nodes_and_edges_as_targets(tmp_path):
    _json(tmp_path, "a.json", _molecule([1, 0, 3], 1))
    nodes = read_networkx_folder(tmp_path, ["site"], None)
    assert (nodes.level, nodes.targets[:, 0].tolist()) == ("node", [0.0, 1.0, 0.0])
    assert nodes.graphs.node_features.tolist() == [[1, 6], [0, 6], [3, 6]]
    edges = read_networkx_folder(tmp_path, ["weak"], "edge")
    assert (edges.level, edges.targets[:, 0].tolist()) == ("edge", [0.0, 0.0, 1.0, 1.0])
    assert edges.graphs.edge_features.tolist() == [[1], [1], [2], [2]]
    without = read_networkx_folder(tmp_path, [], None)
    assert (without.level, without.targets.shape) == ("graph", (1, 0))


def test_networkx_levels_that_are_not_clear(tmp_path):
    _json(tmp_path, "a.json", _molecule([1, 0], 1, site=3))
    with pytest.raises(ValueError, match="targets site are attributes of graphs and nodes; choose one as the level"):
        read_networkx_folder(tmp_path, ["site"], None)
    with pytest.raises(ValueError, match="targets gap; graphs have name, site, solubility; nodes have charge, element"):
        read_networkx_folder(tmp_path, ["gap"], None)
    with pytest.raises(ValueError, match="no edge has the targets site"):
        read_networkx_folder(tmp_path, ["site"], "edge")


def test_networkx_bad_files_are_named_and_the_others_kept(tmp_path):
    _json(tmp_path, "good.json", _molecule([1, -1], 1))
    _json(tmp_path, "text.json", _molecule([1, 2], "high"))
    _json(tmp_path, "hole.json", nx.Graph(solubility=1))
    for name, content in (("cut", '{"nodes": ['), ("list", "[]"), ("other", '{"nodes": 3}')):
        (tmp_path / f"{name}.json").write_text(content)
    (tmp_path / "bytes.json").write_bytes(b"\xff")
    labelled = read_networkx_folder(tmp_path, ["solubility"], None)
    assert labelled.lines.tolist() == [3]
    assert labelled.graphs.node_features.tolist() == [[1.0, 6.0, 0.0], [-1.0, 6.0, 1.0]]  # below 0 is no category
    shape = "it does not hold a graph; expected what networkx.node_link_data gives"
    assert labelled.rejected == (
        (1, "bytes.json: it is not UTF-8 text"),
        (2, "cut.json: it is not JSON: Expecting value: line 1 column 12 (char 11)"),
        (4, "hole.json: the graph is empty; expected at least one node"),
        (5, f"list.json: {shape}"),
        (6, f"other.json: {shape}"),
        (7, "text.json: target 'solubility' is 'high'; expected a number"),
    )


def _link_data(graph: nx.Graph, **changes: object) -> dict[str, object]:
    return {**nx.node_link_data(graph, edges="links"), **changes}


MALFORMED = {
    "undeclared": ({"links": [{"source": 0, "target": 7}]}, "link 0 names the node 7, which is not among its nodes"),
    "no end": ({"links": [{"source": 0}]}, "link 0 has no target; expected the id of a node"),
    "twice": ({"nodes": [{"id": 0, "charge": 1}, {"id": 0}]}, "two nodes have the id 0; expected every id once"),
    "no id": ({"nodes": [{"id": None}]}, "a node has the id None; expected text or a number"),
    "object": ({"nodes": [{"id": {"a": 1}}]}, "a node has the id {'a': 1}; expected text or a number"),
    "nan": ({"nodes": [{"id": float("nan")}]}, "a node has the id nan; expected text or a number"),
    "numbers": ({"nodes": [0, 1]}, "its nodes are no list of objects; expected what networkx.node_link_data gives"),
    "flag": ({"directed": "yes"}, "its directed is 'yes'; expected true or false"),
    "both": ({"edges": []}, "it does not hold a graph; expected what networkx.node_link_data gives"),
    "links": (
        {
            "links": [
                {"source": 0, "target": 1, "order": 1, "weak": 0},
                {"source": 1, "target": 0, "order": 2, "weak": 0},
            ]
        },
        "links 0 and 1 join the same nodes; expected one link, or a multigraph",
    ),
    "keys": (
        {"multigraph": True, "links": [{"source": 0, "target": 1, "key": 0}] * 2},
        "links 0 and 1 join the same nodes; expected keys that differ",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_networkx_one_malformed_file_costs_the_others_nothing(tmp_path, case):
    """A link to a node that is not declared took the features of all graphs, without a word."""
    _json(tmp_path, "a.json", _molecule([1, 0], 1))
    _json(tmp_path, "c.json", _molecule([0.5, 1, 2], 2))
    alone = read_networkx_folder(tmp_path, ["solubility"], None)
    changes, reason = MALFORMED[case]
    (tmp_path / "b.json").write_text(json.dumps(_link_data(_molecule([1, 0], 3), **changes)))
    labelled = read_networkx_folder(tmp_path, ["solubility"], None)
    assert labelled.rejected == ((2, f"b.json: {reason}"),)
    assert labelled.lines.tolist() == [1, 3]
    _same(labelled.graphs, alone.graphs)
    assert labelled.attributes == alone.attributes
    assert alone.attributes == Attributes(("charge", "element", "site"), ("order", "weak"), ("node_features",))


def _without(name: str, kind: str = "nodes") -> nx.Graph:
    graph = _molecule([1, 0], 3)
    del (graph.nodes[1] if kind == "nodes" else graph.edges[0, 1])[name]
    return graph


def _with(value: object) -> nx.Graph:
    graph = _molecule([1, 0], 3)
    graph.nodes[1]["element"] = value
    return graph


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (_without("charge"), "node 1 has no attribute 'charge'; expected one on all of them"),
        (_without("weak", "edges"), "edge 0 -> 1 has no attribute 'weak'; expected one on all of them"),
        (_with("C"), "node 1: attribute 'element' is 'C'; expected a number or a list of them"),
        (_with([6, 7]), "node 1: attribute 'element' has 2 numbers; expected 1 as in the first"),
        (_with(2**63), f"node 1: attribute 'element' is {2**63}; expected integers of 64 bits"),
        (_with(2**80), f"node 1: attribute 'element' is {2**80}; expected a number or a list of them"),
        (_with(1e400), "node_features row 1, column 1 is inf; expected a finite number"),
        (_with(1e300), "node_features row 1, column 1 is inf; expected a finite number"),
    ],
)
def test_networkx_an_odd_attribute_costs_the_others_nothing(tmp_path, graph, reason):
    _json(tmp_path, "a.json", _molecule([1, 0], 1))
    _json(tmp_path, "b.json", graph)
    _json(tmp_path, "c.json", _molecule([0.5, 1, 2], 2))
    labelled = read_networkx_folder(tmp_path, ["solubility"], None)
    assert labelled.rejected == ((2, f"b.json: {reason}"),)
    assert labelled.graphs.node_features.shape == (5, 3)
    assert labelled.graphs.edge_features.shape == (6, 2)


def test_networkx_told_attributes_are_those_and_no_others(tmp_path):
    _json(tmp_path, "a.json", _without("charge"))
    told = Attributes(("element",), ())
    labelled = read_networkx_folder(tmp_path, [], "graph", labelled=False, attributes=told)
    assert (labelled.graphs.node_features.tolist(), labelled.graphs.edge_features) == ([[6], [6]], None)
    with pytest.raises(ValueError, match=r"a\.json: node 1 has no attribute 'charge'"):
        read_networkx_folder(tmp_path, [], "graph", labelled=False, attributes=Attributes(("charge",)))


def test_networkx_files_that_are_no_text(tmp_path):
    _json(tmp_path, "a.json", _molecule([1, 0], 1))
    (tmp_path / "b.json").mkdir()
    (tmp_path / "c.json").write_text("[" * 100_000)
    (tmp_path / "d.json").write_text('{"nodes": [], "nodes": []}')
    data = _link_data(_molecule([1, 0], 3))
    (tmp_path / "e.json").write_text(json.dumps({**data, "graph": {"\ud800": 1}}))
    (tmp_path / "f.json").write_text("\ufeff" + json.dumps(data))
    (tmp_path / "g.json").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "h.json")
    labelled = read_networkx_folder(tmp_path, ["solubility"], None)
    assert labelled.lines.tolist() == [1, 6]
    assert [reason for _, reason in labelled.rejected] == [
        "b.json: it is no regular file",
        "c.json: it is nested too deeply for a graph",
        "d.json: an object in it has the name 'nodes' twice; expected every name once",
        "e.json: it holds text that is no Unicode",
        "g.json: it is no regular file",
        "h.json: it is no regular file",
    ]


def test_networkx_an_attribute_on_another_level_of_one_file_changes_nothing(tmp_path):
    for place in range(4):
        _json(tmp_path, f"{place}.json", _molecule([1, 0], place))
    odd = _molecule([1, 0], 5)
    odd.nodes[0]["solubility"] = 1
    _json(tmp_path, "odd.json", odd)
    labelled = read_networkx_folder(tmp_path, ["solubility"], None)
    assert (labelled.level, len(labelled.graphs), labelled.rejected) == ("graph", 5, ())


def test_networkx_folders_with_nothing(tmp_path):
    with pytest.raises(ValueError, match="holds no NetworkX JSON file"):
        read_networkx_folder(tmp_path, ["y"], None)
    (tmp_path / "a.json").write_text("x")
    with pytest.raises(ValueError, match=r"can be read: a\.json: it is not JSON"):
        read_networkx_folder(tmp_path, ["y"], None)
    _json(tmp_path, "b.json", nx.Graph(y=1))
    with pytest.raises(ValueError, match=r"holds no graph that can be used: a\.json"):
        read_networkx_folder(tmp_path, ["y"], None)


def test_is_graph_source(tmp_path):
    assert is_graph_source(tmp_path / "a.pt")
    assert not is_graph_source(tmp_path / "a.csv")
    assert not is_graph_source(tmp_path)
    (tmp_path / "a.json").write_text("{}")
    assert is_graph_source(tmp_path)
    (tmp_path / "graphs.safetensors").write_bytes(b"")
    assert not is_graph_source(tmp_path)
    _saved(tmp_path, GRAPHS, "processed/data.pt")
    assert is_graph_source(tmp_path)
