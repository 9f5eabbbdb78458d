"""Whatever a person has, as a store."""

import os
from pathlib import Path

import pytest
import torch

from tests.workflow.small import molecule_csv, train_small, write_csv
from tokengt.data.manifest import Recipe
from tokengt.data.prepare import prepare
from tokengt.inference import load
from tokengt.workflow.inputs import open_data
from tokengt.workflow.predicting import predict_file


def test_targets_can_be_chosen_from_a_store(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv", 10)
    store = prepare(source, tmp_path / "store", Recipe(targets=("y", "z")), workers=1, progress=False)
    chosen = open_data(tmp_path / "store", Recipe(targets=("z",)), tmp_path / "home")
    assert chosen.manifest.target_names == ("z",)
    assert torch.equal(chosen.targets[:, 0].nan_to_num(9), store.targets[:, 1].nan_to_num(9))
    turned = open_data(store, Recipe(targets=("z", "y")), tmp_path / "home")
    assert turned.manifest.target_names == ("z", "y")
    assert open_data(store, Recipe(), tmp_path / "home").manifest.target_names == ("y", "z")
    with pytest.raises(ValueError, match="the store has no target 'w'; it was prepared with y, z"):
        open_data(store, Recipe(targets=("w",)), tmp_path / "home")


def test_bad_rows_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("CCO", 1), ("C1", 2), ("CC", "x"), ("C", 3)]
    source = write_csv(tmp_path / "data.csv", ("smiles", "y"), rows)
    store = open_data(source, Recipe(targets=("y",)), tmp_path / "home" / "store", workers=1)
    assert len(store) == 2
    assert "2 of 4 rows could not be read" in capsys.readouterr().err


def test_what_is_no_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="data is a int; expected a file"):
        open_data(3, Recipe(), tmp_path)
    with pytest.raises((ValueError, OSError), match=r"nowhere\.csv"):
        open_data(tmp_path / "nowhere.csv", Recipe(targets=("y",)), tmp_path / "home")


@pytest.mark.parametrize("name", ["data.csv", "data.parquet", "data.sdf", "data.csv.gz", "data.smi", "data.pt"])
@pytest.mark.parametrize("content", [b"", b"\x80\x04\x95\x00", b"\0\0\0"])
def test_a_file_of_nothing_or_of_another_kind_is_one_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name) as caught:
        open_data(tmp_path / name, Recipe(targets=("y",)), tmp_path / "home" / "store", workers=1, quiet=True)
    assert "\n" not in str(caught.value)


class Trap:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.system, (f"touch {self.mark}",)


def test_a_file_that_would_run_code_is_refused_to_train_and_to_predict(tmp_path: Path) -> None:
    data_module = pytest.importorskip("torch_geometric.data")
    good = [
        data_module.Data(x=torch.ones(3, 1) * n, edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([[n]]))
        for n in range(10)
    ]
    train_small(good, tmp_path / "run")
    bad = tmp_path / "bad.pt"
    torch.save([*good, Trap(tmp_path / "ran")], bad)
    with pytest.raises(ValueError, match=r"bad\.pt"):
        train_small(bad, tmp_path / "never")
    with pytest.raises(ValueError, match=r"bad\.pt"):
        predict_file(load(tmp_path / "run"), bad, tmp_path / "out.csv", quiet=True)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "out.csv").exists()


def test_molecules_and_graphs_are_not_mixed_up(tmp_path: Path) -> None:
    data_module = pytest.importorskip("torch_geometric.data")
    none = torch.empty(2, 0, dtype=torch.int64)
    graphs = [data_module.Data(x=torch.ones(2, 1) * n, edge_index=none, y=torch.tensor([[n]])) for n in range(10)]
    torch.save(graphs, tmp_path / "graphs.pt")
    of_graphs = train_small(graphs, tmp_path / "graphs")
    source = molecule_csv(tmp_path / "data.csv", 12)
    of_molecules = train_small(source, tmp_path / "molecules", "y")
    with pytest.raises(ValueError, match="trained on molecules; expected a table"):
        predict_file(of_molecules, tmp_path / "graphs.pt", tmp_path / "out.csv", quiet=True)
    with pytest.raises(ValueError, match="this run was trained on other graphs"):
        predict_file(of_graphs, source, tmp_path / "out.csv", quiet=True)
    with pytest.raises(ValueError, match="expected graphs, got text"):
        of_graphs.predict(["CCO"])
