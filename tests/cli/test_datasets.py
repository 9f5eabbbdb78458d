"""Data sets by name, as a person types them."""

from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import here, succeeded
from tests.data.published import pcqm_folder
from tokengt.data import catalogue, downloads
from tokengt.data.catalogue import DATASETS
from tokengt.data.downloads import Remote
from tokengt.data.store import Store


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENGT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_all_are_listed_with_where_they_lie_or_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pcqm_folder(tmp_path / "data")
    monkeypatch.setenv("TOKENGT_DATA", str(tmp_path / "data"))
    head, *lines = succeeded(here("datasets")).stdout.splitlines()
    assert head.split() == ["name", "rows", "task", "split", "size", "where"]
    assert [line.split()[0] for line in lines] == list(DATASETS)
    told = dict(zip(DATASETS, lines, strict=True))
    assert told["pcqm4mv2"].endswith(str(tmp_path / "data/pcqm4m-v2/raw/data.csv.gz"))
    assert "130,831" in told["qm9"]
    assert told["qm9"].endswith(f"to download from {DATASETS['qm9'].remotes[0].url}")
    assert "about 30.1 MB" in told["qm9"]
    assert told["esol"].endswith("esol.csv.xz")
    assert " 9 kB " in told["esol"]
    assert "none official: random by the seed" in told["esol"]
    assert not (tmp_path / "cache").exists()


def test_prepare_takes_a_name_and_the_options_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pcqm_folder(tmp_path / "data")
    monkeypatch.setenv("TOKENGT_DATA", str(tmp_path / "data"))
    done = succeeded(here("prepare", "pcqm4mv2", "--hydrogens", "explicit", "--workers", "1", "--out", "own"))
    assert done.stdout == "own: 7 graphs, 2 rows rejected: see own/rejected.csv\n"
    store = Store.open(tmp_path / "own")
    assert store.manifest.target_names == ("homolumogap",)
    assert store.split is not None
    assert store.graphs[0].num_nodes == 9


def test_no_network_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_PAUSES", (0.0,))
    gone = tuple(Remote("http://127.0.0.1:9/x", remote.file, 0) for remote in DATASETS["qm9"].remotes)
    monkeypatch.setitem(catalogue.DATASETS, "qm9", replace_remotes("qm9", gone))
    # The name is the data although it follows an option that takes several words.
    done = here("train", "--out", "run", "--target", "gap", "qm9")
    assert done.returncode == 2
    sentence = done.stderr.splitlines()[-1]
    assert sentence.startswith("tokengt: http://127.0.0.1:9/x cannot be downloaded (")
    assert "set TOKENGT_DATA" in sentence
    assert not (tmp_path / "run").exists()


def replace_remotes(name: str, remotes: tuple[Remote, ...]) -> catalogue.Dataset:
    from dataclasses import replace

    return replace(DATASETS[name], remotes=remotes)


def test_a_run_is_trained_and_submitted_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pcqm_folder(tmp_path / "data")
    monkeypatch.setenv("TOKENGT_DATA", str(tmp_path / "data"))
    tiny = ("model.dim=32", "model.encoder.num_layers=1", "model.encoder.num_heads=4", "model.encoder.mlp_dim=32")
    settings = [word for setting in tiny for word in ("--set", setting)]
    given = ("--preset", "small", "--epochs", "1", "--device", "cpu", "--workers", "1", "--out", "run")
    succeeded(here("train", "pcqm4mv2", *settings, *given))
    done = succeeded(here("submit", "run", "--out", "sent", "--workers", "1"))
    assert done.stdout.startswith("sent/y_pred_pcqm4m-v2_test-dev.npz: 3 predictions of test-dev, 1 of which")
    with np.load(tmp_path / "sent/y_pred_pcqm4m-v2_test-dev.npz") as file:
        assert file["y_pred"].shape == (3,)
    assert here("submit", "run", "--out", "sent").returncode == 2
    succeeded(here("submit", "run", "--out", "sent", "--force"))
    succeeded(here("evaluate", "run", "pcqm4mv2"))
