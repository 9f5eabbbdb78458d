import json
from dataclasses import replace
from pathlib import Path

import pytest

from tokengt.experiments.separation import SeparationTable, choose_pairs, run_separation

QUICK = SeparationTable(
    systems=("none", "laplacian"), wl=(2, 3), brec=(), sr25_pairs=0, seeds=(0, 1), draws=24, level=0.05
)


def test_the_table_says_what_separates_what_and_keeps_its_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tokengt.experiments.separation as module

    pairs = {name: shares for name, shares in choose_pairs(QUICK).items() if "hexagon" in name or "path" in name}
    monkeypatch.setattr(module, "choose_pairs", lambda config: pairs)
    rows = run_separation(QUICK, tmp_path)
    shares = {(row.system, row.dataset, row.split): row.mean for row in rows}
    hexagon, path = "hexagon / two triangles", "path P4 / star K1,3"
    assert {name: shares[name, hexagon, "pair"] for name in ("2-WL", "3-WL", "none", "laplacian")} == {
        "2-WL": 0.0,
        "3-WL": 1.0,
        "none": 0.0,
        "laplacian": 1.0,
    }
    assert (shares["2-WL", path, "pair"], shares["none", path, "pair"]) == (1.0, 0.0)
    exact = [row for row in rows if row.split == "relabelled" and row.system != "laplacian"]
    assert {row.mean for row in exact} == {0.0}
    assert {row.runs for row in rows} == {1, 2}
    assert [row["mean"] for row in json.loads((tmp_path / "table.json").read_text())] == [row.mean for row in rows]
    text = (tmp_path / "table.md").read_text()
    assert "| none | 0 | 0 | 0 of 4 |" in text
    # All cells are kept: a second run measures nothing and says the same.
    monkeypatch.setattr(module, "measure", None)
    assert run_separation(QUICK, tmp_path) == rows


def test_neighbours_of_the_strongly_regular_list_are_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "expressiveness"
    folder.mkdir()
    # A path, a triangle and no edge, on three nodes.
    (folder / "sr25.g6").write_text("Bg\nBw\nB?\n")
    monkeypatch.setenv("TOKENGT_DATA", str(tmp_path))
    pairs = choose_pairs(replace(QUICK, sr25_pairs=9))["SR25, 2 pairs"]
    edges = [[graph.num_edges for graph in (pair.first, pair.second)] for pair in pairs]
    assert edges == [[4, 6], [6, 0]]
