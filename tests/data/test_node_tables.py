"""A graph as a table of nodes and one of edges: every column by hand, and what is wrong in one sentence."""

from pathlib import Path

import pytest
import torch

from tokengt import NodeFiles
from tokengt.data.manifest import GraphColumns, Recipe
from tokengt.data.node_store import prepare_nodes
from tokengt.data.node_tables import NodeTables, read_node_tables
from tokengt.data.store import Store
from tokengt.sparse import SparseRows

NODES = """name,age,city,member,label
ann,10,Rome,1,a
bob,30,Oslo,0,
7,20,Rome,1,b
d,,Bern?,0,a
e,20,,1,b
f,20,Oslo,1,b
"""
EDGES = "src,dst,weight\nann,bob,1\n7.0,ann,3\nbob,ann,5\nd,d,3\n"


def written(folder: Path, nodes: str = NODES, edges: str = EDGES, **said: object) -> NodeFiles:
    (folder / "nodes.csv").write_text(nodes)
    (folder / "edges.csv").write_text(edges)
    return NodeFiles(folder / "nodes.csv", folder / "edges.csv", **said)


def read(
    folder: Path, nodes: str = NODES, edges: str = EDGES, recipe: Recipe | None = None, **said: object
) -> NodeTables:
    return read_node_tables(written(folder, nodes, edges, **said), recipe or Recipe(targets=("label",)))


def test_columns_become_features_labels_and_edges(tmp_path: Path) -> None:
    found = read(tmp_path)
    graph = found.labelled.graphs
    assert (found.columns.id, found.columns.source, found.columns.target) == ("name", "src", "dst")
    assert [feature.name for feature in found.columns.nodes] == ["age", "city", "member"]
    # Ages 10, 30, 20, blank, 20, 20: mean 20, variance 40; cities in order; a flag is left as it is.
    scale = 40**0.5
    torch.testing.assert_close(
        graph.node_features,
        torch.tensor(
            [
                [-10 / scale, 0, 0, 1, 1],
                [10 / scale, 0, 1, 0, 0],
                [0, 0, 0, 1, 1],
                [0, 1, 0, 0, 0],
                [0, 0, 0, 0, 1],
                [0, 0, 1, 0, 1],
            ]
        ),
    )
    # ann-bob is listed both ways, 7-ann once, and d's loop is its own reverse.
    assert graph.edge_index.tolist() == [[0, 2, 1, 3, 0], [1, 0, 0, 3, 2]]
    weights = [(weight - 3) / 2**0.5 for weight in (1, 3, 5, 3, 3)]
    torch.testing.assert_close(graph.edge_features, torch.tensor(weights)[:, None])
    assert found.labelled.classes == ("a", "b")
    labels = found.labelled.targets[:, 0]
    assert labels.nan_to_num(-1).tolist() == [0, -1, 1, 0, 1, 1]
    one_way = read(tmp_path, directed=True).labelled.graphs
    assert one_way.edge_index.tolist() == [[0, 2, 1, 3], [1, 0, 0, 3]]


def test_another_graph_is_read_with_the_scales_and_categories_of_the_first(tmp_path: Path) -> None:
    first = read(tmp_path)
    other = "city,name,member,age\nOslo,x,1,30\nParis,y,0,20\n"
    files = written(tmp_path, other, "dst,src,weight\nx,y,5\n")
    found = read_node_tables(files, Recipe(targets=("label",)), first.columns)
    assert found.columns == first.columns
    scale = 40**0.5
    expected = torch.tensor([[10 / scale, 0, 1, 0, 1], [0, 0, 0, 0, 0]])
    torch.testing.assert_close(found.labelled.graphs.node_features, expected)
    assert found.labelled.target_names == (), "labels may be absent"
    with pytest.raises(ValueError, match="has no column 'age', which the run, as a feature, names"):
        read_node_tables(written(tmp_path, "name,city,member\nx,Oslo,1\n"), Recipe(), first.columns)


