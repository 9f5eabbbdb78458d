import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tokengt import GraphBatch
from tokengt.data.hypergraphs import LabelledHypergraph, read_hypergraph
from tokengt.experiments.hypergraph_systems import (
    HypergraphConfig,
    System,
    Trained,
    hypergraph_store,
    hypergraph_tokens,
    model_config,
    split_nodes,
)
from tokengt.experiments.hypergraphs import run_cell, run_hypergraphs

CPU = torch.device("cpu")
QUICK = HypergraphConfig(width=32, id_dim=8, attention="softmax", dropout=0.2, epochs=60, patience=30)


def communities(seed: int = 0, nodes: int = 120) -> LabelledHypergraph:
    """Three classes that features hardly tell, and hyperedges of two to five nodes of which nine in ten stay inside."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(nodes) % 3
    features = 0.5 * torch.nn.functional.one_hot(labels, 6).float() + torch.rand(nodes, 6, generator=generator)
    hyperedges = []
    for place in range(100):
        size = 2 + place % 4
        weights = torch.where(labels == place % 3, 1.0, 0.05)
        hyperedges.append(tuple(torch.multinomial(weights, size, generator=generator).tolist()))
    return LabelledHypergraph("communities", features, tuple(hyperedges), labels)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """TOKENGT_DATA with the communities as a file."""
    data = communities(nodes=60)
    row, column = np.nonzero(data.node_features.numpy())
    (tmp_path / "data" / "hypergraphs").mkdir(parents=True)
    np.savez(
        tmp_path / "data" / "hypergraphs" / "communities.npz",
        he_ptr=np.cumsum([0, *map(len, data.hyperedges)]),
        he_nodes=np.concatenate(data.hyperedges),
        x_indptr=np.searchsorted(row, np.arange(61)),
        x_indices=column,
        x_data=data.node_features.numpy()[row, column],
        x_shape=np.array(data.node_features.shape),
        y=data.labels.numpy().astype(np.int16),
    )
    monkeypatch.setenv("TOKENGT_DATA", str(tmp_path / "data"))
    return tmp_path


def test_a_file_is_read_as_it_was_written(files: Path) -> None:
    data, read = communities(nodes=60), read_hypergraph(files / "data" / "hypergraphs" / "communities.npz")
    assert read.hyperedges == data.hyperedges
    assert torch.equal(read.node_features, data.node_features)
    assert torch.equal(read.labels, data.labels)
    assert (read.num_nodes, read.num_classes) == (60, 3)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        read_hypergraph(tmp_path / "nothing.npz")
    np.savez(tmp_path / "odd.npz", he_ptr=np.zeros(1))
    with pytest.raises(ValueError, match="has no array 'he_nodes'"):
        read_hypergraph(tmp_path / "odd.npz")


def test_small_hyperedges_become_triples_and_large_ones_stay_pooled() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 2.0], [2.0, 2.0], [0.0, 1.0]])
    data = LabelledHypergraph("four", features, ((0, 1), (0, 1, 2), (0, 1, 2, 3)), torch.zeros(4, dtype=torch.int64))
    graph = hypergraph_tokens(data, 3)
    assert (graph.order, graph.num_edges, graph.num_hyperedges) == (3, 6 + 6, 1)
    # Rows are scaled to sum to one: (1, 0), (0, 1), (1/2, 1/2), (0, 1).
    assert graph.edge_features[:6].tolist() == [[0.5, 0.5]] * 6
    assert torch.allclose(graph.hyperedge_features, torch.tensor([[0.375, 0.625]]))
    pooled = hypergraph_tokens(data, None)
    assert (pooled.num_edges, pooled.num_hyperedges) == (0, 3)


def test_splits_are_a_half_and_two_quarters() -> None:
    parts = list(split_nodes(103, 0).parts().values())
    assert [len(part) for part in parts] == [51, 26, 26]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(103))
    assert not torch.equal(parts[0], split_nodes(103, 1).train)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["tokengt_order_3", "tokengt_pooled"])
def test_hyperedges_tell_tokengt_what_features_do_not(system: System) -> None:
    def accuracy(system: System) -> float:
        return sum(run_cell(communities(seed), system, seed, QUICK, CPU)["test"] for seed in range(3)) / 3

    own = accuracy(system)
    assert own > 0.75
    assert own > accuracy("mlp") + 0.1
    assert accuracy("majority") < 0.4


@pytest.mark.parametrize("system", ["mlp", "clique_gcn", "tokengt_order_3"])
def test_every_system_learns_and_counts_its_parameters(system: Trained) -> None:
    data = communities(nodes=60)
    store = hypergraph_store(data, system)
    model = model_config(system, QUICK).fit(store, data.num_classes).build().eval()
    batch = store.graphs.select(torch.arange(1))
    before = model(batch)
    assert before.shape == (60, 3)
    assert torch.equal(before, model(batch))
    cell = run_cell(data, system, 0, replace(QUICK, epochs=25), CPU)
    assert cell["train"] > 0.45
    assert cell["parameters"] == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("system", ["clique_gcn", "tokengt_pooled"])
def test_a_cell_repeats_bit_for_bit(system: Trained) -> None:
    """A table that is run again on the same machine shows the same numbers."""
    first, second = (run_cell(communities(nodes=60), system, 1, replace(QUICK, epochs=8), CPU) for _ in range(2))
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_a_stopped_experiment_goes_on_where_it_was(files: Path) -> None:
    out = files / "out"
    config = replace(QUICK, datasets=("communities",), systems=("majority", "mlp"), seeds=(0, 1), epochs=5)
    lines: list[str] = []
    rows = run_hypergraphs(config, out, progress=lines.append)
    assert [(row.system, row.runs) for row in rows] == [("majority", 2), ("mlp", 2)]
    assert len(lines) == 4
    cells = out / "cells"
    kept = json.loads((cells / "communities-mlp-1.json").read_text())
    kept["found"]["test"] = 0.25
    (cells / "communities-mlp-1.json").write_text(json.dumps(kept))
    run_before = json.loads((cells / "communities-mlp-0.json").read_text())["found"]["test"]
    (cells / "communities-mlp-0.json").unlink()
    again = run_hypergraphs(config, out)
    assert again[0] == rows[0]
    # Seed 0 ran again and found the same; seed 1 was read.
    assert again[1].mean == pytest.approx((run_before + 0.25) / 2)
    table = json.loads((out / "table.json").read_text())
    assert [row["mean"] for row in table] == [row.mean for row in again]
    assert "| communities |" in (out / "table.md").read_text()
    with pytest.raises(ValueError, match="was made with other settings"):
        run_hypergraphs(replace(config, width=16), out)


def test_data_that_is_not_there_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TOKENGT_DATA", raising=False)
    with pytest.raises(ValueError, match="set TOKENGT_DATA to the folder that holds hypergraphs/"):
        run_hypergraphs(QUICK, tmp_path)
    monkeypatch.setenv("TOKENGT_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="does not exist"):
        run_hypergraphs(QUICK, tmp_path)


@pytest.mark.parametrize(
    ("name", "nodes", "hyperedges", "classes", "triples", "pooled"),
    [
        ("cocitation_cora", 2708, 1579, 7, 6522, 492),
        ("coauthorship_cora", 2708, 1072, 7, 4146, 381),
        ("cocitation_citeseer", 3312, 1079, 6, 4770, 284),
    ],
)
def test_public_hypergraphs_become_the_tokens_counted_by_hand(
    name: str, nodes: int, hyperedges: int, classes: int, triples: int, pooled: int
) -> None:
    """Sizes 2 and 3 give six triples each."""
    folder = Path(os.environ.get("TOKENGT_DATA", Path(__file__).parents[3] / "shared" / "data")) / "hypergraphs"
    if not folder.is_dir():
        pytest.skip("no hypergraphs here (set TOKENGT_DATA)")
    data = read_hypergraph(folder / f"{name}.npz")
    assert (data.num_nodes, len(data.hyperedges), data.num_classes) == (nodes, hyperedges, classes)
    slim = replace(data, node_features=data.node_features[:, :8])
    graph = GraphBatch.collate([hypergraph_tokens(slim, 3)])
    assert (graph.num_edges, graph.num_hyperedges) == (triples, pooled)
