"""Memory of a training step: recomputed gradients are the same, estimates are near, what does not fit is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.effects import kept_bytes
from tests.graphs import random_graph, tokens_config
from tests.training.stores import graph_store
from tokengt import EncoderConfig, FavorConfig, GraphBatch, HeadConfig, LaplacianIds, TokenGT, TokenGTConfig
from tokengt.attention import SoftmaxConfig
from tokengt.data.splits import Split
from tokengt.models.egt import EgtConfig
from tokengt.models.features import FeatureSpec
from tokengt.models.graphormer import GraphormerConfig
from tokengt.models.grpe import GrpeConfig
from tokengt.structure.facts import with_facts
from tokengt.training import loop, ways
from tokengt.training.config import TrainingConfig
from tokengt.training.loop import Trainer
from tokengt.training.memory import GIB, memory_limit, refuse_too_large, settle_memory
from tokengt.training.parts import Parts, cut
from tokengt.training.processes import DeviceConfig, make_fabric
from tokengt.training.tasks import Task


def model_of(
    attention: FavorConfig | SoftmaxConfig, *, dim: int = 16, dropout: float = 0.3, layers: int = 2
) -> TokenGT:
    torch.manual_seed(1)
    return TokenGT(
        TokenGTConfig(
            dim=dim,
            tokens=tokens_config(),
            identifiers=LaplacianIds(dim=4, sign_flip=False),
            encoder=EncoderConfig(
                num_layers=layers,
                num_heads=2,
                mlp_dim=2 * dim,
                attention=attention,
                mlp_dropout=dropout,
                residual_dropout=dropout,
                drop_path=dropout,
                sparse_basis_residual=True,
                sparse_basis_scale="mean",
            ),
            head=HeadConfig(level="node", out_dim=1),
        )
    )


def gradients(model: nn.Module, batch: GraphBatch, steps: int) -> list[Tensor]:
    """Gradients of several steps one after another, each with its own dropout."""
    found = []
    for step in range(steps):
        torch.manual_seed(step)
        model.zero_grad()
        model(batch).square().sum().backward()
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return found


@pytest.mark.parametrize(
    "attention", [FavorConfig(redraw_interval=2), SoftmaxConfig(dropout=0.2)], ids=lambda a: a.kind
)
def test_gradients_are_the_same_to_the_last_bit(attention: FavorConfig | SoftmaxConfig) -> None:
    """With dropout, and over steps between which FAVOR+ draws new features: once each, however often a block runs."""
    batch = GraphBatch.collate([random_graph(9, 20, 6), random_graph(17, 30, 7)])
    kept, again = model_of(attention), model_of(attention)
    assert again.set_recompute(True)
    for one, other in zip(gradients(kept, batch, 5), gradients(again, batch, 5), strict=True):
        assert torch.equal(one, other)
    assert all(torch.equal(a, b) for a, b in zip(kept.buffers(), again.buffers(), strict=True))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_estimate_is_near_to_what_is_kept_and_recomputing_keeps_a_fraction(dropout: float) -> None:
    batch = GraphBatch.collate([random_graph(4000, 12000, 3)])
    model = model_of(FavorConfig(), dim=64, dropout=dropout, layers=3).train()
    estimate = model.config.step_bytes(batch, torch.tensor([0]), 4)
    kept = kept_bytes(model, lambda: model(batch))
    assert 0.7 < kept / estimate < 1.3, f"kept {kept:,}, estimated {estimate:,}"
    model.set_recompute(True)
    assert kept_bytes(model, lambda: model(batch)) < 0.4 * kept


def parts_of(batch: GraphBatch, model: TokenGT) -> Parts:
    rows = torch.arange(batch.num_nodes)
    targets = torch.randn(batch.num_nodes, 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    split = Split(rows[rows % 3 > 0], rows[rows % 3 == 0], rows[:0])
    return cut(batch, targets, "node", split, by_row=True, costs=model.costs(batch))


def trained(recompute: str, said: list[str], **settings: object) -> list[float]:
    batch = GraphBatch.collate([random_graph(30, 60, 2)])
    model = model_of(FavorConfig(redraw_interval=3))
    config = TrainingConfig(epochs=4, batch_size=1, recompute=recompute, precision="float32", **settings)
    fabric = make_fabric(DeviceConfig("cpu"), "float32")
    trainer = Trainer(fabric, model, parts_of(batch, model), Task("regression", ("y",)), config, warn=said.append)
    return [record["train_loss"] for record in trainer.run().records]


@pytest.mark.parametrize(
    ("least", "settings", "taken"),
    [
        (10**9, {}, False),
        (1, {}, True),
        (1, {"recompute": "always"}, False),
        (1, {"memory": 1e-6}, False),
        (1, {"memory": 1e-6, "recompute": "never"}, True),
    ],
)
def test_row_kernels_are_for_large_steps_whose_activations_are_kept(
    least: int, settings: dict[str, Any], taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAVOR+ with the sparse basis cannot be recorded. A CPU has no such kernels, so that only the choice is seen."""
    asked: list[bool] = []
    monkeypatch.setattr(ways, "_LARGE_STEP", least)
    monkeypatch.setattr(loop, "accelerate", lambda model, **wishes: asked.append(wishes["kernels"]) or model)
    batch, model = GraphBatch.collate([random_graph(30, 60, 2)]), model_of(FavorConfig())
    config = TrainingConfig(epochs=1, batch_size=1, **settings)
    Trainer(
        make_fabric(DeviceConfig("cpu"), "float32"), model, parts_of(batch, model), Task("regression", ("y",)), config
    )
    assert asked == [taken]


