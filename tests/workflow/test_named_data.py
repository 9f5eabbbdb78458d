"""The name of a data set stands where a file can: to train, to predict, to evaluate, and for the leaderboard's file."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.published import PCQM, pcqm_folder
from tests.workflow.small import QUIET, read_csv, train_small, write_csv
from tokengt.data.named import DATASETS, named_store
from tokengt.inference import Predictor
from tokengt.interop.molecules import MoleculePolicy
from tokengt.workflow.evaluating import evaluate
from tokengt.workflow.fitting import TrainOptions
from tokengt.workflow.predicting import embed_file, predict_file
from tokengt.workflow.submitting import SUBMISSION, submit


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine rows in PCQM4Mv2's public layout in ``data``, a cache of one's own, and a run trained by the name."""
    home = tmp_path_factory.mktemp("named")
    pcqm_folder(home / "data")
    with pytest.MonkeyPatch.context() as patch:
        _point(patch, home)
        train_small("pcqm4mv2", home / "run", "homolumogap")
    return home


@pytest.fixture(autouse=True)
def _alone(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _point(monkeypatch, home)
    monkeypatch.chdir(tmp_path)


def _point(patch: pytest.MonkeyPatch, home: Path) -> None:
    patch.setenv("TOKENGT_DATA", str(home / "data"))
    patch.setenv("XDG_CACHE_HOME", str(home / "cache"))


@pytest.fixture
def run(home: Path) -> Predictor:
    return Predictor.load(home / "run", "cpu")


def test_training_by_name_takes_the_official_parts_and_never_the_hidden_one(run: Predictor, home: Path) -> None:
    assert run.task.names == ("homolumogap",)
    split = read_csv(home / "run" / "split.csv")
    assert [row["part"] for row in split] == ["train", "train", "valid", "valid", "", "", ""], split
    assert not (home / "run" / "store").exists()


def test_a_name_is_predicted_evaluated_and_embedded_like_a_store(run: Predictor, tmp_path: Path) -> None:
    done = predict_file(run, "pcqm4mv2", tmp_path / "out.csv", workers=1, quiet=True)
    assert (done.rows, done.bad) == (9, 2)
    rows = read_csv(tmp_path / "out.csv")
    assert [row["smiles"] for row in rows] == [smiles for smiles, _ in PCQM]
    answer = evaluate(run, "pcqm4mv2", workers=1, quiet=True)
    assert (answer.rows, answer.rejected) == (4, 2)
    predicted = [float(row["predicted_homolumogap"]) for row in rows[:4]]
    assert answer.metrics["mae"] == pytest.approx(np.abs(np.array(predicted) - [1, 2, 3, 4]).mean(), rel=1e-5)
    vectors = embed_file(run, "pcqm4mv2", tmp_path / "vectors.npz", workers=1, quiet=True)
    assert vectors.rows == 9


def test_molecules_are_read_as_the_options_say(tmp_path: Path) -> None:
    """A policy has its own store, for training and for what is done with the run."""
    policy = MoleculePolicy(hydrogens="explicit")
    options = TrainOptions(quiet=True, workers=1, policy=policy)
    run = train_small("pcqm4mv2", tmp_path / "run", options=options, preset="small")
    assert run.spec.molecules == policy
    assert evaluate(run, "pcqm4mv2", workers=1, quiet=True).rows == 4


def test_a_file_here_wins_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(tmp_path / "data.csv", ("smiles", "own"), [("C" * n, n) for n in range(1, 11)])
    (tmp_path / "data.csv").rename("qm9")
    with pytest.raises(ValueError, match="qm9") as refused:
        train_small("qm9", tmp_path / "run", "own", options=TrainOptions(workers=1))
    assert "download" not in str(refused.value)
    assert "qm9 is the file of this name here, and not the public data set" in capsys.readouterr().err


def test_a_misspelled_name_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"pcqm4m-v2 does not exist.*pcqm4mv2.*or the name of a data set"):
        train_small("pcqm4m-v2", tmp_path / "run", "homolumogap")


def test_files_of_parts_do_not_go_with_a_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pcqm4mv2 is a data set by its name; files of valid and test go with a file"):
        train_small("pcqm4mv2", tmp_path / "run", "homolumogap", valid=tmp_path / "valid.csv")


def test_the_submission_is_what_ogb_writes(run: Predictor, tmp_path: Path) -> None:
    """Test-dev is rows 8, 5 and 7 in this order; row 7 cannot be read and gets the mean of the training labels."""
    done = submit(run, tmp_path / "sent", workers=1, quiet=True)
    assert (done.rows, done.filled) == (3, 1)
    assert "the leaderboard expects 147,037" in str(done)
    with np.load(tmp_path / "sent" / SUBMISSION, allow_pickle=False) as file:
        assert file.files == ["y_pred"]
        values = file["y_pred"]
    assert values.dtype == np.float32
    store = named_store(DATASETS["pcqm4mv2"], workers=1, progress=False)
    alone = run.predict_graphs(store.graphs.select([6, 4])).mean[:, 0].numpy()
    np.testing.assert_allclose(values[:2], alone, rtol=1e-5)
    assert values[2] == np.float32(1.5)  # Of the training labels 1, 2 and 5, the last is of a row that cannot be read.
    with pytest.raises(ValueError, match="exists; choose another folder"):
        submit(run, tmp_path / "sent", quiet=True)
    assert submit(run, tmp_path / "sent", overwrite=True, workers=1, quiet=True) == done


def test_the_submission_is_what_ogbs_evaluator_writes(tmp_path: Path, run: Predictor) -> None:
    """Name, key, type and shape as of OGB's own function, for as many rows as it wants."""
    lsc = pytest.importorskip("ogb.lsc")
    evaluator = lsc.PCQM4Mv2Evaluator()
    evaluator.save_test_submission({"y_pred": np.zeros(147_037)}, str(tmp_path / "ogb"), "test-dev")
    submit(run, tmp_path / "ours", workers=1, quiet=True)
    assert [path.name for path in (tmp_path / "ogb").iterdir()] == [path.name for path in (tmp_path / "ours").iterdir()]
    with np.load(tmp_path / "ogb" / SUBMISSION) as theirs, np.load(tmp_path / "ours" / SUBMISSION) as ours:
        assert theirs.files == ours.files
        assert (theirs["y_pred"].dtype, theirs["y_pred"].ndim) == (ours["y_pred"].dtype, ours["y_pred"].ndim)


def test_a_run_of_something_else_is_not_submitted(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "a.csv", ("smiles", "b"), [("C" * n, n % 2) for n in range(1, 21)])
    classes = train_small(source, tmp_path / "classes", "b", task="binary")
    with pytest.raises(ValueError, match=r"this run predicts b \(binary\); expected a regression of homolumogap"):
        submit(classes, tmp_path / "sent", quiet=True)
    assert not (tmp_path / "sent").exists()


def test_esol_is_trained_on_by_its_name(tmp_path: Path) -> None:
    """It comes with the package and has no official split: it is split by the seed."""
    settings = {"training.epochs": 1}
    run = train_small("esol", tmp_path / "run", settings=settings, preset="small", options=QUIET)
    assert run.task.names == ("logSolubility",)
    assert len(read_csv(tmp_path / "run" / "predictions.csv")) == 113
