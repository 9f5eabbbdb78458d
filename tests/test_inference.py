"""A trained run in Python: the same input, the same prediction, alone or in any company."""

import csv
import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import tokengt
from tests.workflow.small import QUIET, molecule_csv, molecules, resealed, train_small, write_csv
from tokengt.inference import Predictor, load
from tokengt.models.passes import Over
from tokengt.models.tokengt.identifiers import identify
from tokengt.training.spec import Descriptors
from tokengt.training.tasks import Task
from tokengt.workflow.fitting import TrainOptions

MOLECULES = Path(os.environ.get("TOKENGT_DATA", Path(__file__).parents[2] / "shared" / "data")) / "molecules"
FORMAT_2 = Path(__file__).parent / "fixtures" / "format_2"
SECOND = {
    "dim": 16,
    "encoder.num_layers": 1,
    "encoder.num_heads": 2,
    "encoder.mlp_dim": 16,
    "identifiers.dim": 4,
}
TEXTS = [*molecules(30)[0], "C", "[Na+].[Cl-]", "O"]
BAD = "C1CC"


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    """To 1e-5 x max(1, |y|), the promise in float32."""
    return bool((np.abs(found - expected) <= 1e-5 * np.maximum(1, np.abs(expected))).all())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train_small(molecule_csv(folder / "data.csv"), folder / "run", ("y", "z"))
    return folder / "run"


@pytest.fixture(scope="module")
def predictor(run: Path) -> Predictor:
    return load(run, "cpu")


def test_company_does_not_matter(predictor: Predictor) -> None:
    together = predictor.predict(TEXTS).mean
    assert together.shape == (len(TEXTS), 2)
    assert np.ptp(together, axis=0).min() > 0
    alone = np.concatenate([predictor.predict(text).mean for text in TEXTS])
    assert close(alone, together)
    backwards = predictor.predict(TEXTS[::-1]).mean[::-1]
    assert close(backwards, together)
    long = predictor.predict([text for text in TEXTS for _ in range(40)]).mean[::40]
    assert close(long, together)


def test_a_bad_input_costs_the_others_nothing(predictor: Predictor) -> None:
    together = predictor.predict(TEXTS).mean
    mixed = predictor.predict([part for text in TEXTS for part in (text, BAD)])
    assert close(mixed.mean[::2], together)
    assert np.isnan(mixed.mean[1::2]).all()
    assert sorted(mixed.problems) == list(range(1, 2 * len(TEXTS), 2))
    assert all(mixed.problems.values())
    none = predictor.predict([BAD, ""])
    assert np.isnan(none.mean).all()
    assert sorted(none.problems) == [0, 1]


def test_again_and_reloaded_the_bits_are_the_same(predictor: Predictor, run: Path) -> None:
    first = predictor.predict(TEXTS, draws=3)
    torch.manual_seed(123)
    for again in (predictor.predict(TEXTS, draws=3), load(run).predict(TEXTS, draws=3)):
        assert (again.mean == first.mean).all()
        assert again.std is not None
        assert first.std is not None
        assert (again.std == first.std).all()


@pytest.mark.parametrize("over", ["identifiers", "dropout"])
def test_a_prediction_is_the_mean_over_draws_and_the_spread_is_theirs(predictor: Predictor, over: Over) -> None:
    """The same numbers as the model's own predict, in the units of the target."""
    plain = predictor.predict(TEXTS)
    predictions = predictor.predict([*TEXTS, BAD], draws=4, over=over)
    assert plain.std is None
    assert predictions.std is not None
    member, batch = predictor.members[0], tokengt.GraphBatch.collate([tokengt.from_smiles(text) for text in TEXTS])
    own = member.model.predict(batch, draws=4, over="identifiers")  # type: ignore[operator]
    if over == "identifiers":
        assert close(predictions.mean[:-1], member.task.predictions(own.mean).numpy())
        assert close(predictions.std[:-1], (own.std.double() * torch.tensor(member.task.scale)).numpy())
    assert (predictions.std[:-3] > 0).any()
    assert np.isnan(predictions.std[-1]).all()
    state = torch.random.get_rng_state()
    predictor.predict(TEXTS[:2], draws=2, over="dropout")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not predictor.members[0].model.training