def test_a_training_is_the_same_and_recomputes_by_itself_where_memory_asks_for_it() -> None:
    said: list[str] = []
    never, always = trained("never", said), trained("always", said)
    assert (never, said) == (always, [])
    tight = trained("auto", said, memory=1e-6)
    assert tight == never
    assert "activations are computed again for the gradient: keeping them would take about" in said[0]


def test_what_does_not_fit_is_refused_with_the_memory_that_it_would_need() -> None:
    """Graphormer's pairs on a graph of 18,333 nodes, as on the paper's card; and TokenGT only where it may not help."""
    graphs = GraphBatch.collate([random_graph(18_333, 10, 0)])
    place, here = [torch.tensor([0])], torch.device("cpu")
    large = GraphormerConfig(dim=64, num_layers=2, num_heads=4, level="node")
    with pytest.raises(ValueError, match=r"of Graphormer would need about 52\.\d GiB .*18,333 nodes.* are 24\.0 GiB"):
        refuse_too_large(large, graphs, place, TrainingConfig(memory=24.0), here)
    refuse_too_large(large, graphs, place, TrainingConfig(memory=139.0), here)
    linear = model_of(FavorConfig()).config
    refuse_too_large(linear, graphs, place, TrainingConfig(memory=1e-6), here)
    with pytest.raises(ValueError, match="a training step of TokenGT would need about"):
        refuse_too_large(linear, graphs, place, TrainingConfig(memory=1e-6, recompute="never"), here)


@pytest.mark.parametrize("kind", [GraphormerConfig, GrpeConfig, EgtConfig])
@pytest.mark.parametrize(("layers", "heads"), [(1, 4), (3, 8)])
def test_estimates_of_pairs_are_near_what_is_kept(kind: type, layers: int, heads: int) -> None:
    store = graph_store([random_graph(100, 300, 1)], "node")
    config = kind(dim=16, num_layers=layers, num_heads=heads, dropout=0.5, attention_dropout=0.5).fit(store, 2)
    config = replace(config, edge_features=FeatureSpec())
    graphs = with_facts(replace(store.graphs, edge_features=None), config.facts())
    model = config.build().train()
    kept = kept_bytes(model, lambda: model(graphs))
    assert 0.6 < kept / config.step_bytes(graphs, torch.tensor([0]), 4) < 1.6


def test_what_there_is_is_asked_for_where_nobody_sets_a_limit() -> None:
    assert memory_limit(TrainingConfig(memory=1.5), torch.device("cpu")) == 1.5 * GIB
    assert memory_limit(TrainingConfig(), torch.device("cpu")) > 2**26
    model, batch = model_of(FavorConfig()), GraphBatch.collate([random_graph(5, 8, 1)])
    assert settle_memory(model, batch, [torch.tensor([0])], TrainingConfig(), torch.device("cpu")) is None
