"""Every example runs by itself and says what it promises."""

import csv
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tokengt
from tokengt.data.datasets import bundled, esol
from tokengt.interop.molecules import pack_molecules

EXAMPLES = Path(__file__).parents[1] / "examples"
OPTIONS = {
    "attention_maps.py": ["--out", "maps/here.png"],
    "compile_ign.py": ["--out", "curves/here.png"],
    "explain.py": ["--out", "pages/here.html"],
    "finetune.py": ["--epochs", "3", "--out", "out"],
    "own_model.py": ["--epochs", "8", "--out", "out"],
    "pyg_training.py": ["--epochs", "6", "--out", "out"],
    "solubility.py": ["--epochs", "4", "--out", "out"],
}
ROW = r"^(\S+(?: \S+)?) +(nan|-?[\d.]+) ± (nan|[\d.]+)"


def run(name: str, folder: Path) -> str:
    """What the example prints, run in ``folder`` on one thread."""
    command = [sys.executable, str(EXAMPLES / name), *OPTIONS.get(name, [])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.\d+", text)]


def test_all_are_listed() -> None:
    learning = {"finetune", "hypergraph", "own_model", "pyg_graphs", "pyg_training", "solubility", "uncertainty"}
    looking = {"attention_maps", "compile_ign", "explain", "separation", "symmetry"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == learning | looking


@pytest.mark.slow
def test_pyg_graphs_beat_the_mean_at_every_level(tmp_path: Path) -> None:
    rows = run("pyg_graphs.py", tmp_path).splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["node", "edge", "link"]
    for row in rows:
        error, of_mean = numbers(row)
        assert error < 0.95 * of_mean, row


@pytest.mark.slow
def test_hypergraph_learns_memberships_both_ways(tmp_path: Path) -> None:
    rows = [row for row in run("hypergraph.py", tmp_path).splitlines() if "test error" in row]
    assert len(rows) == 2
    for row in rows:
        error, of_mean = numbers(row)
        assert error < 0.75 * of_mean, row


def test_attention_maps_writes_a_picture(tmp_path: Path) -> None:
    printed = run("attention_maps.py", tmp_path)
    assert "2 layers x 4 heads of 23 x 23 tokens" in printed
    picture = (tmp_path / "maps" / "here.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000


def test_explain_finds_what_sums_up_and_writes_a_page(tmp_path: Path) -> None:
    printed = run("explain.py", tmp_path)
    total, change = numbers(printed.splitlines()[-2])
    assert abs(total - change) < 0.01 * abs(change) + 0.01
    assert (tmp_path / "pages" / "here.html").read_text().startswith("<!doctype html>")


def test_compile_ign_makes_a_transformer_of_a_trained_ign(tmp_path: Path) -> None:
    printed = run("compile_ign.py", tmp_path)
    off, of_wedges = numbers(printed.splitlines()[0])
    assert off < 0.1 * of_wedges, "the 2-IGN has learned something"
    rows = re.findall(r"sharpness +(\d+), .* off by (\S+), at most (\S+)", printed)
    errors = {int(sharpness): float(error) for sharpness, error, _ in rows}
    assert len(errors) == 12
    assert all(float(error) <= float(bound) for _, error, bound in rows)
    # Geometric while sums round to less than the leak: twenty more of sharpness are e^(20 / sqrt(32)) = 34 times less.
    for sharpness in (40, 60, 80, 100):
        assert 20 < errors[sharpness] / errors[sharpness + 20] < 50
    assert errors[200] < 1e-11
    assert "TokenGT with 15 heads" in printed
    assert (tmp_path / "curves" / "here.png").read_bytes().startswith(b"\x89PNG")


def test_symmetry_passes_and_fails_where_it_should(tmp_path: Path) -> None:
    printed = run("symmetry.py", tmp_path)
    assert printed.count("equivariant when its identifiers travel") == 2
    assert "sum of atoms: invariant" in printed
    assert "first atom: graph outputs changed under renumbering" in printed
    one, many = (float(line.rsplit(" ", 1)[1]) for line in printed.splitlines() if "backwards" in line)
    assert many < one


@pytest.mark.slow
def test_uncertainty_shrinks_with_draws(tmp_path: Path) -> None:
    rows = [line for line in run("uncertainty.py", tmp_path).splitlines() if " draws " in line]
    apart = [numbers(row)[-1] for row in rows]
    assert len(apart) == 6
    assert sum(apart[3:]) < sum(apart[:3])
    assert all(row.count("spread none") == 2 for row in rows[:3]), "one draw has no spread"
    assert min(numbers(row)[1] for row in rows[3:]) > 0


def test_solubility_trains_and_predicts(tmp_path: Path) -> None:
    printed = run("solubility.py", tmp_path)
    rows = {name: (float(value), float(spread)) for name, value, spread in re.findall(ROW, printed, re.MULTILINE)}
    assert list(rows) == ["ethanol", "caffeine", "typing error", "β-carotene"]
    assert math.isnan(rows["typing error"][0])
    assert "unclosed ring" in printed
    rest = [value for name, value in rows.items() if name != "typing error"]
    assert all(-12 < value < 2 and spread > 0 for value, spread in rest), "log units, not scaled targets"
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["test_rows"] == 113
    assert summary["test"]["rmse"] < 1.1 * summary["floor"]["rmse"]
    again = tokengt.load(tmp_path / "out").predict(["CCO"], draws=16)
    assert f"{again.mean[0, 0]:6.2f} ± {again.std[0, 0]:.2f}" in printed


@pytest.mark.slow
def test_finetuning_beats_training_from_scratch_on_few_labels(tmp_path: Path) -> None:
    printed = run("finetune.py", tmp_path)
    (tuned, of_mean), (scratch, _) = (numbers(line) for line in printed.splitlines())
    assert tuned < 0.8 * of_mean
    assert tuned < scratch
    assert json.loads((tmp_path / "out" / "finetuned" / "run.json").read_text())["frozen"] is True


def test_pyg_training_predicts_one_row_per_node(tmp_path: Path) -> None:
    printed = run("pyg_training.py", tmp_path)
    graphs, nodes = map(int, re.findall(r"(\d+) new graphs, (\d+) nodes", printed)[0])
    error, of_mean = numbers(printed)
    assert graphs == 100
    assert 600 <= nodes <= 1200
    assert error < 0.8 * of_mean
    assert tokengt.load(tmp_path / "out").spec.level == "node"


def test_a_module_of_ones_own_learns_and_is_loaded_again(tmp_path: Path) -> None:
    printed = run("own_model.py", tmp_path)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["test"]["rmse"] < 0.75 * summary["floor"]["rmse"]
    rows = dict(re.findall(r"^(ethanol|anthracene) +(-?[\d.]+)$", printed, re.MULTILINE))
    assert float(rows["anthracene"]) < -3 < -1 < float(rows["ethanol"]), "ethanol dissolves, anthracene does not"
    assert "over 1,128 rows" in printed
    assert "# OneRound for logSolubility" in (tmp_path / "out" / "README.md").read_text()


def test_the_bundled_files_are_what_the_demo_says() -> None:
    """A dozen molecules that RDKit reads, and two rows that it does not; ESOL as ever."""
    with bundled("new_molecules.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    packed = pack_molecules([row["smiles"] for row in rows])
    assert len(packed.kept) == 12
    assert [rows[place]["name"] for place, _ in packed.problems] == ["typing error", "not drawn yet"]
    assert any("," in row["note"] for row in rows)
    smiles, solubility = esol()
    assert len(smiles) == len(solubility) == 1128
    assert bundled("esol.csv.xz").is_file()


def test_orthonormal_identifiers_tell_a_hexagon_from_two_triangles(tmp_path: Path) -> None:
    rows = dict(row.split(": ", 1) for row in run("separation.py", tmp_path).splitlines())
    verdicts = {name: row.split(",")[0] for name, row in rows.items()}
    assert verdicts == {
        "2-WL": "alike",
        "3-WL": "separated",
        "TokenGT, none": "alike",
        "TokenGT, orf_first_order": "alike",
        "TokenGT, orf": "separated",
        "TokenGT, laplacian": "separated",
    }
    nulls = [float(row.rsplit("p = ", 1)[1]) for row in rows.values() if "relabelled" in row]
    assert len(nulls) == 4
    assert min(nulls) > 0.01
