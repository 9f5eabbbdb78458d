"""A table of pairs: what its rows ask, and what is wrong with it in one sentence."""

import csv
import re
from pathlib import Path

import pytest
import torch

from tokengt import NodeFiles
from tokengt.data.manifest import Recipe
from tokengt.data.node_store import prepare_nodes
from tokengt.data.node_tables import NodeTables, read_node_tables
from tokengt.data.store import Store

NODES = "id,size\n" + "".join(f"n{place},{place}\n" for place in range(5))
EDGES = "source,target\nn0,n1\nn1,n2\nn2,n2\n"


def read(folder: Path, pairs: str | None, edges: str = EDGES, directed: bool = False, **said: object) -> NodeTables:
    files = {"nodes": NODES, "edges": edges} | ({} if pairs is None else {"pairs": pairs})
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    paths = {name: folder / f"{name}.csv" for name in files}
    return read_node_tables(NodeFiles(**paths, directed=directed), Recipe(**{"level": "link", **said}))


def test_rows_are_pairs_with_labels_and_parts(tmp_path: Path) -> None:
    pairs = "part,from,to,y\ntrain,n0,n3,1\nvalid,n4,n1,0\n,n1,n0,\n"
    found = read(tmp_path, pairs, targets=("y",), split="part")
    labelled = found.labelled
    assert labelled.graphs.link_index.tolist() == [[0, 4, 1], [3, 1, 0]]
    assert labelled.targets.nan_to_num(-1).tolist() == [[1], [0], [-1]]
    assert labelled.split is not None
    assert labelled.split.tolist() == [0, 1, -1]
    assert (labelled.level, labelled.target_names) == ("link", ("y",))
    assert [feature.name for feature in found.columns.nodes] == ["size"]
    assert found.head == ("part", "from", "to", "y")
    assert found.rows[1] == ("valid", "n4", "n1", "0")


def test_without_a_table_of_pairs_the_edges_are_the_links(tmp_path: Path) -> None:
    labelled = read(tmp_path, None).labelled
    assert labelled.graphs.link_index.tolist() == [[0, 1], [1, 2]], "each once, without the loop"
    assert labelled.targets.tolist() == [[1], [1]]
    one_way = read(tmp_path, None, "source,target\nn1,n0\nn0,n1\nn3,n2\n", directed=True).labelled
    assert one_way.graphs.link_index.tolist() == [[0, 1, 3], [1, 0, 2]]


def test_a_table_of_pairs_says_the_level_and_without_a_label_all_are_links(tmp_path: Path) -> None:
    found = read(tmp_path, "a,b,note\nn0,n3,x\n", level=None)
    assert found.labelled.level == "link"
    assert found.labelled.targets.tolist() == [[1]]
    assert any("every pair is a link" in sentence for sentence in found.sentences)
    assert any("note not read" in sentence for sentence in found.sentences)


def test_a_trained_run_reads_pairs_without_labels(tmp_path: Path) -> None:
    columns = read(tmp_path, "source,target\nn0,n3\n").columns
    files = NodeFiles(tmp_path / "nodes.csv", tmp_path / "edges.csv")
    asked = NodeFiles(tmp_path / "nodes.csv", tmp_path / "edges.csv", pairs=tmp_path / "pairs.csv")
    found = read_node_tables(asked, Recipe(level="link", targets=("y",)), columns)
    assert found.labelled.graphs.link_index.tolist() == [[0], [3]]
    with pytest.raises(ValueError, match="name no pairs of nodes, and this run answers about links"):
        read_node_tables(files, Recipe(level="link"), columns)