def test_draws_that_cannot_be_are_refused(predictor: Predictor) -> None:
    with pytest.raises(ValueError, match="draws is 0; expected at least 1"):
        predictor.predict(TEXTS, draws=0)


def test_predictions_are_an_array(predictor: Predictor) -> None:
    predictions = predictor.predict(TEXTS[:3])
    assert len(predictions) == 3
    assert np.asarray(predictions).shape == (3, 2)
    assert [row.shape for row in predictions] == [(2,)] * 3
    assert (predictions[1] == predictions.mean[1]).all()


def test_a_series_or_array_of_smiles_is_a_list_of_them(predictor: Predictor) -> None:
    pandas = pytest.importorskip("pandas")
    expected = predictor.predict(TEXTS[:4]).mean
    assert (predictor.predict(pandas.Series(TEXTS[:4])).mean == expected).all()
    assert (predictor.predict(np.array(TEXTS[:4])).mean == expected).all()


def test_graphs_of_the_molecules_predict_as_their_smiles(predictor: Predictor) -> None:
    graphs = [tokengt.from_smiles(text) for text in TEXTS]
    assert close(predictor.predict(graphs).mean, predictor.predict(TEXTS).mean)


def test_an_ensemble_is_the_mean_of_its_models(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv")
    options = TrainOptions(quiet=True, workers=1, ensemble=2)
    together = train_small(source, tmp_path / "run", ("y", "z"), options=options)
    members = [load(tmp_path / "run" / "members" / name) for name in together.spec.members]
    assert len(members) == 2
    each = [member.predict(TEXTS).mean for member in members]
    assert not close(each[0], each[1])
    assert close(together.predict(TEXTS).mean, (each[0] + each[1]) / 2)
    spread = together.predict(TEXTS).std
    assert spread is not None
    assert close(spread, np.std(each, 0, ddof=1))
    assert (together.predict(TEXTS, draws=2).std > 0).all()  # type: ignore[operator]


def test_folds_test_every_row_once_and_average_in_use(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv", 20)
    options = TrainOptions(quiet=True, workers=1, folds=3)
    together = train_small(source, tmp_path / "run", ("y", "z"), options=options)
    members = [load(tmp_path / "run" / "members" / name) for name in together.spec.members]
    each = [member.predict(TEXTS).mean for member in members]
    assert close(together.predict(TEXTS).mean, np.mean(each, 0))
    tested = [line.split(",")[0] for line in (tmp_path / "run" / "predictions.csv").read_text().splitlines()[1:]]
    assert tested == [str(line) for line in range(2, 22)]
    # Each fold scales its targets by its own training rows.
    assert len({member.task.mean for member in members}) == 3


def test_descriptors_matter_and_are_scaled(tmp_path: Path) -> None:
    smiles, values = molecules(30)
    rows = [(text, value, 1000 + 50 * value) for text, value in zip(smiles, values, strict=True)]
    source = write_csv(tmp_path / "data.csv", ("smiles", "y", "T"), rows)
    options = TrainOptions(quiet=True, workers=1, descriptors=("T",))
    settings = {"training.epochs": 30, "training.learning_rate": 5e-3}
    predictor = train_small(source, tmp_path / "run", "y", options=options, settings=settings)
    low, high = (predictor.predict(TEXTS[:5], descriptors=[number] * 5).mean for number in (700.0, 1100.0))
    assert (high > low + 1).all()
    with pytest.raises(ValueError, match="trained with descriptors; expected 5 rows of 1 numbers"):
        predictor.predict(TEXTS[:5])
    with pytest.raises(ValueError, match="none missing"):
        predictor.predict(TEXTS[:2], descriptors=[1.0, float("nan")])
    mixed = predictor.predict([TEXTS[0], BAD, TEXTS[1]], descriptors=[[1000.0], [1.0], [900.0]])
    assert mixed.mean[0] == pytest.approx(predictor.predict(TEXTS[0], descriptors=[1000.0]).mean[0], abs=1e-5)
    assert mixed.mean[2] == pytest.approx(predictor.predict(TEXTS[1], descriptors=[900.0]).mean[0], abs=1e-5)


def test_descriptors_for_a_run_without_are_refused(predictor: Predictor) -> None:
    with pytest.raises(ValueError, match="this run has no descriptors"):
        predictor.predict(TEXTS[:2], descriptors=[1.0, 2.0])


def test_embeddings_do_not_mind_their_company(predictor: Predictor) -> None:
    graphs, kept, _ = predictor.read_texts(TEXTS)
    vectors = predictor.embed_graphs(graphs)
    assert vectors.shape == (len(TEXTS), predictor.width) == (len(kept), 32)
    one, _, _ = predictor.read_texts(TEXTS[3:4])
    torch.testing.assert_close(predictor.embed_graphs(one)[0], vectors[3], atol=1e-5, rtol=1e-5)


class Trap:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("name", ["run.json", "config.json", "model.safetensors"])
def test_a_pickle_in_a_run_is_refused_and_runs_nothing(run: Path, tmp_path: Path, name: str) -> None:
    for number, trap in enumerate((pickle.dumps(Trap(tmp_path / "ran")), pickle.dumps(Trap(tmp_path / "ran"), 0))):
        folder = tmp_path / str(number)
        shutil.copytree(run, folder, ignore=shutil.ignore_patterns("store", "checkpoints"))
        (folder / name).write_bytes(trap)
        with pytest.raises(ValueError, match=name):
            load(folder)
    assert not (tmp_path / "ran").exists()


def test_weights_that_were_changed_are_named(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("store", "checkpoints"))
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-3] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    with pytest.raises(ValueError, match=r"model\.safetensors does not match its checksum"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="is not trained to the end; go on with it"):
        load(folder)


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data.pop("task"),
        lambda data: data.update(task=3),
        lambda data: data.update(format="tokengt-run-9"),
        lambda data: data.update(extra=1),
        lambda data: data["model"].update(kind="gin"),
        lambda data: data.update(model="tokengt"),
        lambda data: data.update(members=7),
    ],
)
def test_a_run_file_that_was_edited_is_one_sentence(run: Path, tmp_path: Path, edit: object) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("store", "checkpoints"))
    data = json.loads((folder / "run.json").read_text())
    edit(data)  # type: ignore[operator]
    (folder / "run.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"run\.json"):
        load(folder).predict(TEXTS[:2])


def test_no_run_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no tokengt run: run\.json is missing"):
        load(tmp_path)


def test_a_run_says_what_it_was_made_with(predictor: Predictor) -> None:
    assert predictor.spec.training.epochs == 2
    assert predictor.spec.molecules == QUIET.policy
    assert predictor.task.names == ("y", "z")


def test_a_config_that_was_edited_is_one_sentence(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("store", "checkpoints"))
    with resealed(folder / "config.json") as data:
        data["model"]["dim"] = "wide"
    with pytest.raises(ValueError, match=r"config\.json\.dim is 'wide'; expected a whole number"):
        load(folder)


def test_the_models_config_stands_in_one_file(run: Path) -> None:
    """run.json names the kind of its model, config.json has the rest, and loading reads each once."""
    assert json.loads((run / "run.json").read_text())["model"] == {"kind": "tokengt"}
    assert json.loads((run / "config.json").read_text())["model"]["kind"] == "tokengt"


@pytest.mark.parametrize("name", ["softmax", "favor"])
def test_runs_of_the_first_format_predict_what_they_did(name: str) -> None:
    """Run folders made by version 0.1.0, before models had a kind: one model, and an ensemble with FAVOR+ and ORF."""
    folder = Path(__file__).parent / "fixtures" / "format_1" / name
    expected = json.loads((folder / "expected.json").read_text())
    old = load(folder, "cpu")
    predictions = old.predict(expected["smiles"])
    assert np.abs(predictions.mean[:, 0] - expected["predicted"]).max() < 1e-5
    assert np.abs(old.embed(expected["smiles"][:2]) - expected["embedded"]).max() < 1e-5


def test_a_run_of_the_first_format_is_not_torn_by_an_attempt_to_resume_it(tmp_path: Path) -> None:
    """A finished one is loaded; an unfinished one is refused before a byte of it is written."""
    old = tmp_path / "old"
    shutil.copytree(Path(__file__).parent / "fixtures" / "format_1" / "softmax", old)
    before = {file.name: file.read_bytes() for file in old.iterdir() if file.is_file()}
    finished = tokengt.train(old / "store", old, resume=True, options=TrainOptions(quiet=True))
    assert np.isfinite(finished.predict(TEXTS[:2]).mean).all()
    (old / "summary.json").unlink()
    with pytest.raises(ValueError, match=r"begun by an older version of tokengt.*finish it with that version"):
        tokengt.train(old / "store", old, resume=True, options=TrainOptions(quiet=True))
    assert all((old / name).read_bytes() == content for name, content in before.items() if name != "summary.json")


def test_a_strangers_config_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"mine": 1}')
    with pytest.raises(ValueError, match="exists and holds other files"):
        train_small(molecule_csv(tmp_path / "data.csv"), tmp_path / "run", "y")
    assert (tmp_path / "run" / "config.json").read_text() == '{"mine": 1}'


