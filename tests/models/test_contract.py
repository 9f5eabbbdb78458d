"""What every kind of model answers, asked of each of them."""

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.graphs import odd_graphs
from tests.training.stores import graph_store, molecule_store, ring
from tests.workflow.small import molecules
from tokengt import GraphBatch, TokenGT, from_smiles
from tokengt.config import override, to_dict
from tokengt.data.links import as_links
from tokengt.models.contract import ModelConfig
from tokengt.models.egt import EgtConfig
from tokengt.models.gps import GpsConfig
from tokengt.models.graphormer import GraphormerConfig
from tokengt.models.grpe import GrpeConfig
from tokengt.models.kinds import KINDS, config_from_dict, load_model, register
from tokengt.models.message_passing.model import GatConfig, GcnConfig, GinConfig
from tokengt.models.passes import check_passes, run_passes
from tokengt.models.two_layers import CliqueGcnConfig, MlpConfig
from tokengt.presets import PRESETS, small

QUICK: dict[str, Callable[[], ModelConfig]] = {
    "tokengt": lambda: replace(small(), dim=32),
    "gin": lambda: GinConfig(dim=24, num_layers=3),
    "gin-vn": lambda: GinConfig(dim=24, num_layers=3, virtual_node=True),
    "gcn": lambda: GcnConfig(dim=24, num_layers=3),
    "gcn-vn": lambda: GcnConfig(dim=24, num_layers=3, virtual_node=True),
    "gat": lambda: GatConfig(dim=24, num_layers=3),
    "gat-vn": lambda: GatConfig(dim=24, num_layers=3, virtual_node=True),
    "gps": lambda: GpsConfig(dim=24, num_layers=2),
    "graphormer": lambda: GraphormerConfig(dim=24, num_layers=2, num_heads=4),
    "egt": lambda: EgtConfig(dim=24, num_layers=2, num_heads=4, edge_dim=8, virtual_nodes=2),
    "grpe": lambda: GrpeConfig(dim=24, num_layers=2, num_heads=4),
    "mlp": lambda: MlpConfig(dim=24),
    "clique_gcn": lambda: CliqueGcnConfig(dim=24),
}


def test_every_kind_is_asked() -> None:
    """A module of a user's own is asked in tests/workflow/test_other_models.py."""
    assert {build().kind for build in QUICK.values()} == set(KINDS) - {"own"}


@pytest.fixture(params=QUICK, ids=list(QUICK))
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return QUICK[request.param]()


@pytest.mark.parametrize("level", ["graph", "node", "edge", "link"])
def test_a_fitted_model_gives_the_rows_of_its_level(config: ModelConfig, level: str) -> None:
    store = as_links(graph_store(odd_graphs())) if level == "link" else graph_store(odd_graphs(), level)
    if level == "edge" and config.kind in ("mlp", "clique_gcn"):
        with pytest.raises(ValueError, match="predicts graphs, nodes and links, and these labels are of edges"):
            config.fit(store, 3)
        return
    model = config.fit(store, 3).build().eval()
    batch = model.prepared(store.graphs).select([0, 3, 2])
    assert model(batch).shape == (batch.level_rows(level).total, 3)  # type: ignore[arg-type]
    assert model.embed(batch).shape == (3, model.embedding_width)


def test_graphs_do_not_see_their_neighbours_in_a_batch(config: ModelConfig) -> None:
    store = molecule_store(9)
    torch.manual_seed(0)
    model = config.fit(store, 1).build().double().eval()
    together = model(store.graphs)
    for place in range(9):
        assert torch.allclose(model(store.graphs.select([place])), together[place : place + 1], atol=1e-10)


def test_costs_grow_with_the_graph_and_lie_on_the_cpu(config: ModelConfig) -> None:
    store = graph_store([ring(4), ring(40)])
    costs = config.fit(store, 1).build().costs(store.graphs)
    assert costs.device.type == "cpu"
    assert 4 <= int(costs[0]) < int(costs[1])


def test_costs_of_tokengt_are_its_tokens() -> None:
    texts, _ = molecules(6)
    batch = GraphBatch.collate([from_smiles(text) for text in texts])
    model = TokenGT(small()).eval()
    assert model.costs(batch).tolist() == model.encode(batch).segments.host_lengths.tolist()
    directed = GraphBatch.collate(odd_graphs())
    fitted = small().fit(graph_store(odd_graphs()), 1).build()
    assert fitted.costs(directed).tolist() == [1 + graph.num_nodes + graph.num_edges for graph in odd_graphs()]


def test_identifiers_are_given_only_to_models_that_take_them(config: ModelConfig) -> None:
    model = config.fit(molecule_store(5), 1).build()
    assert model.takes_node_ids == ("node_ids" in inspect.signature(model.forward).parameters)
    if model.takes_node_ids:
        check_passes(model, 1, "identifiers", given_ids=True)
    else:
        with pytest.raises(ValueError, match=f"node_ids are given, but a {type(model).__name__} takes none"):
            check_passes(model, 1, "identifiers", given_ids=True)


def test_a_model_comes_back_from_disk_as_the_kind_it_is(config: ModelConfig, tmp_path: Path) -> None:
    store = molecule_store(5)
    model = config.fit(store, 2).build().eval()
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model"]["kind"] == config.kind
    again = load_model(tmp_path)
    assert again.config == model.config
    assert torch.equal(again(store.graphs), model(store.graphs))


