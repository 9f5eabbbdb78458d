"""tokengt reproduce asymptotics: exponents by hand, one cell per system and size, and systems that fail or are slow."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.command import here, refused, succeeded
from tests.experiments.test_molecules import KEYS
from tokengt.experiments import asymptotics as room
from tokengt.experiments.asymptotics import AsymptoticsConfig, exponent, run_asymptotics
from tokengt.experiments.molecules.systems import SYSTEMS, TableSystem

SMALL = AsymptoticsConfig(("gcn", "tokengt-lap"), "small", sizes=(6, 12), nodes=24, steps=1)


def test_the_exponent_is_the_slope_over_the_larger_sizes() -> None:
    """Small graphs cost what a step costs at least: 100 up to 32 nodes, then 3 n^2."""
    costs = [(n, 3.0 * n**2 if n > 32 else 100.0) for n in (8, 16, 32, 64, 128, 256)]
    assert exponent(costs) == pytest.approx(2.0)
    assert exponent([(10, 1.0), (20, 2.0), (40, 4.0)]) == pytest.approx(1.0)
    assert exponent([(10, -1.0), (20, 2.0), (40, 8.0)]) == pytest.approx(2.0)
    assert exponent([(10, 1.0)]) is exponent([]) is exponent([(10, 1.0), (20, 0.0)]) is None


def test_molecules_have_exactly_so_many_atoms() -> None:
    store = room._molecules(3, 40)
    assert store.graphs.nodes.host_lengths.tolist() == [40] * 3
    assert int(store.graphs.edges.host_lengths.min()) >= 2 * 39  # Connected, every bond in both directions.


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    out, said = tmp_path_factory.mktemp("asymptotics"), list[str]()
    run_asymptotics(SMALL, out, "cpu", said.append)
    return out, said


def test_every_system_and_size_is_measured(table: tuple[Path, list[str]]) -> None:
    out, said = table
    assert [line.partition(":")[0] for line in said] == [
        *("GCN, 6 nodes", "GCN, 12 nodes", "TokenGT (Lap), 6 nodes", "TokenGT (Lap), 12 nodes")
    ]
    lines = json.loads((out / "asymptotics.json").read_text())
    for line, name in zip(lines, SMALL.systems, strict=True):
        assert (line["system"], line["asymptotics"]) == (SYSTEMS[name].label, SYSTEMS[name].asymptotics)
        assert [(point["nodes"], point["graphs"]) for point in line["points"]] == [(6, 4), (12, 2)]
        assert all(point["seconds"] > 0 for point in line["points"])
        # Weights, gradients and the two moments of AdamW lie in memory, and more.
        assert all(point["memory_gib"] * 2**30 > 16 * point["parameters"] for point in line["points"])
        assert 400_000 < line["points"][0]["parameters"] < 600_000


def test_rows_have_the_agreed_keys(table: tuple[Path, list[str]]) -> None:
    rows = json.loads((table[0] / "table.json").read_text())
    assert all(set(row) == KEYS for row in rows)
    assert [(row["dataset"], row["metric"]) for row in rows if row["system"] == "GCN"] == [
        ("random molecules of 6 atoms", "ms per graph"),
        ("random molecules of 12 atoms", "ms per graph"),
        ("random molecules", "exponent of time"),
        ("random molecules", "exponent of memory"),
    ]
    first = rows[0]
    assert first["mean"] == pytest.approx(1000 / first["graphs_per_s"])
    text = (table[0] / "table.md").read_text()
    assert text.startswith("| ms per graph, by nodes | 6 | 12 | time grows as | memory grows as | asymptotics |")
    assert (table[0] / "asymptotics.png").read_bytes().startswith(b"\x89PNG")


def test_what_was_measured_is_not_measured_again(
    table: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = table
    before = json.loads((out / "asymptotics.json").read_text())

    def never(*_: Any) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(room, "measured", never)
    assert run_asymptotics(SMALL, out) == [{**line, "commit": room.source_commit()} for line in before]
    with pytest.raises(ValueError, match=r"gcn-6.json was made with other settings"):
        run_asymptotics(replace(SMALL, steps=2), out)


@pytest.mark.slow
def test_a_system_that_fails_or_is_slow_ends_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing larger is tried with it, its line says why, and the others are measured as ever."""

    def costs(system: TableSystem, store: Any, config: AsymptoticsConfig, device: torch.device) -> dict[str, Any]:
        nodes = int(store.graphs.nodes.host_lengths[0])
        if system.name == "egt" and nodes > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
        if system.name == "grpe":
            raise ImportError("there is no such library")
        seconds = float(nodes**2) if system.name == "graphormer" else nodes / 1000
        return {"seconds": seconds * len(store), "memory_gib": 0.1 * nodes, "parameters": 10}

    monkeypatch.setattr(room, "_costs", costs)
    systems = ("gcn", "graphormer", "egt", "grpe")
    lines = run_asymptotics(AsymptoticsConfig(systems, sizes=(8, 16, 32), nodes=64, longest=100.0), tmp_path)
    assert [[point["nodes"] for point in line["points"]] for line in lines] == [[8, 16, 32], [8], [8, 16], [8]]
    assert lines[0]["time_exponent"] == pytest.approx(1.0)
    text = (tmp_path / "table.md").read_text()
    assert "| GCN | 8 | 16 | 32 | n^1.00 |" in text
    assert "| EGT | 8 | out of memory |  |  |" in text
    assert "| GRPE | there is no such library |" in text
    rows = json.loads((tmp_path / "table.json").read_text())
    assert {row["system"] for row in rows} == {"GCN", "Graphormer", "EGT"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": ()}, "expected ascending numbers of nodes, 4 or more"),
        ({"sizes": (16, 8)}, r"sizes is \(16, 8\); expected ascending"),
        ({"sizes": (3,)}, "4 or more"),
        ({"nodes": 0}, "nodes is 0 and steps 1; expected at least 1"),
        ({"steps": 0}, "steps 0; expected at least 1"),
        ({"longest": 0.0}, "longest is 0.0; expected seconds above 0"),
        ({"systems": ("gni",)}, "system 'gni' is unknown"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)


def test_the_command_prints_the_table(table: tuple[Path, list[str]]) -> None:
    out, _ = table
    small = ["--set", "size=small", "--set", "sizes=6,12", "--set", "nodes=24", "--set", "steps=1", "--device", "cpu"]
    words = ["reproduce", "asymptotics", "--systems", "gcn", "tokengt-lap", *small, "--out", out]
    said = succeeded(here(*words)).stdout
    assert (out / "table.md").read_text() in said
    assert said.splitlines()[-1] == f"open {out / 'asymptotics.png'}"
    assert "size is 'tiny'; expected one of small, medium, paper" in refused(here(*words, "--set", "size=tiny"))
