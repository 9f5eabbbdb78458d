"""A random forest beside a model: its share, what the two say together, and runs that keep it."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.training.stores import molecule_store
from tests.workflow.small import QUIET, TINY, molecules, read_csv, train_small, write_csv
from tokengt.data.store import Store
from tokengt.inference import Predictor
from tokengt.models.forest import FILE, HALF, MOST_COLUMNS, Forest
from tokengt.models.tokengt.model import TokenGTConfig
from tokengt.training import averaging
from tokengt.training import forest as forests
from tokengt.training import resolve as resolving
from tokengt.training.averaging import growing
from tokengt.training.card import FOREST, MODEL
from tokengt.training.config import TrainingConfig
from tokengt.training.forest import grown, is_wanted
from tokengt.training.request import TrainRequest
from tokengt.training.resolve import Member, resolve
from tokengt.training.results import read_summary
from tokengt.training.shares import averaged, fitted_share, natural
from tokengt.training.spec import read_run
from tokengt.training.tasks import Task
from tokengt.workflow.explaining import explain
from tokengt.workflow.fitting import train

NAN = float("nan")
DOSED = replace(QUIET, descriptors=("dose",))
ALWAYS = {"training.forest": "always", "training.epochs": 1}


@pytest.fixture(autouse=True)
def _few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forests, "TREES", 20)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def regression(labels: Tensor, logs: str = "never") -> Task:
    names = [f"y{place}" for place in range(labels.shape[1])]
    return Task.fit("regression", labels, names).with_logs(labels, logs)  # type: ignore[arg-type]


def dosed_csv(path: Path, count: int = 60) -> Path:
    """The label is the dose, which trees find at once and two epochs of a model do not."""
    doses = np.random.default_rng(0).integers(0, 50, count)
    return write_csv(path, ("smiles", "dose", "y"), list(zip(molecules(count)[0], doses, doses, strict=True)))


def test_the_share_by_hand() -> None:
    """Errors of the model 1, -1, 1, -1, those of the forest 1, 1, -1, -1: uncorrelated, so a half each."""
    labels = column(0, 0, 0, 0)
    task = regression(column(0, 1))
    assert fitted_share(task, column(1, -1, 1, -1), column(1, 1, -1, -1), labels).tolist() == [0.5]
    assert fitted_share(task, column(1, -1, 1, -1), labels, labels).tolist() == [1.0]
    assert fitted_share(task, labels, column(1, -1, 1, -1), labels).tolist() == [0.0]
    # (label - model) = s (forest - model) + rest: s = 0.8 with the variance (0.4 / 3) / 4 = 1/30 around it.
    model, forest = column(0, 0, 0, 0), column(1, 1, 1, 1)
    told = column(1, 1, 1, 0.2)
    best, variance = 0.8, (3 * 0.04 + 0.36) / 3 / 4
    expected = 0.5 + 0.0625 / (0.0625 + variance) * (best - 0.5)
    assert fitted_share(task, model, forest, told).tolist() == pytest.approx([expected])


def test_few_labels_and_equal_answers_leave_a_half() -> None:
    task = regression(column(0, 1))
    two = fitted_share(task, column(1, 5, 7), column(0, 3, 9), column(0, NAN, 3))
    assert two.tolist() == [HALF]
    same = column(1, 2, 3, 4)
    assert fitted_share(task, same, same, column(4, 3, 2, 1)).tolist() == [HALF]


def test_every_target_has_its_own_share() -> None:
    labels = torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    task = regression(labels)
    model, forest = labels.clone(), labels.clone()
    forest[:, 0] += 1
    model[:, 1] += 1
    assert fitted_share(task, model, forest, labels).tolist() == pytest.approx([0, 1])


def test_chances_are_judged_by_their_squared_error() -> None:
    task = Task("binary", ("y",))
    labels = column(1, 0, 1, 0, NAN)
    assert fitted_share(task, column(0.5, 0.5, 0.5, 0.5, 0.5), column(1, 0, 1, 0, 0), labels).tolist() == [1.0]
    classes = Task("multiclass", ("y",), classes=("a", "b", "c"))
    right = torch.eye(3, dtype=torch.float64)
    found = fitted_share(classes, torch.full((3, 3), 1 / 3, dtype=torch.float64), right, column(0, 1, 2))
    assert found.tolist() == [1.0]


def test_the_mean_is_one_of_logarithms_where_these_are_learned() -> None:
    """A model's 100 and a forest's log 1 are 10 together; beside a target that is learned as it is, 3 and 5 are 4."""
    labels = torch.tensor([[1.0, 1.0], [10.0, 2.0], [100.0, 4.0]], dtype=torch.float64)
    task = replace(regression(labels), log_mean=(float(np.log(10)), 0.0), log_scale=(1.0, 0.0))
    model = torch.tensor([[100.0, 3.0]], dtype=torch.float64, requires_grad=True)
    said = torch.tensor([[0.0, 5.0]], dtype=torch.float64)
    both = averaged(task, torch.tensor([0.5, 0.5]), model, said)
    assert both.tolist()[0] == pytest.approx([10, 4])
    both.sum().backward()
    # d sqrt(m) / dm at 100, and a half.
    assert model.grad is not None
    assert model.grad.tolist()[0] == pytest.approx([0.05, 0.5])
    assert natural(task, said).tolist()[0] == pytest.approx([1, 5])
    draws = averaged(task, torch.tensor([0.25, 1.0]), model.detach().expand(3, 1, 2), said)
    assert draws.shape == (3, 1, 2)
    assert draws[2, 0].tolist() == pytest.approx([100**0.75, 5])


def test_a_forest_learns_what_rows_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without weight, and a class that counts a hundred times."""
    features = torch.zeros(40, 1)
    labels = column(*[0.0] * 30, *[1.0] * 10)
    weights = torch.cat([torch.zeros(30), torch.ones(10)])
    assert grown(regression(labels), features, labels, 0, weights)(features[:1]).item() == pytest.approx(1)
    plain = Task("binary", ("y",))
    heavy = replace(plain, class_weights=(0.1, 10.0))
    found = [grown(task, features, labels, 0)(features[:1]).item() for task in (plain, heavy)]
    assert found[0] == pytest.approx(0.25, abs=0.1)
    assert found[1] > 0.9
    three = Task("multiclass", ("y",), classes=("a", "b", "c"))
    shares = grown(three, features, labels, 0)(features[:1])[0]
    assert shares.sum().item() == pytest.approx(1)
    assert shares[2].item() == 0, "no row is of this class"


