"""The ADMET benchmark: what is read, run once and kept, and refused."""

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.experiments.small_admet import TINY, fake_chemprop, small_endpoints, small_plan
from tests.workflow.small import write_csv
from tokengt.cli import main
from tokengt.experiments.admet import trees, worker
from tokengt.experiments.admet.benchmark import run_admet
from tokengt.experiments.admet.endpoints import ENDPOINTS, endpoints_named
from tokengt.experiments.admet.plan import AdmetConfig, Job, predictions_of, read_cell
from tokengt.experiments.admet.reading import read_endpoint
from tokengt.experiments.admet.run import run_cells
from tokengt.experiments.admet.worker import run_job
from tokengt.interop.molecules import scaffolds
from tokengt.training.scaling import log_moments

HERG, CACO = ENDPOINTS["herg"], ENDPOINTS["caco2_wang"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_endpoints(tmp_path_factory.mktemp("admet"))


def test_the_group_has_22_endpoints_with_their_official_metrics() -> None:
    assert Counter(each.metric for each in ENDPOINTS.values()) == {
        "mae": 5,
        "spearman": 4,
        "average_precision": 5,
        "roc_auc": 8,
    }
    assert ENDPOINTS["ppbr_az"].measure(np.array([1.0, 3.0]), np.array([2.0, 6.0])) == 2.0
    # One of the two positives is above the negative, the other is below it.
    assert HERG.measure(np.array([0.9, 0.2, 0.5]), np.array([1.0, 1.0, 0.0])) == 0.5
    # Ranks 1, 2, 3 against 1, 3, 2: 1 - 6 * 2 / (3 * 8).
    assert ENDPOINTS["half_life_obach"].measure(np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.9, 0.5])) == 0.5
    # Precision 1 at the first positive, 2/3 at the second, each half of the recall.
    predicted, labels = np.array([0.9, 0.5, 0.4]), np.array([1.0, 0.0, 1.0])
    assert ENDPOINTS["cyp2c9_veith"].measure(predicted, labels) == pytest.approx((1 + 2 / 3) / 2)
    assert np.isnan(HERG.measure(np.array([0.9]), np.array([1.0])))


def test_endpoints_are_found_by_the_beginning_of_their_names() -> None:
    assert [each.name for each in endpoints_named(["caco2", "herg", "caco2_wang"])] == ["caco2_wang", "herg"]
    with pytest.raises(ValueError, match="'cyp2c9' may be cyp2c9_veith or cyp2c9_substrate_carbonmangels"):
        endpoints_named(["cyp2c9"])
    with pytest.raises(ValueError, match=r"'hergg' is unknown .did you mean herg"):
        endpoints_named(["hergg"])


def test_an_endpoint_is_read_with_its_official_split(folder: Path) -> None:
    data = read_endpoint(HERG, folder)
    assert (len(data.train_val), len(data.test), data.unreadable) == (40, 10, (0, 1))
    assert set(data.labels.tolist()) == {0.0, 1.0}
    assert data.checksum == read_endpoint(HERG, folder).checksum != read_endpoint(CACO, folder).checksum


def test_rows_for_choosing_are_whole_scaffolds_of_train_val_and_differ_by_seed(folder: Path) -> None:
    data = read_endpoint(HERG, folder)
    chosen = [set(data.chosen_by(seed).tolist()) for seed in range(4)]
    assert len({frozenset(each) for each in chosen}) > 1
    for each in chosen:
        assert 0 < len(each) <= 5
        assert not each & set(data.test.tolist())
        rest = set(data.train_val.tolist()) - each
        groups = [set(scaffolds([data.smiles[place] for place in part])) for part in (each, rest)]
        assert not groups[0] & groups[1]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([("C", "2", "test")], r"herg\.csv, line 2: y is '2'; expected 0 or 1"),
        ([("C", "", "test")], r"line 2: y is ''; expected 0 or 1"),
        ([("C", "1", "train")], r"line 2: split is 'train'; expected train_val or test"),
        ([("C", "1", "test"), ("CC", "0", "test")], "has 0 readable rows whose split is train_val"),
    ],
)
def test_a_bad_row_is_told_with_its_line(tmp_path: Path, rows: list[tuple[str, str, str]], sentence: str) -> None:
    write_csv(tmp_path / "herg.csv", ("smiles", "y", "split"), rows)
    with pytest.raises(ValueError, match=sentence):
        read_endpoint(HERG, tmp_path)


