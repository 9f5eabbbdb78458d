"""The table of nodes of one graph: the paper's protocol, kept run by run, and what does not fit refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tokengt.experiments.nodes import plan as plans
from tokengt.experiments.nodes.datasets import GRAPHS, PAPER, graphs_named
from tokengt.experiments.nodes.plan import NodesConfig, Pair, Plan
from tokengt.experiments.nodes.report import write_table
from tokengt.experiments.nodes.run import run_nodes
from tokengt.experiments.nodes.systems import SYSTEMS, TABLE, systems_named
from tokengt.experiments.nodes.worker import act, order_of
from tokengt.models.tokengt.config import TokenGTConfig
from tokengt.training.tasks import Task

QUICK = NodesConfig(("chameleon",), ("mlp", "tokengt-lap-seb"), runs=2, epochs=4, width=8, device="cpu")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A graph of 200 nodes in place of Chameleon: three classes, words that tell them, edges inside them."""
    random = np.random.default_rng(0)
    labels = np.arange(200) % 3
    words = [np.unique(np.append(random.integers(0, 30, 4), 30 + label)) for label in labels]
    ends = random.integers(0, 200, (2, 900))
    ends = ends[:, labels[ends[0]] == labels[ends[1]]]
    (tmp_path / "data" / "nodes").mkdir(parents=True)
    np.savez(
        tmp_path / "data" / "nodes" / "chameleon.npz",
        edge_index=ends,
        num_nodes=200,
        x_indptr=np.cumsum([0, *map(len, words)]),
        x_indices=np.concatenate(words),
        x_shape=np.array([200, 33]),
        y=labels,
    )
    monkeypatch.setenv("TOKENGT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_the_table_has_the_papers_lines_and_numbers() -> None:
    assert [GRAPHS[name].label for name in PAPER] == ["CS", "Physics", "Photo", "Computers", "Chameleon", "Crocodile"]
    assert SYSTEMS["tokengt-lap-seb"].paper["amazon-computers"] == (0.912, 0.006)
    assert "coauthor-physics" not in SYSTEMS["graphormer"].paper, "it ran out of memory"
    assert {"mlp", "gcn", "gat", "gin", "graphormer", "tokengt-near", "tokengt-lap", "tokengt-lap-seb"} <= set(TABLE)
    for name in ("gcn", "gat", "gin"):
        models = SYSTEMS[name].candidates.values()
        assert all((model.num_layers, model.dropout) == (4, 0.5) for model in models)
        assert [(model.dim, model.feature_dropout) for model in models] == [(64, 0), (1024, 0), (1024, 0.5)]
    searched = [model for model in SYSTEMS["tokengt-lap"].candidates.values() if isinstance(model, TokenGTConfig)]
    assert {model.identifiers.dim for model in searched} == {64, 100}
    assert {model.encoder.mlp_dropout for model in searched} == {0.1, 0.5}
    assert all(model.encoder.attention.kind == "favor" for model in searched)


def test_training_is_that_of_the_appendix() -> None:
    training = NodesConfig().training(GRAPHS["chameleon"])
    assert (training.epochs, training.learning_rate, training.schedule) == (300, 1e-3, "constant")
    assert (training.weight_decay, training.warmup, training.clip, training.ema) == (0, 0, 0, 0), "plain Adam"
    assert NodesConfig().runs == 7


def test_classes_count_alike_where_the_split_tests_as_many_of_each(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 67, 67 and 66 nodes all but 60 are trained on: 7, 7 and 6."""
    weights = []

    def stopped(fabric: object, built: object, parts: object, task: Task, *rest: object, **more: object) -> None:
        weights.append(np.array(task.class_weights))
        raise RuntimeError("far enough")

    monkeypatch.setattr(plans, "Trainer", stopped)
    with pytest.raises(RuntimeError, match="far enough"):
        Plan(QUICK, data / "out").work(Pair(GRAPHS["chameleon"], SYSTEMS["mlp"]))
    assert np.allclose(weights[0] * [7, 7, 6], weights[0][0] * 7)
    assert np.average(weights[0], weights=[7, 7, 6]) == pytest.approx(1)
    assert not NodesConfig().training(GRAPHS["minesweeper"]).balance, "its test part is as it comes"


def test_every_run_is_kept_and_the_best_candidate_is_run_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(QUICK, data / "out")
    pair = Pair(GRAPHS["chameleon"], SYSTEMS["tokengt-lap-seb"])
    assert not plan.is_finished(pair)
    act(json.loads(order_of(plan, "chameleon", None)))
    act(json.loads(order_of(plan, "chameleon", "tokengt-lap-seb")))
    assert plan.is_finished(pair)
    found = {name: plan.found(pair, name, 0) for name in plan.candidates(pair)}
    best = plan.chosen(pair)
    assert found[best]["valid"] == max(cell["valid"] for cell in found.values())
    for name in found:
        assert (plan.found(pair, name, 1) is not None) == (name == best)
    again = plan.found(pair, best, 1)
    assert again is not None
    assert {"test", "valid", "train", "seconds", "parameters", "memory_gib", "commit"} <= set(again)
    # Nothing is trained twice; and a file that was made otherwise is not taken for this one.
    monkeypatch.setattr(plans, "Trainer", None)
    plan.work(pair)
    with pytest.raises(ValueError, match="was made with other settings"):
        Plan(replace(QUICK, epochs=5), data / "out").found(pair, best, 0)


def test_the_same_run_has_the_same_numbers(data: Path) -> None:
    pair, config = Pair(GRAPHS["chameleon"], SYSTEMS["mlp"]), replace(QUICK, runs=1)
    cells = []
    for folder in ("one", "other"):
        plan = Plan(config, data / folder)
        plan.work(pair)
        name = next(iter(plan.candidates(pair)))
        cells.append({key: plan.found(pair, name, 0)[key] for key in ("test", "valid", "train", "best_epoch")})
    assert cells[0] == cells[1]


def test_the_table_is_written_beside_the_papers(data: Path) -> None:
    """By processes of their own, side by side; a stopped call goes on, and a call without work only writes."""
    said: list[str] = []
    config = replace(QUICK, systems=("mlp",), at_once=2)
    (row,) = run_nodes(config, data / "out", said.append)
    assert "chameleon/mlp" in said[-1]
    assert (row.experiment, row.system, row.dataset, row.runs) == ("nodes", "MLP", "chameleon", 2)
    assert 0 <= row.mean <= 1
    keys = json.loads((data / "out" / "table.json").read_text())[0]
    assert {"experiment", "system", "dataset", "split", "metric", "mean", "std", "runs", "paper"} <= set(keys)
    table = (data / "out" / "table.md").read_text()
    assert "| MLP |" in table
    assert run_nodes(config, data / "out") == [row]
    assert run_nodes(replace(config, systems=("gcn", "mlp"), runs=3), data / "out", train=False) == [row]
    table = (data / "out" / "table.md").read_text()
    assert "GCN" not in table, "it was not run"
    assert "(2) |" in table, "of three runs two are there"
    with pytest.raises(ValueError, match="no training of these systems on these graphs"):
        run_nodes(config, data / "none", train=False)
    assert not (data / "none").exists()
    more = Plan(replace(config, systems=("mlp", "gat")), data / "out")
    write_table(more, {"chameleon/gat": "it broke"}, data / "out")
    table = (data / "out" / "table.md").read_text()
    assert "0.632 ± 0.011" in table
    assert "- GAT, Chameleon: it broke" in table


def test_what_does_not_fit_is_refused_and_told(data: Path) -> None:
    config = replace(QUICK, systems=("graphormer",), memory=1e-4, width=0)
    plan, pair = Plan(config, data / "out"), Pair(GRAPHS["chameleon"], SYSTEMS["graphormer"])
    plan.facts(pair.graph)
    plan.work(pair)
    assert plan.is_finished(pair)
    assert plan.chosen(pair) is None
    assert write_table(plan, {}, data / "out") == []
    assert "Graphormer would need about" in (data / "out" / "table.md").read_text()


def test_wrong_wishes_are_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"dataset 'chamaleon' is unknown \(did you mean chameleon\?\)"):
        NodesConfig(("chamaleon",))
    with pytest.raises(ValueError, match=r"system 'gcnn' is unknown \(did you mean gcn\?\)"):
        systems_named(("gcnn",))
    with pytest.raises(ValueError, match="minesweeper has 10 splits of its own"):
        NodesConfig(("minesweeper",), runs=11)
    assert len(graphs_named(("paper", "heterophilous", "actor"))) == 11
