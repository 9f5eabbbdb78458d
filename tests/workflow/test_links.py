"""Links from files to predictions: what is learned, what no model ever reads, and one row per pair."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tokengt
from tokengt import GraphBatch, NodeFiles, TrainOptions
from tokengt.cli import main
from tokengt.links import edges_as_links, joined
from tokengt.training.results import read_summary
from tokengt.training.spec import read_run
from tokengt.workflow.evaluating import evaluate
from tokengt.workflow.predicting import predict_file

LINKS = TrainOptions(quiet=True, level="link")
QUICK = {"training.epochs": 40, "training.learning_rate": 0.01}
GROUPS, EACH = 12, 8


def group_edges(seed: int = 1) -> list[tuple[int, int]]:
    """Groups of nodes: most of a group are joined, and none of different groups."""
    random = np.random.default_rng(seed)
    nodes = range(GROUPS * EACH)
    return [(u, v) for u in nodes for v in nodes if u < v and u // EACH == v // EACH and random.random() < 0.8]


def groups(folder: Path) -> NodeFiles:
    (folder / "nodes.csv").write_text("id,age\n" + "".join(f"n{i},{i * 7 % 5}\n" for i in range(GROUPS * EACH)))
    (folder / "edges.csv").write_text("source,target\n" + "".join(f"n{u},n{v}\n" for u, v in group_edges()))
    return NodeFiles(folder / "nodes.csv", folder / "edges.csv")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NodeFiles]:
    home = tmp_path_factory.mktemp("links")
    files = groups(home)
    tokengt.train(files, home / "run", settings=QUICK, device="cpu", options=LINKS)
    return home, files


def test_links_of_a_known_structure_are_found(trained: tuple[Path, NodeFiles]) -> None:
    summary = read_summary(trained[0] / "run")
    assert summary.test is not None
    assert summary.test["roc_auc"] > 0.95
    assert summary.test["average_precision"] > 0.95
    assert {"mrr", "hits@10"} <= set(summary.test)
    assert read_run(trained[0] / "run").level == "link"
    with (trained[0] / "run" / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["link"] for row in rows} == {"0", "1"}
    # Nodes are known by the ids of the table.
    ends = [(row["source"], row["target"]) for row in rows]
    assert all(one != other for one, other in ends)
    assert {end for pair in ends for end in pair} <= {f"n{node}" for node in range(GROUPS * EACH)}
    joined_in_file = {(f"n{u}", f"n{v}") for u, v in group_edges()}
    assert {row["link"] == "1" for row, pair in zip(rows, ends, strict=True) if pair in joined_in_file} == {True}


def test_predictions_come_back_one_row_per_pair(trained: tuple[Path, NodeFiles], tmp_path: Path) -> None:
    home, files = trained
    (tmp_path / "asked.csv").write_text("why,from,to\nsame,n0,n1\nfar,n0,n50\nsame,n18,n17\nfar,n90,n3\n")
    asked = replace(files, pairs=tmp_path / "asked.csv")
    assert predict_file(home / "run", asked, tmp_path / "out.csv", device="cpu", quiet=True).rows == 4
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["why"] for row in rows] == ["same", "far", "same", "far"]
    chance = [float(row["predicted_link"]) for row in rows]
    assert min(chance[0], chance[2]) > 0.5 > max(chance[1], chance[3])
    (tmp_path / "known.csv").write_text("from,to,link\nn0,n1,1\nn0,n50,0\nn18,n17,1\n")
    known = replace(files, pairs=tmp_path / "known.csv")
    found = evaluate(home / "run", known, device="cpu", quiet=True, out=tmp_path / "evaluated")
    assert (found.rows, found.metrics["roc_auc"]) == (3, 1.0)
    # Of one negative every link is among the first ten, which says nothing: no file and no line has a "nan" for it.
    written = (tmp_path / "evaluated" / "metrics.json").read_text()
    assert json.loads(written, parse_constant=pytest.fail)["metrics"]["hits@10"] is None
    assert json.loads(found.to_json(), parse_constant=pytest.fail)["metrics"]["mrr"] == 1
    assert str(found).endswith("mrr 1 (hits@10, hits@50, hits@100 undefined with so few negatives) over 3 rows")
    # Without labels all are links, and as many pairs that are none are drawn.
    assert evaluate(home / "run", asked, device="cpu", quiet=True).rows == 8


def test_a_pair_of_an_unknown_node_comes_back_with_its_reason(trained: tuple[Path, NodeFiles], tmp_path: Path) -> None:
    """The other pairs have the answers that they have without it; where all are bad, all come back."""
    home, files = trained
    (tmp_path / "asked.csv").write_text("from,to\nn0,n1\nn0,bob\nn18,n17\nn90\n")
    (tmp_path / "good.csv").write_text("from,to\nn0,n1\nn18,n17\n")
    (tmp_path / "bad.csv").write_text("from,to\nann,bob\n")
    answers, done = {}, {}
    for name in ("asked", "good", "bad"):
        asked = replace(files, pairs=tmp_path / f"{name}.csv")
        done[name] = predict_file(home / "run", asked, tmp_path / f"{name}_out.csv", device="cpu", quiet=True)
        with (tmp_path / f"{name}_out.csv").open(newline="") as file:
            answers[name] = list(csv.DictReader(file))
    assert str(done["asked"]) == "4 rows, 2 of which could not be read"
    told = [row["predicted_link"] for row in answers["asked"]]
    assert [told[0], told[2]] == [row["predicted_link"] for row in answers["good"]]
    assert [told[1], told[3]] == ["", ""]
    reasons = [row["reason"] for row in answers["asked"]]
    assert reasons[0] == reasons[2] == ""
    assert re.fullmatch("to is 'bob', which is no id of .*nodes.csv; expected one of its 96 ids", reasons[1])
    assert reasons[3] == "the row has 1 cell; expected 2"
    assert (done["bad"].rows, done["bad"].bad) == (1, 1)
    assert answers["bad"][0]["reason"].startswith("from is 'ann', which is no id of")


def test_training_and_evaluation_leave_bad_pairs_out_and_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"n{u},n{v},{int(u // EACH == v // EACH)}\n" for u in range(40) for v in (u + 41, u + 2, u + 50)]
    (tmp_path / "known.csv").write_text("from,to,y\nn0,zoe,1\n" + "".join(rows))
    asked = replace(groups(tmp_path), pairs=tmp_path / "known.csv")
    options, settings = replace(LINKS, quiet=False), {"training.epochs": 1}
    tokengt.train(asked, tmp_path / "run", target="y", preset="gcn", settings=settings, device="cpu", options=options)
    said = capsys.readouterr().err
    listed = tmp_path / "run" / "store" / "rejected.csv"
    assert "1 of 121 rows of" in said
    assert "could not be read (the first on line 2: to is 'zoe', which is no id of" in said
    assert f"all are in {listed}" in said
    assert "zoe" in listed.read_text()
    assert "121 rows, 1 rejected" in (tmp_path / "run" / "README.md").read_text()
    found = evaluate(tmp_path / "run", asked, device="cpu", quiet=True)
    assert (found.rows, found.rejected) == (120, 1)


def test_the_answer_does_not_depend_on_whether_the_edge_is_there(trained: tuple[Path, NodeFiles]) -> None:
    run = tokengt.load(trained[0] / "run")
    ends = torch.tensor(group_edges()).T
    features = torch.zeros(GROUPS * EACH, 1)
    pair = ends[:, :1]
    data = pytest.importorskip("torch_geometric.data")
    both = [torch.cat([index, index.flip(0)], 1) for index in (ends, ends[:, 1:])]
    answers = [run.predict(data.Data(x=features, edge_index=each, edge_label_index=pair)).mean for each in both]
    np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize("ask", ["predict", "evaluate"])
def test_a_run_of_links_needs_pairs(
    trained: tuple[Path, NodeFiles], capsys: pytest.CaptureFixture[str], ask: str, tmp_path: Path
) -> None:
    home, files = trained
    tables = ["--nodes", str(files.nodes), "--edges", str(files.edges)]
    out = ["--out", str(tmp_path / "out.csv")] if ask == "predict" else []
    assert main([ask, str(home / "run"), *tables, *out]) == 2
    assert "name no pairs of nodes, and this run answers about links" in capsys.readouterr().err
    assert main([ask, str(home / "run"), "--pairs", "x.csv", *out]) == 2
    assert "expected its tables, --nodes and --edges, as well" in capsys.readouterr().err


def test_balanced_links_are_learned_as_well(tmp_path: Path) -> None:
    """Five negatives for each link, and both sorts count alike: chances are about those of as many of each."""
    files, settings = groups(tmp_path), {**QUICK, "training.links.negatives": 5}
    run = tokengt.train(
        files, tmp_path / "run", settings={**settings, "training.balance": True}, device="cpu", options=LINKS
    )
    assert run.task.class_weights == pytest.approx((0.6, 3.0))
    summary = read_summary(tmp_path / "run")
    assert summary.test is not None
    assert summary.test["roc_auc"] > 0.95
    assert summary.test["accuracy"] > 0.8, "the test part has as many of each"


SEEN: list[tuple[bool, GraphBatch]] = []


class Spy(nn.Module):
    """Says that nodes are joined if it is shown an edge between them; and keeps what it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, batch: GraphBatch) -> torch.Tensor:
        SEEN.append((self.training, batch))
        return self.bias + 10 * joined(batch, batch.link_index)[:, None].float()