def test_pieces_and_unused_weights_are_the_models_own(config: ModelConfig) -> None:
    model = config.fit(molecule_store(5), 1).build()
    own = {id(parameter) for parameter in model.parameters()}
    inside = [id(parameter) for piece in model.pieces() for parameter in piece.parameters()]
    assert len(inside) == len(set(inside))
    assert bool(inside) == (config.kind not in ("mlp", "clique_gcn"))
    assert set(inside) <= own
    assert {id(parameter) for parameter in model.sometimes_unused()} <= own


def test_configs_of_all_presets_return_from_json(tmp_path: Path) -> None:
    for preset in PRESETS.values():
        config = preset()
        assert config_from_dict(json.loads(json.dumps(to_dict(config)))) == config
        assert config.describe().summary


@pytest.mark.parametrize(
    ("name", "summary", "details"),
    [
        (
            "tokengt",
            "4 layers x 32, 8 heads, laplacian 16, softmax attention, graph head of 1",
            {"identifiers": "laplacian, 16 dimensions"},
        ),
        ("gin", "GIN, 3 layers x 24, graph head of 1", {"layers": "3 x 24", "virtual node": "no"}),
        (
            "gin-vn",
            "GIN with virtual node, 3 layers x 24, graph head of 1",
            {"layers": "3 x 24", "virtual node": "yes"},
        ),
        ("gcn", "GCN, 3 layers x 24, graph head of 1", {"layers": "3 x 24", "virtual node": "no"}),
        (
            "gat-vn",
            "GAT with virtual node, 3 layers x 24, graph head of 1",
            {"layers": "3 x 24", "virtual node": "yes"},
        ),
        ("gps", "GPS, 2 layers x 24, 4 heads, graph head of 1", {"layers": "2 layers x 24, 4 heads"}),
        ("graphormer", "Graphormer, 2 layers x 24, 4 heads, graph head of 1", {"layers": "2 layers x 24, 4 heads"}),
        (
            "egt",
            "EGT, 2 layers x 24, 4 heads, edges x 8, graph head of 1",
            {"layers": "2 layers x 24, 4 heads", "edge channels": "8", "virtual nodes": "2"},
        ),
        ("grpe", "GRPE, 2 layers x 24, 4 heads, graph head of 1", {"layers": "2 layers x 24, 4 heads"}),
        ("mlp", "MLP, 2 layers x 24, graph head of 1", {"layers": "2 x 24"}),
        ("clique_gcn", "GCN, 2 layers x 24, graph head of 1", {"layers": "2 x 24"}),
    ],
)
def test_a_model_describes_itself(name: str, summary: str, details: dict[str, str]) -> None:
    """What the card and ``tokengt info`` say of it."""
    described = QUICK[name]().describe()
    assert (described.summary, dict(described.details)) == (summary, details)
    assert described.name == {"tokengt": "TokenGT"}.get(name, summary.split(",")[0])


def test_an_unknown_kind_is_named_with_those_there_are() -> None:
    sentence = r"model\.kind is 'ginn' .did you mean gin.*expected one of tokengt, gin.*once the module that registers"
    with pytest.raises(ValueError, match=sentence):
        config_from_dict({"kind": "ginn"})
    with pytest.raises(ValueError, match="kind is missing"):
        config_from_dict({"dim": 3})
    with pytest.raises(ValueError, match="'gin' is taken by GinConfig"):

        @register
        class _Other(GinConfig):
            """Another class under a name that is taken."""

    assert set(KINDS) >= {"tokengt", "gin", "own"}


@pytest.mark.parametrize(
    "change",
    [
        {"encoder.num_heads": 4},
        {"encoder.activation": "relu"},
        {"encoder.sparse_basis_residual": True},
        {"encoder.incidence": "alternate"},
        {"identifiers.which": "both_ends"},
    ],
)
def test_what_the_shapes_of_weights_do_not_show_is_a_meaning_of_them(change: dict[str, object]) -> None:
    """Fine-tuning compares the meanings: otherwise the same weights would be read as another model's, silently."""
    plain = QUICK["tokengt"]().fit(molecule_store(5), 1)
    changed = override(plain, change, "model")
    one, other = plain.build().eval(), changed.build().eval()
    assert {n: t.shape for n, t in one.state_dict().items()} == {n: t.shape for n, t in other.state_dict().items()}
    other.load_state_dict({name: 3 * tensor for name, tensor in one.state_dict().items()})
    one.load_state_dict(other.state_dict())
    batch = molecule_store(5).graphs
    assert not torch.allclose(one(batch), other(batch))
    (name,) = change
    assert changed.meanings()[name] != plain.meanings()[name]


def test_kinds_of_identifiers_and_norms_are_meanings_too() -> None:
    plain = small()
    orf, random = (override(plain, {"identifiers.kind": kind}, "model") for kind in ("orf", "random"))
    assert orf.meanings() != random.meanings()
    assert override(plain, {"encoder.norm": False}, "model").meanings() != plain.meanings()


@pytest.mark.parametrize("name", ["gin-vn", "mlp"])
def test_draws_over_dropout_depend_on_nothing_but_their_numbers(name: str) -> None:
    """Neither on what was drawn before, nor on other graphs of the batch; and they leave the model as it was."""
    store = molecule_store(6)
    model = replace(QUICK[name](), dropout=0.5).fit(store, 1).build()  # type: ignore[type-var]
    model.train()(store.graphs)  # Batch norm has moments to lose.
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}

    def draws(batch: GraphBatch, seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        passes = run_passes(model, 3, "dropout", lambda draw: model(batch, draw=draw))
        assert torch.initial_seed() == seed
        return passes

    first, second = draws(store.graphs, 1), draws(store.graphs, 2)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1])
    assert model.training
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