def test_a_missing_table_or_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no herg\.csv"):
        read_endpoint(HERG, tmp_path)
    write_csv(tmp_path / "herg.csv", ("smiles", "label", "split"), [])
    with pytest.raises(ValueError, match="has no column 'y'; expected smiles, y, split"):
        read_endpoint(HERG, tmp_path)


def test_finished_cells_are_kept_and_others_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, job = small_plan(folder, tmp_path, "random-forest"), Job("herg", "random-forest")
    run_job(plan, job)
    files = [plan.file(job, seed) for seed in (0, 1)]
    before = [file.read_bytes() for file in files]
    cell = read_cell(files[0])
    data = plan.data("herg")
    assert cell["found"]["value"] == HERG.measure(predictions_of(cell["found"]["predictions"]), data.labels[data.test])
    assert before[0] != before[1]
    files[1].unlink()
    ran = []
    fits = {"random-forest": lambda data, known, seed: ran.append(seed) or worker.forest(data, known, seed)}
    monkeypatch.setattr(worker, "_FITS", fits)
    run_job(plan, job)
    assert ran == [1]
    assert files[0].read_bytes() == before[0]
    # The same seed gives the same predictions.
    again = read_cell(files[1])["found"]["predictions"]
    assert again == json.loads(before[1])["found"]["predictions"]
    files[0].write_text(files[0].read_text().replace(data.checksum, "other"))
    with pytest.raises(ValueError, match=r"seed-0\.json was made with other settings"):
        run_cells(plan.config, tmp_path)


def test_boosting_chooses_its_trees_and_learns(folder: Path, tmp_path: Path) -> None:
    plan, job = small_plan(folder, tmp_path, seeds=1), Job("caco2_wang", "gradient-boosting")
    run_job(plan, job)
    found = read_cell(plan.file(job, 0))["found"]
    assert 1 <= found["trees"] <= 500
    assert found["rows"] == 40
    data = plan.data("caco2_wang")
    alone = CACO.measure(np.full(10, data.labels[data.train_val].mean()), data.labels[data.test])
    assert found["value"] < alone


@pytest.mark.parametrize("system", ["random-forest", "gradient-boosting"])
def test_trees_learn_logarithms_where_tokengt_does(folder: Path, tmp_path: Path, system: str) -> None:
    """Cells of trees that learned such labels as they are, of an earlier version, are refused."""
    data = read_endpoint(CACO, folder)
    data = replace(data, endpoint=ENDPOINTS["half_life_obach"], labels=np.exp(3 * data.labels))
    fit = {"random-forest": trees.forest, "gradient-boosting": trees.boosting}[system]
    known = trees.features(data.smiles)
    learned, _ = fit(data, known, 0)
    plain, _ = fit(replace(data, endpoint=replace(data.endpoint, skewed=False), labels=np.log(data.labels)), known, 0)
    np.testing.assert_allclose(np.log(learned), plain, rtol=1e-6, atol=1e-9)
    plan = small_plan(folder, tmp_path, system)
    assert plan.asked(Job("half_life_obach", system), 0, "x")["logarithms"]
    assert "logarithms" not in plan.asked(Job("caco2_wang", system), 0, "x")


def test_skewed_endpoints_are_those_whose_logarithms_tokengt_learns() -> None:
    home = Path(os.environ.get("TOKENGT_DATA", Path(__file__).parents[3] / "shared" / "data")) / "admet"
    if not home.is_dir():
        pytest.skip("no ADMET tables here (set TOKENGT_DATA)")
    for endpoint in ENDPOINTS.values():
        if endpoint.task == "regression":
            data = read_endpoint(endpoint, home)
            labels = torch.from_numpy(data.labels[data.train_val])[:, None]
            _, (scale,) = log_moments(labels, ("y",), "auto")
            assert bool(scale) is endpoint.skewed, endpoint.name


def test_tokengt_is_trained_on_the_parts_of_the_seed(folder: Path, tmp_path: Path) -> None:
    plan, job = small_plan(folder, tmp_path, seeds=1), Job("herg", "tokengt")
    run_job(plan, job)
    cell = read_cell(plan.file(job, 0))
    assert cell["settings"]["settings"] == dict(sorted(TINY.items()))
    assert cell["found"]["epochs"] == 2
    assert len(predictions_of(cell["found"]["predictions"])) == 10
    assert not plan.work(job, 0).exists()