def test_no_model_is_shown_an_edge_that_it_is_asked_about(tmp_path: Path) -> None:
    """A model that looks for the edge finds none; in training no edge of the other parts is there at all."""
    SEEN.clear()
    settings = {"training.epochs": 7, "training.links.folds": 3}
    tokengt.train(groups(tmp_path), tmp_path / "run", model=Spy(), settings=settings, device="cpu", options=LINKS)
    summary = read_summary(tmp_path / "run")
    assert summary.test is not None
    assert summary.test["roc_auc"] == 0.5, "as good as guessing"
    assert len(SEEN) >= 14
    with (tmp_path / "run" / "split.csv").open(newline="") as file:
        part_of = {int(row["link"]): row["part"] for row in csv.DictReader(file)}
    ends = torch.tensor(group_edges()).T
    whole = tokengt.Graph(num_nodes=GROUPS * EACH, edge_index=torch.cat([ends, ends.flip(0)], 1))
    links = edges_as_links(GraphBatch.collate([whole]), directed=False).link_index
    held_out = links[:, [place for place in range(links.shape[1]) if part_of[place] != "train"]]
    assert held_out.shape[1] > 40
    for training, batch in SEEN:
        # Where it is evaluated it is asked about all pairs, and answers about those of the training part are not used.
        assert not training or not bool(joined(batch, batch.link_index).any())
        assert not bool(joined(batch, held_out).any())
    asked = [batch.link_index for training, batch in SEEN if training]
    # Fold 0 is asked about in epochs 0, 3 and 6, beside other negatives each time.
    assert not torch.equal(asked[0], asked[3])
    size = batch.num_nodes
    first, again = (pairs.amin(0) * size + pairs.amax(0) for pairs in (asked[0], asked[3]))
    both = torch.isin(first, again)
    assert len(first) // 2 <= int(both.sum()) < len(first)