def test_a_run_keeps_its_forest_and_predicts_with_it(tmp_path: Path) -> None:
    data = dosed_csv(tmp_path / "data.csv")
    predictor = train_small(data, tmp_path / "run", "y", options=DOSED, settings=ALWAYS)
    assert (tmp_path / "run" / FILE).is_file()
    summary = read_summary(tmp_path / "run")
    assert summary.test is not None
    assert summary.apart is not None
    assert summary.apart[FOREST]["r2"] > 0.9 > summary.apart[MODEL]["r2"], "trees find the law, the model does not yet"
    assert summary.test["r2"] > summary.apart[MODEL]["r2"]
    # What was told at the end of training is what the run predicts, read back.
    told = read_csv(tmp_path / "run" / "predictions.csv")
    rows = {row["smiles"]: row["dose"] for row in read_csv(data)}
    texts = [row["smiles"] for row in told]
    doses = np.array([[float(rows[text])] for text in texts])
    again = Predictor.load(tmp_path / "run", "cpu").predict(texts, descriptors=doses)
    np.testing.assert_allclose(again.mean[:, 0], [float(row["predicted_y"]) for row in told], rtol=1e-5)
    alone = replace(predictor.members[0], forest=None)
    without = Predictor(predictor.spec, [alone], predictor.device).predict(texts, descriptors=doses)
    assert np.abs(without.mean - again.mean).max() > 1
    assert "a random forest" in (tmp_path / "run" / "README.md").read_text()


def test_a_run_without_it_is_as_before_and_a_missing_file_is_named(tmp_path: Path) -> None:
    data = dosed_csv(tmp_path / "data.csv")
    train_small(data, tmp_path / "plain", "y", options=DOSED, settings={"training.epochs": 1})
    assert not (tmp_path / "plain" / FILE).exists()
    assert not read_run(tmp_path / "plain").forest
    assert "forest" not in json.loads((tmp_path / "plain" / "run.json").read_text())
    assert read_summary(tmp_path / "plain").apart is None
    train_small(data, tmp_path / "run", "y", options=DOSED, settings=ALWAYS)
    (tmp_path / "run" / FILE).unlink()
    with pytest.raises(ValueError, match=r"forest\.safetensors is missing"):
        Predictor.load(tmp_path / "run", "cpu")


