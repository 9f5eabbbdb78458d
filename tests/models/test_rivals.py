"""What every system of the paper's Table 2 keeps to: symmetry, size, any graph, learning, the whole way of a run."""

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graphs import graphs, hypergraph, odd_graphs, random_graph
from tests.training.stores import graph_store, molecule_store
from tests.workflow.small import molecule_csv, molecules
from tokengt import Graph, GraphBatch, load
from tokengt.cli import main
from tokengt.models.common import GraphModelConfig
from tokengt.models.contract import Model, ModelConfig
from tokengt.models.egt import EgtConfig
from tokengt.models.gps import GpsConfig
from tokengt.models.graphormer import GraphormerConfig
from tokengt.models.grpe import GrpeConfig
from tokengt.models.message_passing.model import GatConfig, GcnConfig, GinConfig
from tokengt.presets import PRESETS
from tokengt.structure.facts import with_facts
from tokengt.testing import assert_permutation_equivariant, assert_permutation_invariant

RIVALS: dict[str, Callable[[], GraphModelConfig]] = {
    "gin": lambda: GinConfig(dim=16, num_layers=3),
    "gin-vn": lambda: GinConfig(dim=16, num_layers=3, virtual_node=True),
    "gcn": lambda: GcnConfig(dim=16, num_layers=3),
    "gcn-vn": lambda: GcnConfig(dim=16, num_layers=3, virtual_node=True),
    "gat": lambda: GatConfig(dim=16, num_layers=3),
    "gat-vn": lambda: GatConfig(dim=16, num_layers=3, virtual_node=True, num_heads=2),
    "gps": lambda: GpsConfig(dim=16, num_layers=2, walk_steps=5),
    "graphormer": lambda: GraphormerConfig(dim=16, num_layers=2, num_heads=4, max_distance=3, path_edges=2),
    "egt": lambda: EgtConfig(dim=16, num_layers=2, num_heads=4, edge_dim=8, virtual_nodes=2, max_distance=3),
    "grpe": lambda: GrpeConfig(dim=16, num_layers=2, num_heads=4, max_distance=3),
}
rival = pytest.mark.parametrize("name", RIVALS)


def fitted(name: str, level: str = "graph", **options: Any) -> Model:
    """In float64 and evaluation mode, with running moments that are not those of the start."""
    store = graph_store(odd_graphs(), level)
    torch.manual_seed(0)
    model = replace(RIVALS[name](), **options).fit(store, 2).build().double()
    model.train()(store.graphs)
    return model.eval()


@rival
def test_numbering_does_not_matter(name: str) -> None:
    """Ties between shortest paths, self-loops and repeated edges included; rows of nodes and edges move along."""
    model = fitted(name)
    square = Graph(
        torch.tensor([[0, 0], [1, 2], [0, 0], [3, 1]]),
        torch.tensor([[0, 1, 1, 2, 2, 3, 3, 0], [1, 0, 2, 1, 3, 2, 0, 3]]),
        torch.randn(8, 3, generator=torch.Generator().manual_seed(0)),
    )
    for graph in (square, random_graph(7, 12, 5), *odd_graphs()[2:5]):
        assert_permutation_invariant(model, graph)
    assert_permutation_equivariant(fitted(name, "node"), random_graph(7, 12, 5))
    assert_permutation_equivariant(fitted(name, "edge"), random_graph(7, 12, 5), level="edge")


@rival
@settings(max_examples=10, deadline=None)
@given(members=st.lists(graphs(), min_size=1, max_size=5))
def test_any_graph_is_read_alone_as_in_a_batch(name: str, members: list[Graph]) -> None:
    """One node, no edges, several components, self-loops, repeated edges: finite, and the same in any company."""
    model = fitted(name)
    with torch.no_grad():
        together = model(GraphBatch.collate(members))
        alone = torch.cat([model(GraphBatch.collate([graph])) for graph in members])
    assert together.isfinite().all()
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-9)


@rival
def test_every_weight_gets_a_gradient_from_molecules(name: str) -> None:
    """What no output depends on would be counted and not learned."""
    store = molecule_store(12)
    torch.manual_seed(0)
    model = replace(RIVALS[name](), dropout=0.0).fit(store, 1).build().double()
    model(store.graphs).square().sum().backward()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []


@rival
def test_products_in_half_precision_give_nearly_the_same(name: str) -> None:
    """As on a GPU: bfloat16 has 8 bits, so some hundredths are its rounding."""
    store = molecule_store(12)
    torch.manual_seed(0)
    calm = {key: 0.0 for key in ("dropout", "attention_dropout") if hasattr(RIVALS[name](), key)}
    model = replace(RIVALS[name](), **calm).fit(store, 1).build()
    plain = model(store.graphs)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(store.graphs).float()
    mixed.square().sum().backward()
    assert (mixed - plain).abs().max() < 0.05 * (1 + plain.abs().max())
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


