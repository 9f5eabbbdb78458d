"""The oracle sees what it is there for: results spoiled by hand are faults, untouched ones are none."""

import csv
import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from tests.drill.calls import Answer
from tests.drill.oracle import check_folder, check_predictions, check_store, judged, snapshot
from tests.drill.tables import Table
from tests.drill.truth import Asked, Row

ROWS = (Row(2, {"smiles": "CCO", "y": "1.5"}), Row(3, {"smiles": "xyz", "y": "7"}), Row(4, {"smiles": "C#N", "y": "0"}))
ASKED = Asked(targets=("y",))


def answered(folder: Path, status: int = 0, stdout: str = "", stderr: str = "") -> Answer:
    return Answer(("prepare",), folder, status, stdout, stderr, False, False, 0, 0.1, 0.1, 1)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of ROWS, written without the package."""
    folder = tmp_path / "store"
    folder.mkdir()
    tensors = {
        "lines": np.array([2, 4]),
        "node_offsets": np.array([0, 3, 5]),
        "edge_offsets": np.array([0, 4, 6]),
        "targets": np.array([[1.5], [0.0]]),
    }
    write(folder, tensors, [[3, "the SMILES cannot be read"]])
    return folder


def write(folder: Path, tensors: dict[str, np.ndarray], rejected: list[list[object]]) -> None:
    content = save(tensors)
    (folder / "graphs.safetensors").write_bytes(content)
    with (folder / "rejected.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["line", "reason"], *rejected])
    manifest = {
        "source": {"rows": 3},
        "rejected": len(rejected),
        "targets": [{"classes": None}],
        "files": {"graphs.safetensors": hashlib.sha256(content).hexdigest()},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


def kinds(store: Path, table: Table | None = None) -> list[str]:
    answer = answered(store.parent, stdout="store: 2 graphs, 1 rows rejected")
    found = check_store(answer, table or Table(Path("t.csv"), ("smiles", "y"), ROWS), ASKED, store)
    return [fault.kind for fault in found]


def test_a_right_store_is_no_fault(store: Path) -> None:
    assert kinds(store) == []


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("lines", [2, 5]),
        ("lines", [4, 2]),
        ("node_offsets", [0, 2, 5]),
        ("edge_offsets", [0, 3, 6]),
        ("targets", [[1.5], [0.5]]),
        ("targets", [[0.0], [1.5]]),
    ],
)
def test_a_wrong_number_in_a_store_is_seen(store: Path, name: str, wrong: list[object]) -> None:
    tensors = load((store / "graphs.safetensors").read_bytes())
    write(store, tensors | {name: np.array(wrong)}, [[3, "bad"]])
    assert kinds(store)


def test_a_row_that_is_neither_kept_nor_rejected_is_lost(store: Path) -> None:
    write(store, load((store / "graphs.safetensors").read_bytes()), [])
    assert kinds(store) == ["lost"]


def test_a_rejected_row_without_a_reason_is_silent(store: Path) -> None:
    write(store, load((store / "graphs.safetensors").read_bytes()), [[3, " "]])
    assert kinds(store) == ["silent"]


def test_a_file_that_must_be_refused_is_silent_when_it_is_read(store: Path) -> None:
    assert kinds(store, replace(Table(Path("t.csv"), ("smiles", "y")), verdict="refused")) == ["silent"]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (["CCO,1.5,0.25,", "xyz,7,,bad SMILES", "C#N,0,0.5,"], []),
        (["CCO,1.5,0.25,", "C#N,0,0.5,"], ["lost"]),
        (["C#N,0,0.5,", "xyz,7,,bad SMILES", "CCO,1.5,0.25,"], ["silent"]),
        (["CCO,1.5,,", "xyz,7,,bad SMILES", "C#N,0,0.5,"], ["silent"]),
        (["CCO,1.5,nan,", "xyz,7,,bad SMILES", "C#N,0,0.5,"], ["silent"]),
        (["CCO,1.5,0.25,", "xyz,7,,", "C#N,0,0.5,"], ["silent"]),
        (["CCO,1.5,0.5,", "xyz,7,,bad SMILES", "C#N,0,0.25,"], ["silent"]),
    ],
)
def test_tables_of_predictions(tmp_path: Path, body: list[str], fault: list[str]) -> None:
    """Rows that are gone, out of order, blank without a reason, or have each other's predictions."""
    out = tmp_path / "out.csv"
    out.write_text("\n".join(["smiles,y,predicted_y,reason", *body]) + "\n")
    table = Table(Path("t.csv"), ("smiles", "y"), ROWS)
    known = {"CCO": 0.25, "C#N": 0.5}
    found = check_predictions(answered(tmp_path), table, out, ("predicted_y",), (), known)
    assert [each.kind for each in found] == fault


@pytest.mark.parametrize(
    ("status", "stderr", "fault"),
    [
        (2, "tokengt: t.csv does not exist\n", []),
        (2, "usage: tokengt ...\ntokengt train: error: the following arguments are required\n", []),
        (2, "t.csv does not exist\n", ["manners"]),
        (2, "tokengt: one sentence\ntokengt: and another\n", ["manners"]),
        (2, "", ["manners"]),
        (70, "tokengt: KeyError: 7\n", ["traceback"]),
        (1, "Traceback (most recent call last):\nKeyError: 7\n", ["traceback"]),
        (0, "x.py:7: UserWarning: odd\n", ["manners"]),
        (-11, "", ["crash"]),
        (0, "", []),
    ],
)
def test_how_a_call_ends(tmp_path: Path, status: int, stderr: str, fault: list[str]) -> None:
    assert [each.kind for each in judged(answered(tmp_path, status, "", stderr))] == fault


def test_a_call_that_hangs(tmp_path: Path) -> None:
    assert [each.kind for each in judged(replace(answered(tmp_path), hang=True))] == ["hang"]


def test_folders(tmp_path: Path) -> None:
    """A file of the user that is changed or removed is lost; what nobody asked for is litter."""
    (tmp_path / "mine").write_text("precious")
    before = snapshot(tmp_path)
    assert check_folder(answered(tmp_path), before, ["out"]) == []
    (tmp_path / "out").write_text("asked for")
    assert check_folder(answered(tmp_path), before, ["out"]) == []
    (tmp_path / ".out.x7").write_text("half")
    assert [each.kind for each in check_folder(answered(tmp_path), before, ["out"])] == ["litter"]
    (tmp_path / ".out.x7").unlink()
    (tmp_path / "mine").write_text("changed")
    assert [each.kind for each in check_folder(answered(tmp_path), before, ["out"])] == ["lost"]


def test_cases_repeat() -> None:
    """The same number makes the same case, or a fault could not be looked into."""
    from tests.drill.truth import cell

    one, other = ([cell(random.Random("7"), name, 0.5) for name in ("smiles", "y", "note")] for _ in range(2))
    assert one == other