def test_models_of_an_ensemble_have_a_forest_each_and_the_same_bytes_every_time(tmp_path: Path) -> None:
    data = dosed_csv(tmp_path / "data.csv")
    options = replace(DOSED, ensemble=2)
    for name in ("one", "other"):
        train_small(data, tmp_path / name, "y", options=options, settings=ALWAYS)
    files = sorted((tmp_path / "one").rglob(FILE))
    assert len(files) == 2
    assert files[0].read_bytes() != files[1].read_bytes(), "they are of different seeds"
    for file in (*files, tmp_path / "one" / "predictions.csv", tmp_path / "one" / "summary.json"):
        assert (tmp_path / "other" / file.relative_to(tmp_path / "one")).read_bytes() == file.read_bytes()
    assert read_summary(tmp_path / "one").apart is not None
    run = Predictor.load(tmp_path / "one", "cpu")
    assert [each.forest.roots.shape for each in run.members if each.forest] == [(1, 10)] * 2, "they share 20 trees"


def dosed_member(home: Path) -> Member:
    """A model before it is trained, with its data."""
    train_small(dosed_csv(home / "data.csv"), home / "run", "y", options=DOSED, settings=ALWAYS)
    request = TrainRequest(settings={**TINY, **ALWAYS}, quiet=True)
    (member,) = resolve(request, Store.open(home / "run" / "store"), None, home / "other", lambda sentence: None)
    return member


def test_a_forest_that_grows_beside_a_gpu_is_the_same(tmp_path: Path) -> None:
    """In a thread or when it is asked for, from the same rows."""
    member = dosed_member(tmp_path)
    one, other = (growing(member, torch.device(device))() for device in ("cuda", "cpu"))
    assert torch.equal(one.threshold, other.threshold)
    assert torch.equal(one.said, other.said)


def test_a_forest_begins_to_grow_before_it_is_asked_for_and_nobody_waits_for_it_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends a training that a GPU does while the forest is still growing: its thread keeps nothing alive."""
    begun, held, member = Event(), Event(), dosed_member(tmp_path)

    def grow(*_: Any) -> Forest:
        begun.set()
        held.wait(60)
        raise ValueError("it was told to")

    monkeypatch.setattr(averaging, "_of_rows", grow)
    beside = growing(member, torch.device("cuda"))
    assert begun.wait(60), "it grows before it is asked for"
    (thread,) = [each for each in threading.enumerate() if each.name == "forest"]
    assert thread.daemon, "the interpreter would wait for it at its end"
    held.set()
    with pytest.raises(ValueError, match="it was told to"):
        beside()


def test_an_ensemble_with_a_forest_of_its_own_each_goes_on_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As older versions made them: whole forests, and seeds one after the other."""
    data, options = dosed_csv(tmp_path / "data.csv"), replace(DOSED, ensemble=2)
    with monkeypatch.context() as before:
        before.setattr(resolving, "trees_beside", lambda models: 20)
        before.setattr(resolving, "_APART", 1)
        train_small(data, tmp_path / "run", "y", options=options, settings=ALWAYS)
    kept = (tmp_path / "run" / "predictions.csv").read_bytes()
    again = train_small(data, tmp_path / "run", "y", options=options, settings=ALWAYS, resume=True)
    assert (tmp_path / "run" / "predictions.csv").read_bytes() == kept
    assert [each.forest.roots.shape for each in again.members if each.forest] == [(1, 20)] * 2


@pytest.mark.parametrize(
    ("changed", "settings", "sentence"),
    [
        ({}, {}, "no numbers of whole graphs"),
        ({"descriptors": ("dose",)}, {"training.loss": "quantile"}, "trees learn the mean of numbers"),
    ],
)
def test_a_forest_that_cannot_be_is_refused_in_one_sentence(
    changed: Any, settings: Any, sentence: str, tmp_path: Path
) -> None:
    data = dosed_csv(tmp_path / "data.csv")
    with pytest.raises(ValueError, match=f"training.forest is 'always', and .*{sentence}"):
        train_small(data, tmp_path / "run", "y", options=replace(QUIET, **changed), settings={**ALWAYS, **settings})
    assert not (tmp_path / "run").exists()