@pytest.mark.parametrize("name", ["alone", "ensemble"])
def test_runs_of_the_second_format_predict_what_they_did(name: str) -> None:
    """Run folders from before run.json and config.json had checksums: one model, and an ensemble with a descriptor."""
    expected = json.loads((FORMAT_2 / name / "expected.json").read_text())
    old, given = load(FORMAT_2 / name, "cpu"), expected["descriptors"]
    predictions = old.predict(expected["smiles"], descriptors=given)
    assert np.abs(predictions.mean[:, 0] - expected["predicted"]).max() < 1e-5
    embedded = old.embed(expected["smiles"][:2], descriptors=given and given[:2])
    assert np.abs(embedded - expected["embedded"]).max() < 1e-5


def test_a_run_of_the_second_format_is_resumed_in_the_third(tmp_path: Path) -> None:
    """Its checkpoint is taken, its weights stay as they are to the bit, and from then on edits are noticed."""
    run = tmp_path / "run"
    shutil.copytree(FORMAT_2 / "alone", run)
    (run / "summary.json").unlink()
    spec = load(run).spec
    settings = {f"model.{path}": value for path, value in SECOND.items()} | {"training.epochs": 2}
    wishes = {"target": "logS", "preset": "small", "settings": settings, "options": QUIET, "device": "cpu"}
    again = tokengt.train(FORMAT_2 / "data.csv", run, resume=True, **wishes)  # type: ignore[arg-type]
    assert again.spec == spec
    assert (run / "model.safetensors").read_bytes() == (FORMAT_2 / "alone" / "model.safetensors").read_bytes()
    assert json.loads((run / "run.json").read_text())["format"] == "tokengt-run-3"
    data = json.loads((run / "run.json").read_text())
    data["task"]["scale"] = [1.0]
    (run / "run.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"run\.json does not match its checksum"):
        load(run)


def test_each_model_scales_descriptors_by_its_own_training_rows() -> None:
    """Folds have other training rows each; here the second model was trained on numbers around 5."""
    run = load(FORMAT_2 / "ensemble", "cpu")
    first = run.members[0]
    second = replace(run.members[1], descriptors=Descriptors(("T",), (5.0,), (2.0,)))
    both, alone = (Predictor(run.spec, members, run.device) for members in ([first, second], [second]))
    given = {"inputs": TEXTS[:6], "descriptors": [[100.0 + 3 * place] for place in range(6)]}
    each = [Predictor(run.spec, [first], run.device).predict(**given).mean, alone.predict(**given).mean]
    wrong = Predictor(run.spec, [run.members[1]], run.device).predict(**given).mean
    assert not close(each[1], wrong), "the scaling has to matter for this test to tell"
    assert close(both.predict(**given).mean, (each[0] + each[1]) / 2)
    vectors = np.concatenate([Predictor(run.spec, [m], run.device).embed(**given) for m in (first, second)], 1)
    assert close(both.embed(**given), vectors)


@pytest.mark.parametrize("name", ["alone", "ensemble"])
def test_a_prediction_is_finite_or_has_a_reason(name: str) -> None:
    """Numbers that overflow: as descriptors, or in a model whose outputs are infinite.

    Of 1e22 the outputs are finite, but only because a layer norm divides by an infinite deviation.
    """
    run = load(FORMAT_2 / name, "cpu")
    if name == "ensemble":
        found = run.predict([*TEXTS[:3], BAD], descriptors=[[100.0], [1e30], [1e22], [100.0]])
        vectors = run.embed([*TEXTS[:3], BAD], descriptors=[[100.0], [1e30], [1e22], [100.0]])
        assert sorted(found.problems) == [1, 2, 3]
        assert "descriptor 'T' is 1e+30, too far from those of training" in found.problems[1]
        assert found.std is not None
        assert np.isnan(found.std[1:]).all()
    else:
        with torch.no_grad():
            run.members[0].model.get_parameter("head.project.bias").fill_(torch.inf)
        found = run.predict([TEXTS[0], BAD])
        assert sorted(found.problems) == [0, 1]
        assert "gives no finite number" in found.problems[0]
        vectors = np.zeros((1, 1))
    assert np.isfinite(found.mean[[place not in found.problems for place in range(len(found))]]).all()
    assert np.isnan(found.mean[list(found.problems)]).all()
    assert np.isfinite(vectors[0]).all()
    assert np.isnan(vectors[1:]).all()


def test_the_probability_of_an_infinite_output_is_no_prediction() -> None:
    """It would be 1.0, as if the model were sure."""
    run = load(FORMAT_2 / "alone", "cpu")
    with torch.no_grad():
        run.members[0].model.get_parameter("head.project.bias").fill_(torch.inf)
    task = Task("binary", ("logS",))
    sure = Predictor(replace(run.spec, task=task), [replace(run.members[0], task=task)], run.device)
    found = sure.predict(TEXTS[:2])
    assert np.isnan(found.mean).all()
    assert sorted(found.problems) == [0, 1]


def test_identifiers_of_ones_own_are_used_in_a_prediction(predictor: Predictor) -> None:
    """Each graph gets its own rows of them, whatever batch it is predicted in; the canonical ones give the same."""
    graphs, _, _ = predictor.read_texts(TEXTS)
    identifiers = predictor.members[0].model.config.identifiers  # type: ignore[attr-defined]
    canonical = identify(graphs, identifiers)
    assert canonical is not None
    given = predictor.predict(TEXTS, node_ids=canonical.nodes).mean
    assert close(given, predictor.predict(TEXTS).mean)
    mine = torch.randn(graphs.num_nodes, identifiers.dim, generator=torch.Generator().manual_seed(0))
    together = predictor.predict(graphs, node_ids=mine).mean
    assert not close(together, given)
    last = graphs.nodes.host_lengths[-1]
    assert close(predictor.predict(TEXTS[-1], node_ids=mine[-last:]).mean, together[-1:])
    assert predictor.predict(graphs, node_ids=mine, draws=3, over="dropout").std is not None
    with pytest.raises(ValueError, match="draws over identifiers would all be alike"):
        predictor.predict(graphs, node_ids=mine, draws=3)
    with pytest.raises(ValueError, match=f"node_ids has {len(mine) - 1} rows; expected {len(mine)}, one per node"):
        predictor.predict(graphs, node_ids=mine[1:])


def test_gaps_come_with_the_package() -> None:
    """Longer conjugation closes the gap, in chains as in rings."""
    run = load("pretrained:gap", "cpu")
    assert run.task.names == ("homolumogap",)
    chains = run.predict(["CCCCCC", "C=CC=C", "C=CC=CC=C", "C=CC=CC=CC=C"]).mean[:, 0]
    rings = run.predict(["c1ccccc1", "c1ccc2ccccc2c1", "c1ccc2cc3cc4ccccc4cc3cc2c1"]).mean[:, 0]
    assert (np.diff(chains) < 0).all()
    assert (np.diff(rings) < 0).all()
    assert 6 < rings[0] < 7.5  # Benzene has 6.8 eV at this level of theory.
    with pytest.raises(ValueError, match=r"pretrained:gep does not come with tokengt \(did you mean gap\?\); expected"):
        load("pretrained:gep")


@pytest.mark.skipif(not MOLECULES.is_dir(), reason="the public data sets are not beside the project")
def test_gaps_are_as_good_as_their_card_says() -> None:
    """A hundred of its thousand validation molecules: the card says 0.232 eV on average."""
    with (MOLECULES / "pcqm4mv2_valid_1000.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))[::10]
    predicted = load("pretrained:gap", "cpu").predict([row["smiles"] for row in rows]).mean[:, 0]
    assert np.abs(predicted - [float(row["homolumogap"]) for row in rows]).mean() < 0.28


def test_the_limit_on_atoms_can_be_raised_for_a_run_that_has_it() -> None:
    """Runs of older versions had none, and their chemists may have larger molecules."""
    long = "C" * 1100
    assert "at most 1,000" in load(FORMAT_2 / "alone", "cpu").predict([long]).problems[0]
    assert np.isfinite(load(FORMAT_2 / "alone", "cpu", max_atoms=2000).predict([long]).mean).all()


def test_an_unfinished_ensemble_says_how_to_go_on(tmp_path: Path) -> None:
    shutil.copytree(FORMAT_2 / "ensemble", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "members" / "model-1")
    with pytest.raises(ValueError, match=r"model-1 is not trained to the end; go on with it \(resume=True"):
        load(tmp_path / "run", "cpu")


def test_a_model_is_not_saved_into_the_folder_of_a_run(tmp_path: Path) -> None:
    """The run's files belong together: it could not be read any more."""
    train_small(molecule_csv(tmp_path / "data.csv"), tmp_path / "run", "y")
    model = tokengt.TokenGT.from_pretrained(tmp_path / "run")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match="run is the folder of a run"):
            model.save_pretrained(tmp_path / "run", overwrite=overwrite)
    load(tmp_path / "run")


def test_other_graphs_in_memory_do_not_go_on_with_a_run(tmp_path: Path) -> None:
    def graphs(seed: int) -> list[Data]:
        draw = torch.Generator().manual_seed(seed)
        return [Data(x=torch.rand(3, 2, generator=draw), y=torch.tensor([n / 3])) for n in range(20)]

    wishes = {"settings": {"training.epochs": 1, "model.dim": 8}, "options": QUIET, "device": "cpu"}
    tokengt.train(graphs(0), tmp_path / "run", **wishes)  # type: ignore[arg-type]
    tokengt.train(graphs(0), tmp_path / "run", resume=True, **wishes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="was begun with other settings: store_sha256"):
        tokengt.train(graphs(1), tmp_path / "run", resume=True, **wishes)  # type: ignore[arg-type]


def test_half_weights_predict_in_float32_on_a_cpu() -> None:
    """The weights of pretrained:gap are kept in half precision, in which a CPU would be five times as slow."""
    member = load("pretrained:gap", device="cpu").members[0]
    assert {parameter.dtype for parameter in member.model.parameters()} == {torch.float32}