@pytest.mark.parametrize("preset", ["nodes-inductive", "gcn", "gat", "graphormer", "egt"])
def test_every_model_learns_links_in_the_same_loop(preset: str, tmp_path: Path) -> None:
    """One epoch; a pair and its reverse have the same answer, since edges join both ways."""
    run = tokengt.train(
        groups(tmp_path), tmp_path / "run", preset=preset, settings={"training.epochs": 1}, device="cpu", options=LINKS
    )
    data = pytest.importorskip("torch_geometric.data")
    ends = torch.tensor(group_edges()).T
    pairs = torch.tensor([[0, 3, 50], [1, 40, 7]])
    edges, features = torch.cat([ends, ends.flip(0)], 1), torch.zeros(GROUPS * EACH, 1)
    graph = [data.Data(x=features, edge_index=edges, edge_label_index=each) for each in (pairs, pairs.flip(0))]
    one, other = (run.predict(each).mean for each in graph)
    assert one.shape == (3, 1)
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_model_that_cannot_is_refused_in_one_sentence(tmp_path: Path) -> None:
    files = groups(tmp_path)
    for options, said in (
        ({"task": "regression"}, "links are there or not, a binary task"),
        ({"split": "per-class"}, "a split per class is of nodes or graphs"),
        ({"settings": {"training.metric": "hits@50"}}, "the metric is hits@50, and the validation part has"),
        ({"split": "column:age"}, "give a table of pairs with it"),
    ):
        wishes: dict[str, Any] = {"device": "cpu", "options": LINKS, **options}
        with pytest.raises(ValueError, match=said) as error:
            tokengt.train(files, tmp_path / "run", **wishes)
        assert "\n" not in str(error.value)


def test_random_link_split_trains_by_its_parts(tmp_path: Path) -> None:
    data = pytest.importorskip("torch_geometric.data")
    transforms = pytest.importorskip("torch_geometric.transforms")
    ends = torch.tensor(group_edges()).T
    whole = data.Data(x=torch.ones(GROUPS * EACH, 2), edge_index=torch.cat([ends, ends.flip(0)], 1))
    torch.manual_seed(0)
    parts = transforms.RandomLinkSplit(is_undirected=True, add_negative_train_samples=False)(whole)
    run = tokengt.train(
        parts, tmp_path / "run", preset="gcn", settings={"training.epochs": 2}, device="cpu", options=LINKS
    )
    assert read_summary(tmp_path / "run").test_rows == len(parts[2].edge_label)
    assert run.predict(parts[2]).mean.shape == (len(parts[2].edge_label), 1)
