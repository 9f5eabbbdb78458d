"""tokengt reproduce attention-distance: real runs, their own data and split, JSON before pictures, cells kept."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cli.command import here, refused, succeeded
from tests.workflow.small import QUIET, molecule_csv, read_csv, train_small
from tokengt import TokenGT
from tokengt.data.manifest import Recipe
from tokengt.data.prepare import prepare
from tokengt.data.store import Store
from tokengt.experiments import attention_distance as room
from tokengt.experiments.attention_distance import names, run_attention_distance
from tokengt.experiments.distance_picture import plot_distances
from tokengt.explain.distance import attention_distance, graph_distances
from tokengt.inference import load
from tokengt.workflow.fitting import finetune, train

ORF = {"model.identifiers.kind": "orf", "model.encoder.num_layers": 2}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distance")
    data = molecule_csv(folder / "data.csv")
    train_small(data, folder / "lap", "y")
    train_small(data, folder / "orf", "y", settings=ORF)
    return folder


def by_hand(run: Path, part: str) -> np.ndarray:
    """The part's graphs, all in one batch."""
    rows = read_csv(run / "split.csv")
    chosen = torch.tensor([place for place, row in enumerate(rows) if row["part"] == part])
    model = load(run, "cpu").members[0].model
    return attention_distance(model, Store.open(run / "store").graphs.select(chosen))


