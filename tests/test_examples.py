"""Every example runs by itself and says what it promises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tokengt import TokenGT, from_smiles

EXAMPLES = Path(__file__).parents[1] / "examples"
OPTIONS = {"solubility.py": ["--epochs", "1", "--out", "out"], "attention_maps.py": ["--out", "maps/here.png"]}


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
    tested = {"attention_maps", "hypergraph", "pyg_graphs", "solubility", "symmetry", "uncertainty"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} <= tested


def test_pyg_graphs_beat_the_mean_at_every_level(tmp_path: Path) -> None:
    rows = run("pyg_graphs.py", tmp_path).splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["node", "edge", "link"]
    for row in rows:
        error, of_mean = numbers(row)
        assert error < 0.95 * of_mean, row


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


def test_symmetry_passes_and_fails_where_it_should(tmp_path: Path) -> None:
    printed = run("symmetry.py", tmp_path)
    assert printed.count("equivariant when its identifiers travel") == 2
    assert "sum of atoms: invariant" in printed
    assert "first atom: graph outputs changed under renumbering" in printed
    one, many = (float(line.rsplit(" ", 1)[1]) for line in printed.splitlines() if "backwards" in line)
    assert many < one


def test_uncertainty_shrinks_with_draws(tmp_path: Path) -> None:
    rows = [line for line in run("uncertainty.py", tmp_path).splitlines() if " draws " in line]
    apart = [numbers(row)[-1] for row in rows]
    assert len(apart) == 6
    assert sum(apart[3:]) < sum(apart[:3])
    spreads = [numbers(row)[1] for row in rows]
    assert spreads[:3] == [0, 0, 0]
    assert min(spreads[3:]) > 0


def test_solubility_reports_a_test_error_and_saves_the_model(tmp_path: Path) -> None:
    printed = run("solubility.py", tmp_path)
    error = float(re.search(r"TokenGT, weights of epoch 1: ([\d.]+)", printed)[1])
    floor = float(re.search(r"the training set's mean: ([\d.]+)", printed)[1])
    assert floor == pytest.approx(2.066, abs=0.001), "the split of seed 0"
    assert error < 1.2 * floor
    model = TokenGT.from_pretrained(tmp_path / "out" / "model")
    ethanol, pyrene = model.predict([from_smiles("CCO"), from_smiles("c1cc2ccc3cccc4ccc(c1)c2c34")]).mean[:, 0].tolist()
    assert -8 < pyrene < ethanol + 1 < 4, "log units, not scaled targets"
    written = {path.name for path in (tmp_path / "out").rglob("*")}
    assert {"config.json", "model.safetensors"} <= written
    assert any(name.endswith(".png") for name in written)