@pytest.mark.parametrize(
    ("nodes", "edges", "sentence"),
    [
        (NODES, EDGES + "ann,zoe,1\n", r"edges\.csv, line 6: dst is 'zoe', which is no id of .*one of its 6 ids"),
        (NODES + "bob,1,Rome,1,a\n", EDGES, r"nodes\.csv, line 8: the id 'bob' stands on line 3 too"),
        (NODES + ",1,Rome,1,a\n", EDGES, r"nodes\.csv, line 8: the id is blank"),
        (NODES + "g,1,Rome,1\n", EDGES, r"nodes\.csv, line 8: the row has 4 cells; expected 5"),
        (NODES.replace(",label", ",klass"), EDGES, r"has no column 'label', which the target option names"),
        ("name,label\na,\nb,\n", "src,dst\na,b\n", r"nodes\.csv: target 'label' has no label"),
        ("name,label\n", EDGES, r"nodes\.csv has a header but no rows"),
        (NODES, "src\nann\n", r"edges\.csv has one column; expected two"),
    ],
)
def test_what_is_wrong_is_one_sentence(nodes: str, edges: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path, nodes, edges)


def test_a_slip_among_many_numbers_is_named(tmp_path: Path) -> None:
    rows = "".join(f"n{place},{place},x\n" for place in range(30))
    with pytest.raises(ValueError, match=r"line 32: column 'age' holds '3o' beside numbers; expected a number"):
        read(tmp_path, f"id,age,label\n{rows}z,3o,y\n", "source,target\nn1,n2\n")


def test_columns_that_are_no_features_are_left_out_and_said(tmp_path: Path) -> None:
    nodes = "id,title,blank,label\n" + "".join(f"{place},title {place},,{place % 2}\n" for place in range(6))
    found = read(tmp_path, nodes, "source,target\n1,2\n")
    assert found.labelled.graphs.node_features is None
    said = " ".join(found.sentences)
    assert "title, blank left out" in said
    assert "nodes have no features" in said


def test_many_categories_stay_sparse(tmp_path: Path) -> None:
    nodes = "id,word,label\n" + "".join(f"{place},w{place % 70},{place % 2}\n" for place in range(210))
    features = read(tmp_path, nodes, "source,target\n1,2\n").labelled.graphs.node_features
    assert isinstance(features, SparseRows)
    assert features.shape == (210, 70)


def test_a_store_of_two_tables_is_made_once_and_says_how_it_was_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = "id,x,y\n" + "".join(f"{place},{place / 7},{place % 3}\n" for place in range(12))
    files, recipe = written(tmp_path, nodes, "source,target\n1,2\n3,4\n"), Recipe(targets=("y",))
    store = prepare_nodes(files, tmp_path / "store", recipe)
    said = capsys.readouterr().err
    assert "y: integers are learned as 3 classes (0, 1, 2)" in said
    assert "edges join 'source' and 'target' both ways, features are none" in said
    assert isinstance(store.manifest.tables, GraphColumns)
    again = prepare_nodes(files, tmp_path / "store", recipe)
    assert again.data_checksum() == store.data_checksum()
    assert Store.open(tmp_path / "store").manifest == again.manifest
    with pytest.raises(ValueError, match="is another store"):
        prepare_nodes(written(tmp_path, nodes + "z,1,0\n", "source,target\n1,2\n"), tmp_path / "store", recipe)


def test_a_column_of_parts_and_parquet(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.DataFrame(
        {"id": [5, 6, 7], "x": [0.5, 1.5, 2.5], "part": ["train", "val", None], "label": ["u", "v", None]}
    ).to_parquet(tmp_path / "nodes.parquet")
    pandas.DataFrame({"source": [5, 6], "target": [6, 7]}).to_parquet(tmp_path / "edges.parquet")
    files = NodeFiles(tmp_path / "nodes.parquet", tmp_path / "edges.parquet")
    found = read_node_tables(files, Recipe(targets=("label",), split="part"))
    assert found.labelled.split.tolist() == [0, 1, -1]
    assert [feature.name for feature in found.columns.nodes] == ["x"]
    assert found.labelled.graphs.edge_index.tolist() == [[0, 1, 1, 2], [1, 2, 0, 1]]