@pytest.mark.slow
def test_runs_side_by_side_over_both_parts(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # So few tokens at once that a part takes several batches.
    monkeypatch.setattr(room, "tokens_at_once", lambda device: 60)
    cells = run_attention_distance([home / "lap", home / "orf"], tmp_path)
    assert [(cell["run"], cell["part"], cell["graphs"]) for cell in cells] == [
        ("lap", "valid", 4),
        ("orf", "valid", 4),
        ("lap", "train", 32),
        ("orf", "train", 32),
    ]
    for cell in cells:
        np.testing.assert_allclose(cell["hops"], by_hand(home / cell["run"], cell["part"]), rtol=1e-5)
        assert cell["unreachable_pairs"] == 0 < cell["pairs"]
    assert np.array(cells[1]["hops"]).shape == (2, 4)
    assert json.loads((tmp_path / "distance.json").read_text()) == cells
    heads = np.array(cells[1]["hops"][1])
    line = f"| orf | valid | 2 | {heads.mean():.3f} | {heads.min():.3f} | {heads.max():.3f} | {heads.std():.3f} |"
    assert line in (tmp_path / "table.md").read_text().splitlines()
    assert (tmp_path / "distance.png").read_bytes().startswith(b"\x89PNG")
    # Cells are kept: nothing is measured again, and the pictures have the same bytes.
    picture = (tmp_path / "distance.png").read_bytes()
    monkeypatch.setattr(room, "graph_distances", None)
    assert run_attention_distance([home / "lap", home / "orf"], tmp_path) == cells
    assert (tmp_path / "distance.png").read_bytes() == picture


def test_the_command(home: Path, tmp_path: Path) -> None:
    done = succeeded(here("reproduce", "attention-distance", home / "lap", "--part", "valid", "--out", tmp_path / "o"))
    assert "lap valid: 4 graphs in" in done.stdout
    assert f"open {tmp_path / 'o' / 'distance.png'}" in done.stdout
    assert "| lap | valid | 1 |" in done.stdout
    (cell,) = json.loads((tmp_path / "o" / "distance.json").read_text())
    assert cell["part"] == "valid"
    train_part = here("reproduce", "attention-distance", home / "lap", "--part", "train", "--out", tmp_path / "t")
    assert "lap train: 32 graphs in" in succeeded(train_part).stdout


def test_a_run_on_a_store_elsewhere_names_it(home: Path, tmp_path: Path) -> None:
    prepare(home / "data.csv", tmp_path / "store", Recipe(targets=("y",)), workers=1, progress=False)
    train_small(tmp_path / "store", tmp_path / "run")
    command = ("reproduce", "attention-distance", tmp_path / "run", "--part", "valid", "--out", tmp_path / "out")
    assert "holds no data of its own; name the store" in refused(here(*command))
    succeeded(here(*command, "--data", tmp_path / "store"))
    prepare(molecule_csv(tmp_path / "b.csv", 30), tmp_path / "b", Recipe(targets=("y",)), workers=1, progress=False)
    assert "is not the data that" in refused(here(*command, "--data", tmp_path / "b"))


def test_what_cannot_be_measured_says_why_before_anything_is_measured(home: Path, tmp_path: Path) -> None:
    finetune(
        home / "lap", home / "data.csv", tmp_path / "favor", attention="favor", target="y", device="cpu", options=QUIET
    )
    out = tmp_path / "out"
    command = ("reproduce", "attention-distance", home / "lap")
    assert "FAVOR+ attends through random features" in refused(here(*command, tmp_path / "favor", "--out", out))
    small = {"model.dim": 8, "model.num_layers": 1, "training.epochs": 1}
    train(home / "data.csv", tmp_path / "gin", target="y", preset="gin", settings=small, device="cpu", options=QUIET)
    assert "GIN has no attention maps" in refused(here(*command, tmp_path / "gin", "--out", out))
    assert "no tokengt run" in refused(here(*command, home, "--out", out))
    assert "the same run is named twice" in refused(here(*command, home / "lap", "--out", out))
    shutil.copytree(home / "lap", tmp_path / "changed")
    split = tmp_path / "changed" / "split.csv"
    split.write_text(split.read_text().replace("valid", "test"))
    assert "is not as the run wrote it" in refused(here(*command, tmp_path / "changed", "--out", out))
    assert not out.exists()


def test_other_weights_are_not_taken_for_those_measured(home: Path, tmp_path: Path) -> None:
    run_attention_distance([home / "lap"], tmp_path / "out", ("valid",))
    shutil.copytree(home / "orf", tmp_path / "lap")
    with pytest.raises(ValueError, match="was made with other settings"):
        run_attention_distance([tmp_path / "lap"], tmp_path / "out", ("valid",))


def test_a_linear_attention_is_measured_by_its_own_weights(home: Path, tmp_path: Path) -> None:
    still = {"training.learning_rate": 0, "training.epochs": 1}
    run = finetune(
        home / "lap",
        home / "data.csv",
        tmp_path / "elu",
        attention="elu",
        target="y",
        settings=still,
        device="cpu",
        options=QUIET,
    )
    (cell,) = run_attention_distance([tmp_path / "elu"], tmp_path / "out", ("valid",))
    np.testing.assert_allclose(cell["hops"], by_hand(tmp_path / "elu", "valid"), rtol=1e-5)
    model = run.members[0].model
    assert isinstance(model, TokenGT)
    assert not np.allclose(cell["hops"], by_hand(home / "lap", "valid"), rtol=1e-3)


def test_names_are_short_where_that_is_enough() -> None:
    assert names([Path("runs/a"), Path("runs/b")]) == ["a", "b"]
    assert names([Path("x/a"), Path("y/a"), Path("z/b")]) == ["x/a", "y/a", "b"]


def test_the_picture_has_axes_units_and_a_legend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    seen = []
    real = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *given, **more: seen.append(self) or real(self, *given, **more))
    cells = [
        {"run": name, "part": part, "identifiers": kind, "graphs": 5, "hops": [[0.5, 1.5], [2.0, 3.0], [1.0, 1.0]]}
        for part in ("valid", "train")
        for name, kind in (("a$b", "laplacian"), ("c", "orf"))
    ]
    plot_distances(cells, tmp_path / "distance.png")
    axes = seen[0].axes
    assert [each.get_title() for each in axes] == [
        "a$b (Lap)\nvalidation part, 5 graphs",
        "c (ORF)\nvalidation part, 5 graphs",
        "a$b (Lap)\ntraining part, 5 graphs",
        "c (ORF)\ntraining part, 5 graphs",
    ]
    assert [axes[0].get_ylabel(), axes[2].get_xlabel()] == ["attention distance, hops", "layer"]
    assert [text.get_text() for text in seen[0].legends[0].get_texts()] == ["mean over heads", "one head"]
    dots = axes[0].collections[0].get_offsets().tolist()
    assert dots == [[1, 0.5], [1, 1.5], [2, 2.0], [2, 3.0], [3, 1.0], [3, 1.0]]
    assert axes[0].lines[0].get_ydata().tolist() == [1.0, 2.5, 1.0]
    assert {each.get_ylim() for each in axes} == {axes[0].get_ylim()}
    assert axes[0].get_ylim()[0] == 0


def test_pairs_without_a_path_are_counted(tmp_path: Path) -> None:
    """A salt has two fragments: one atom and its counter-ion have 4 pairs, two of them without a path."""
    from tests.workflow.small import write_csv

    rows = [("[Na+].[Cl-]", 1.0 + place, part) for place, part in enumerate(["train"] * 6 + ["valid"] * 2)]
    data = write_csv(tmp_path / "salts.csv", ("smiles", "y", "part"), rows)
    train_small(data, tmp_path / "run", "y", split="column:part")
    (cell,) = run_attention_distance([tmp_path / "run"], tmp_path / "out", ("valid",))
    assert (cell["graphs"], cell["pairs"], cell["unreachable_pairs"]) == (2, 8, 4)
    assert np.array(cell["hops"]).max() == 0
    graphs = Store.open(tmp_path / "run" / "store").graphs
    assert graph_distances(load(tmp_path / "run", "cpu").members[0].model, graphs).unreachable == 16
