"""Reports of a run: numbers of a summary are those of evaluate, pages of one prediction those of predict."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.explain.page.test_render import data_of
from tests.workflow.small import QUIET, molecule_csv, train_small, write_csv
from tokengt.data.datasets import esol
from tokengt.explain.page.render import render_summary
from tokengt.explain.run_summary import RunSummary
from tokengt.inference import load
from tokengt.workflow.evaluating import evaluate
from tokengt.workflow.fitting import TrainOptions, train
from tokengt.workflow.reporting import explain_file
from tokengt.workflow.summarising import summarise_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    train_small(molecule_csv(folder / "data.csv"), folder / "run", ("y", "z"))
    return folder


def summarised(folder: Path, data: Path, **more: object) -> RunSummary:
    wishes: dict[str, object] = {"molecules": 4, **more}
    return summarise_run(folder, data, device="cpu", quiet=True, **wishes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def summary(folder: Path) -> RunSummary:
    return summarised(folder / "run", folder / "data.csv")


def test_metrics_are_those_of_evaluate(folder: Path, summary: RunSummary) -> None:
    expected = evaluate(folder / "run", folder / "data.csv", device="cpu", quiet=True).metrics
    for target in summary.targets:
        assert target.measures["rmse"] == pytest.approx(expected[f"rmse/{target.name}"])
    assert [target.rows for target in summary.targets] == [32, 34]


def test_rows_by_size_and_element_have_their_mean_error(summary: RunSummary) -> None:
    for target in summary.targets:
        error = np.abs(target.predicted - target.labels)
        assert sum(group.rows * group.error for group in target.by_size) / target.rows == pytest.approx(error.mean())
        carbon = next(group for group in target.by_element if group.name == "C")
        # The first molecules of ESOL all hold carbon.
        assert (carbon.rows, carbon.error) == (target.rows, pytest.approx(error.mean()))
        assert target.wrong[0].error == pytest.approx(error.max())


def test_curves_are_those_of_the_run_and_missing_ones_are_explained(folder: Path, summary: RunSummary) -> None:
    (curve,) = summary.curves
    assert curve.epochs == (1, 2)
    assert summary.attention is not None
    assert summary.attention.graphs == 4
    bundled = summarised(Path("pretrained:gap"), write_gap(folder / "gap.csv"))
    assert "does not say how it was trained: metrics.jsonl is missing" in bundled.missing["curves"]
    assert "holds no data of its own" in bundled.missing["attention"]
    assert render_summary(bundled).count("metrics.jsonl is missing") == 1


def write_gap(path: Path) -> Path:
    return write_csv(path, ("smiles", "homolumogap"), [("CCO", 7.0), ("c1ccccc1", 5.0), ("CC(=O)N", 6.0)])


def test_draws_are_compared_with_their_errors(folder: Path, summary: RunSummary) -> None:
    alone = summary.targets[0]
    assert not alone.calibration
    assert "--draws 16" in alone.missing["calibration"]
    several = summarised(folder / "run", folder / "data.csv", draws=3).targets[0]
    assert several.spread is not None
    assert [point.rows for point in several.calibration] == [32] * 19
    found = [point.found for point in several.calibration]
    assert found == sorted(found)


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_classes_have_their_own_pictures(tmp_path: Path, task: str) -> None:
    smiles = esol()[0][:40]
    labels = [int("O" in text) if task == "binary" else ("dry", "wet")["O" in text] for text in smiles]
    data = write_csv(tmp_path / "data.csv", ("smiles", "y"), zip(smiles, labels, strict=True))
    train_small(data, tmp_path / "run", "y", task=task)
    summary = summarised(tmp_path / "run", data)
    (target,) = summary.targets
    predictions = load(tmp_path / "run", "cpu").predict(list(smiles)).mean
    truth = np.array(["O" in text for text in smiles])
    if task == "binary":
        assert target.roc is not None
        assert target.roc[:, 0].tolist() == [0, 0]
        assert target.roc[:, -1].tolist() == [1, 1]
        wrong = (predictions[:, 0] > 0.5) != truth
    else:
        assert target.confusion is not None
        assert target.confusion.sum() == 40
        wrong = predictions.argmax(1) != truth
        assert np.trace(target.confusion) == 40 - wrong.sum()
    assert sum(group.rows * group.error for group in target.by_size) == pytest.approx(wrong.sum())
    assert sum(point.rows for point in target.calibration) == 40
    assert render_summary(summary).startswith("<!doctype html>")


def test_graphs_that_are_no_molecules_and_labels_of_nodes(tmp_path: Path) -> None:
    """No elements and no substructures there; the wrong node is marked in its graph."""
    from torch_geometric.data import Data

    index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    graphs = [Data(x=torch.randn(3, 2), edge_index=index, y=torch.randn(3)) for _ in range(12)]
    torch.save(graphs, tmp_path / "graphs.pt")
    train_small(tmp_path / "graphs.pt", tmp_path / "run", options=TrainOptions(quiet=True, workers=1, level="node"))
    summary = summarised(tmp_path / "run", tmp_path / "graphs.pt")
    (target,) = summary.targets
    assert target.rows == 36
    assert target.by_element == ()
    assert summary.missing["substructures"] == "substructures are those of molecules that a run predicts as a whole"
    worst = target.wrong[0]
    assert worst.picture is not None
    assert len(worst.picture.marked) == 1
    assert worst.name.endswith(f"node {worst.picture.marked[0]}")
    assert render_summary(summary).startswith("<!doctype html>")


def test_the_piece_that_a_model_was_taught_moves_predictions_most(tmp_path: Path) -> None:
    """A model that learned to count nitro groups loses most without one."""
    plain = ["CCCC", "CCCCC", "CCCCO", "CCOC", "CC(C)C", "CCCN", "CCC(C)O", "CCCCCC"]
    texts = [f"{nitro}{text}" for text in plain for nitro in ("", "[O-][N+](=O)") for _ in range(3)]
    data = write_csv(tmp_path / "d.csv", ("smiles", "y"), [(text, 5.0 * ("[N+]" in text)) for text in texts])
    settings = {"training.epochs": 12, "training.learning_rate": 5e-3, "training.batch_size": 8}
    train_small(data, tmp_path / "run", "y", settings=settings)
    summary = summarised(tmp_path / "run", data, molecules=48)
    best = summary.substructures[0]
    assert best.smiles == "*[N+](=O)[O-]"
    assert best.change[0] > 1
    assert summary.looked_at == 48


def test_a_single_pass_says_how_far_others_lie_away(folder: Path, tmp_path: Path) -> None:
    report = explain_file(folder / "run", "CCO", tmp_path / "a.html", device="cpu")
    run = load(folder / "run", "cpu")
    spread = run.predict(["CCO"], draws=8).std
    assert spread is not None
    assert report.explanation.spread is not None
    np.testing.assert_allclose(report.explanation.spread, spread[0])
    np.testing.assert_allclose(report.explanation.prediction, run.predict(["CCO"]).mean[0])
    assert report.size == len((tmp_path / "a.html").read_bytes())


def test_a_model_without_random_choices_has_no_spread(folder: Path, tmp_path: Path) -> None:
    settings = {"training.epochs": 1, "model.dim": 16, "model.num_layers": 1}
    train(
        folder / "data.csv",
        tmp_path / "gin",
        target="y",
        preset="gin",
        settings=settings,
        options=QUIET,
        device="cpu",
    )
    report = explain_file(tmp_path / "gin", "CCO", tmp_path / "a.html", device="cpu")
    assert report.explanation.spread is None
    assert data_of((tmp_path / "a.html").read_text())["prediction"]["note"] is None


def test_few_outputs_are_all_explained_and_one_that_is_asked_for_alone(folder: Path, tmp_path: Path) -> None:
    for target, outputs in ((None, [0, 1]), ("z", [1])):
        explain_file(folder / "run", "CCO", tmp_path / "a.html", target=target, device="cpu", overwrite=True)
        data = data_of((tmp_path / "a.html").read_text())
        assert data["attribution"]["outputs"] == outputs
        assert data["prediction"]["shown"] == outputs[0]


def test_the_same_call_writes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    first, second = (
        explain_file(folder / "run", "CCO", tmp_path / name, device="cpu").file for name in ("a.html", "b.html")
    )
    assert first.read_bytes() == second.read_bytes()