@rival
def test_it_overfits_32_molecules(name: str) -> None:
    """chemprop's overfit test, on the solubility of small molecules: less than a twentieth of the variance is left."""
    known = [(text, y) for text, y in zip(*molecules(200), strict=True) if 5 < len(text) < 20][:32]
    store = molecule_store(texts=[text for text, _ in known])
    target = torch.tensor([[y] for _, y in known])
    target = (target - target.mean()) / target.std()
    torch.manual_seed(0)
    calm = {key: 0.0 for key in ("dropout", "attention_dropout") if hasattr(RIVALS[name](), key)}
    model = replace(RIVALS[name](), dim=32, **calm).fit(store, 1).build()
    batch = with_facts(store.graphs, model.config.facts())
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(200):
        loss = (model(batch) - target).square().mean()
        if float(loss.detach()) < 0.05:
            return
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    pytest.fail(f"{float(loss.detach()):.2f} of the variance is left after 200 steps")


@rival
def test_larger_edges_are_refused(name: str) -> None:
    sentence = rf"a {RIVALS[name]().name} reads edges of two nodes; these graphs have larger ones: use tokengt"
    with pytest.raises(ValueError, match=sentence):
        RIVALS[name]().fit(graph_store([hypergraph()]), 1)
    with pytest.raises(ValueError, match=sentence):
        RIVALS[name]().build()(hypergraph())


def parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in config.build().parameters())


# In millions: what the paper's Table 2 says, and within which share of it ours is. The count of the GAT without virtual
# node is ours: the paper says 6.7, which is the number with one.
PUBLISHED = {
    "gcn-paper": (1.96, 0.01),
    "gin-paper": (3.76, 0.01),
    "gat-paper": (3.76, 0.01),
    "gcn-vn-paper": (4.85, 0.01),
    "gin-vn-paper": (6.66, 0.01),
    "gat-vn-paper": (6.66, 0.01),
    "gat-vn-large-paper": (55.2, 0.01),
    "graphormer-paper": (48.3, 0.02),
    "egt-paper": (89.3, 0.02),
    "grpe-paper": (46.2, 0.02),
    "transformer-paper": (48.5, 0.02),
    "tokengt-orf-paper": (48.6, 0.02),
    "tokengt-lap-paper": (48.5, 0.02),
    "tokengt-performer-paper": (48.5, 0.02),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_are_those_of_the_paper(name: str) -> None:
    millions, within = PUBLISHED[name]
    assert parameters(PRESETS[name]()) == pytest.approx(millions * 1e6, rel=within)


def test_every_system_of_the_table_has_a_preset_in_its_published_size() -> None:
    assert {name for name in PRESETS if name.endswith("-paper")} == {*PUBLISHED, "gps-paper"}
    # A fitted model keeps its size but for rows of tables that no molecule names.
    store = molecule_store(3)
    for name in ("gcn-vn-paper", "gat-vn-large-paper"):
        assert parameters(PRESETS[name]().fit(store, 1)) == parameters(PRESETS[name]())
    unused = (9 * 512 - 174) * 768 + (3 * 512 - 13) * 32
    graphormer = PRESETS["graphormer-paper"]()
    assert parameters(graphormer) - parameters(graphormer.fit(store, 1)) == unused


TINY = {
    "transformer": {"dim": 16, "encoder.num_layers": 1, "encoder.num_heads": 2, "encoder.mlp_dim": 16},
    **{
        name: {"dim": 16, "num_layers": 2}
        for name in ("gcn", "gcn-vn", "gin", "gin-vn", "gat", "gat-vn", "gat-vn-large")
    },
    **{name: {"dim": 16, "num_layers": 1, "num_heads": 2} for name in ("gps", "graphormer", "egt", "grpe")},
}


@pytest.mark.parametrize("name", TINY)
def test_it_goes_the_whole_way_of_a_run(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``tokengt train --preset``, one epoch; loaded again it predicts what the run has written, and so alone."""
    data, run = molecule_csv(tmp_path / "data.csv"), tmp_path / "run"
    sets = [word for key, value in TINY[name].items() for word in ("--set", f"model.{key}={value}")]
    command = ["train", str(data), "--target", "y", "--preset", name, "--out", str(run)]
    assert main([*command, "--set", "training.epochs=1", "--device", "cpu", *sets]) in (None, 0)
    capsys.readouterr()
    loaded = load(run)
    with (run / "predictions.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    texts = [row["smiles"] for row in written]
    again = loaded.predict(texts).mean[:, 0]
    kept = [float(row["predicted_y"]) for row in written]
    torch.testing.assert_close(torch.tensor(kept), torch.tensor(again), rtol=1e-5, atol=1e-5, check_dtype=False)
    alone = loaded.predict(texts[:1]).mean[0, 0]
    assert alone == pytest.approx(again[0], abs=1e-5)