def test_chemprop_is_called_in_its_own_environment(folder: Path, tmp_path: Path) -> None:
    python, log = fake_chemprop(tmp_path)
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "chemeleon_mp.pt").write_text("weights of CheMeleon")
    more = {"chemprop": str(python), "chemeleon": str(weights)}
    plan = small_plan(folder, tmp_path / "out", seeds=1, **more)
    for system, started in (("chemprop", None), ("chemeleon", "weights of CheMeleon")):
        job = Job("herg", system)
        run_job(plan, job)
        told, data = json.loads(log.read_text()), plan.data("herg")
        assert told["started"] == started
        assert told["options"]["--task-type"] == "classification"
        assert told["options"]["--pytorch-seed"] == "0"
        assert Counter(told["parts"]) == {
            "train": 40 - len(data.chosen_by(0)),
            "val": len(data.chosen_by(0)),
            "test": 10,
        }
        found = read_cell(plan.file(job, 0))["found"]
        assert found["version"] == "2.0-fake"
        assert predictions_of(found["predictions"]).tolist() == [len(text) for text in data.texts(data.test)]


def test_chemprop_that_fails_is_told_in_its_own_words(folder: Path, tmp_path: Path) -> None:
    python, _ = fake_chemprop(tmp_path)
    plan = small_plan(folder, tmp_path / "out", seeds=8, chemprop=str(python))
    with pytest.raises(ValueError, match="chemprop ended with status 1: seven is an unlucky number"):
        run_job(plan, Job("herg", "chemprop"))
    assert plan.file(Job("herg", "chemprop"), 6).exists()


def test_what_cannot_be_run_is_left_out_with_a_sentence(tmp_path: Path) -> None:
    config = AdmetConfig()
    assert config.wanted == ("tokengt", "random-forest", "gradient-boosting")
    assert "--chemprop" in config.left_out["chemprop"]
    python, _ = fake_chemprop(tmp_path)
    config = AdmetConfig(chemprop=str(python))
    assert "chemprop" in config.wanted
    assert "--chemeleon" in config.left_out["chemeleon"]
    assert "--start" in AdmetConfig(systems=("tokengt-start",)).left_out["tokengt-start"]


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        ({"systems": ("tokengd",)}, r"system 'tokengd' is unknown .did you mean tokengt"),
        ({"seeds": 0}, "seeds is 0; expected at least 1"),
        ({"chemprop": "/no/python"}, "chemprop is /no/python; expected the Python"),
        ({"start": "/no/model"}, r"which holds no config\.json"),
        ({"settings": {"training.epoch": "3"}}, r"training\.epoch"),
    ],
)
def test_a_wish_that_cannot_be_is_refused(wishes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        AdmetConfig(**wishes)  # type: ignore[arg-type]


def test_the_command_writes_the_table_and_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers in processes of their own, leaks, pictures; then the table again, without training."""
    monkeypatch.delenv("TOKENGT_DATA", raising=False)
    words = ["benchmark", "admet", "--endpoints", "herg", "--data", str(folder), "--out", str(tmp_path), "--seeds", "2"]
    words += ["--systems", "random-forest", "gradient-boosting", "chemprop", "--device", "cpu", "--at-once", "2"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "chemprop is left out: it runs in an environment of its own" in told
    assert "herg/random-forest: " in told
    for name in ("table.md", "table.json", "admet.json", "endpoints.png", "neighbours.png"):
        assert (tmp_path / name).stat().st_size > 0
    found = json.loads((tmp_path / "admet.json").read_text())
    assert found["endpoints"]["herg"]["unreadable"] == {"train_val": 0, "test": 1}
    assert found["mean_rank"]["measured"]["endpoints"] == 1
    assert sum(found["mean_rank"]["measured"]["mean"].values()) == 3  # Places 1 and 2, or 1.5 twice.
    assert "TOKENGT_DATA" in found["notes"][-1]
    rows = json.loads((tmp_path / "table.json").read_text())
    assert {(row["system"], row["runs"]) for row in rows} == {("random forest", 2), ("gradient boosting", 2)}
    before = (tmp_path / "admet.json").read_bytes()
    assert main([*words, "--table"]) == 0
    assert json.loads((tmp_path / "admet.json").read_bytes())["endpoints"] == json.loads(before)["endpoints"]


def test_an_empty_folder_has_nothing_to_tell(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no finished cell"):
        run_admet(AdmetConfig(("herg",), data=str(folder)), tmp_path, train=False)