def test_by_itself_it_stands_beside_models_that_read_descriptors_of_molecules(tmp_path: Path) -> None:
    """The default for a table of molecules; not without features, and not beside a model without such a head."""
    data = write_csv(tmp_path / "data.csv", ("smiles", "y"), list(zip(*molecules(40), strict=True)))
    default = train(data, tmp_path / "run", target="y", settings={"training.epochs": 1}, options=QUIET, device="cpu")
    assert default.spec.forest
    assert default.members[0].forest is not None
    assert default.members[0].forest.roots.shape == (1, 20)
    store, task = molecule_store(), Task("regression", ("y",))
    assert not is_wanted(TrainingConfig(), task, store, default.spec.model), "the store has no features"
    assert not is_wanted(TrainingConfig(forest="never"), task, store, default.spec.model)


def test_without_scikit_learn_a_default_run_says_that_it_has_no_forest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is trained all the same, and the card keeps the sentence; a run that wants no forest is told nothing."""
    monkeypatch.setattr(forests, "find_spec", lambda name: None)
    data = write_csv(tmp_path / "data.csv", ("smiles", "y"), list(zip(*molecules(40), strict=True)))
    told = replace(QUIET, quiet=False)
    for wish, out in (("auto", tmp_path / "run"), ("never", tmp_path / "plain")):
        settings = {"training.epochs": 1, "training.forest": wish}
        assert train(data, out, target="y", settings=settings, options=told, device="cpu").members[0].forest is None
        sentence = "no random forest stands beside the model: scikit-learn is not installed"
        shown = capsys.readouterr()
        assert (sentence in shown.out + shown.err) == (wish == "auto")
        assert (sentence[1:] in (out / "README.md").read_text()) == (wish == "auto")
    with pytest.raises(ValueError, match=r"training\.forest is 'always', and scikit-learn is not installed"):
        train(data, tmp_path / "asked", target="y", settings=ALWAYS, options=told, device="cpu")


def test_more_columns_than_a_tree_can_name_are_refused() -> None:
    store, task = molecule_store(3), Task("regression", ("y",))
    wide = replace(store, graphs=store.graphs.with_graph_features(torch.zeros(len(store), MOST_COLUMNS + 1)))
    with pytest.raises(ValueError, match=r"there are 32,768 columns of descriptors; expected at most 32,767"):
        is_wanted(TrainingConfig(forest="always"), task, wide, TokenGTConfig())


def test_the_share_is_fitted_without_the_validation_rows_and_the_forest_kept_grows_from_them_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 rows: 48 train, 6 validate, 6 test. What is told of validation rows is of a forest that has not seen them."""
    grown_of: list[Tensor] = []
    forests_made: list[Forest] = []
    seen: list[tuple[Tensor, Tensor]] = []
    grow, average = forests.grown, averaging.averaged

    def counted(task: Task, features: Tensor, *rest: Any) -> Forest:
        grown_of.append(features)
        forests_made.append(grow(task, features, *rest))
        return forests_made[-1]

    def watched(task: Task, share: Tensor, model: Tensor, said: Tensor) -> Tensor:
        seen.append((said, share))
        return average(task, share, model, said)

    monkeypatch.setattr(averaging, "grown", counted)
    monkeypatch.setattr(averaging, "averaged", watched)
    predictor = train_small(dosed_csv(tmp_path / "data.csv"), tmp_path / "run", "y", options=DOSED, settings=ALWAYS)
    first, kept = forests_made
    train, both = grown_of
    assert (len(train), len(both)) == (48, 54)
    (of_valid, share), (of_test, same) = seen
    assert torch.equal(of_valid, first(both[48:]))
    assert not torch.equal(of_valid, kept(both[48:]))
    assert len(of_test) == 6
    assert torch.equal(share, same)
    saved = predictor.members[0].forest
    assert saved is not None
    assert torch.equal(saved.said, kept.said)
    assert torch.equal(saved.share, share)


def test_what_is_explained_adds_up_to_what_is_predicted(tmp_path: Path) -> None:
    """The forest's part is held as it is: attributions are those of the model, as far as it counts."""
    data = dosed_csv(tmp_path / "data.csv")
    predictor = train_small(data, tmp_path / "run", "y", options=DOSED, settings=ALWAYS)
    text = molecules(3)[0][2]
    found = explain(predictor, text, descriptors=[7.0], methods=("integrated_gradients",), usual=0)
    expected = predictor.predict([text], descriptors=[[7.0]]).mean[0]
    np.testing.assert_allclose(found.prediction, expected, rtol=1e-6)
    given = found.attributions["integrated_gradients"]
    assert given.prediction == pytest.approx(expected[0], rel=1e-5)
    assert given.complete
    assert predictor.members[0].forest is not None
    assert found.forest == pytest.approx(float(predictor.members[0].forest.share[0]))