@pytest.mark.parametrize(
    ("pairs", "said", "sentence"),
    [
        ("source,target\n", {}, "pairs.csv has a header but no rows"),
        ("source\nn0\n", {}, "has one column; expected two that name the nodes of each pair"),
        ("source,target,y\nn0,n1,\n", {"targets": ("y",)}, "target 'y' has no label"),
        ("source,target,y\nn0,n1,1\n\nn1,n0,0\n", {"targets": ("y",)}, "line 4: the pair has another label on line 2"),
        ("source,target\nn0,n1\n", {"targets": ("y",)}, "has no column 'y', which the target option names"),
        ("source,target\nn0,n1\n", {"targets": ("source",)}, "names column 'source', which holds ids of nodes"),
        ("source,target,y\nn0,n1,1\n", {"targets": ("y",), "split": "y"}, "names column 'y', which holds the split"),
        (
            "source,target\nn0,n1\n",
            {"level": "node"},
            "pairs.csv is a table of pairs of nodes; expected the level link",
        ),
        (None, {"targets": ("size",)}, "the links of .*edges.csv without a table of pairs are its edges"),
        (None, {"level": "edge"}, "level is edge; .* expected these"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, pairs: str | None, said: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as error:
        read(tmp_path, pairs, **said)
    assert "\n" not in str(error.value)


BAD = "source,target,y,p\nn0,n1,1,train\nn0,n9,0,train\nn1,n4,2,valid\nn2,n3,0\nn3,n4,,some\nn8,n7,5,?\nn4,n0,0,test\n"
REASONS = {
    1: "target is 'n9', which is no id of .*nodes.csv; expected one of its 5 ids",
    2: "column 'y' is '2'; expected 1 or 0: link or not",
    3: "the row has 3 cells; expected 4",
    4: "column 'p' is 'some'; expected train, valid, test or hidden",
    5: "source is 'n8', which is no id of",
}


def test_a_bad_row_is_named_and_costs_the_others_nothing(tmp_path: Path) -> None:
    found = read(tmp_path, BAD, targets=("y",), split="p")
    assert list(found.problems) == list(REASONS)
    for place, reason in REASONS.items():
        assert re.match(reason, found.problems[place])
    assert found.labelled.graphs.link_index.tolist() == [[0, 4], [1, 0]]
    assert found.labelled.targets.tolist() == [[1], [0]]
    assert found.labelled.split is not None
    assert found.labelled.split.tolist() == [0, 2]
    assert len(found.rows) == len(found.lines) == 7, "all rows are given back"
    assert found.rejected[0].line == 3
    assert found.rejected[0].cells == ("n0", "n9", "0", "train")


def stored(folder: Path, pairs: str, limit: float, said: dict[str, object]) -> Store:
    read(folder, "source,target\nn0,n1\n")
    (folder / "pairs.csv").write_text(pairs)
    files = NodeFiles(*(folder / f"{name}.csv" for name in ("nodes", "edges")), pairs=folder / "pairs.csv")
    recipe = Recipe(**{"level": "link", **said})
    return prepare_nodes(files, folder / "store", recipe, progress=False, max_rejected=limit)


def test_a_store_lists_the_rows_that_it_does_not_hold(tmp_path: Path) -> None:
    store = stored(tmp_path, BAD, 0.8, {"targets": ("y",), "split": "p"})
    assert (store.manifest.source.rows, store.manifest.rejected, len(store.targets)) == (7, 5, 2)
    assert Store.open(tmp_path / "store").manifest == store.manifest
    with (tmp_path / "store" / "rejected.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["line"], row["source"], row["target"]) for row in rows[:2]] == [("3", "n0", "n9"), ("4", "n1", "n4")]
    for row, reason in zip(rows, REASONS.values(), strict=True):
        assert re.match(reason, row["reason"])


@pytest.mark.parametrize(
    ("pairs", "limit", "sentence"),
    [
        (BAD, 0.5, "5 of the 7 rows of .*pairs.csv are rejected, more than the limit of 0.5 allows .the first, line 3"),
        ("source,target\nn0,n9\n", 1.0, "none of the 1 rows of .*pairs.csv can be read; line 2: target is 'n9', which"),
        ("source,target\nn0,n1\n", 1.5, "max_rejected is 1.5; expected a share of the rows"),
    ],
)
def test_a_table_of_mostly_bad_rows_is_refused(tmp_path: Path, pairs: str, limit: float, sentence: str) -> None:
    said = {"targets": ("y",), "split": "p"} if pairs is BAD else {}
    with pytest.raises(ValueError, match=sentence) as error:
        stored(tmp_path, pairs, limit, said)
    assert "\n" not in str(error.value)


def test_a_directed_pair_and_its_reverse_may_differ(tmp_path: Path) -> None:
    pairs = "source,target,y\nn0,n1,1\nn1,n0,0\n"
    found = read(tmp_path, pairs, directed=True, targets=("y",))
    assert torch.equal(found.labelled.targets, torch.tensor([[1.0], [0.0]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("edges", "sentence"),
    [
        ("source,target\nn0,bob\n", "edges.csv, line 2: target is 'bob', which is no id"),
        ("source,target\nn2,n2\n", "edges.csv: the graphs have no edge between two nodes"),
    ],
)
def test_edges_that_are_no_links_are_refused(tmp_path: Path, edges: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path, None, edges)
