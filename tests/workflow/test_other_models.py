"""Models that are no TokenGT go the same way: train, resume, predict, evaluate, embed, folds, fine-tuning."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.training.stores import molecule_store
from tests.workflow.small import QUIET, molecule_csv, molecules
from tokengt import GraphBatch, Predictor, TokenGT, TrainOptions, evaluate, load, train
from tokengt.config import to_dict
from tokengt.data.store import Store
from tokengt.models.contract import Description, Model, ModelConfig
from tokengt.models.kinds import KINDS
from tokengt.presets import PRESETS, small
from tokengt.ragged import segment_sum
from tokengt.structure.facts import HopDistances, StructureFact, fact_of
from tokengt.training import progress
from tokengt.training.request import TrainRequest
from tokengt.training.resolve import resolve
from tokengt.workflow.fitting import finetune

TEXTS = molecules(30)[0]
GIN = {"model.dim": 16, "model.num_layers": 2, "training.epochs": 3, "training.batch_size": 8}
BRIEF = {"training.epochs": 2, "training.batch_size": 8}


class Stopped(Exception):
    """Stands for a machine that lost its power."""


class MeanOfAtoms(nn.Module):
    """A user's own module: the mean of embedded atoms, after one round of messages along bonds."""

    def __init__(self, out: int = 1) -> None:
        super().__init__()
        self.embed_atom = nn.Embedding(119, 8)
        self.head = nn.Linear(8, out)

    def embed(self, batch: GraphBatch) -> Tensor:
        assert batch.node_features is not None
        atoms = self.embed_atom(batch.node_features[:, 0].long())
        source, target = batch.edge_index
        atoms = atoms.index_add(0, target, atoms.index_select(0, source))
        sums = atoms.new_zeros(len(batch), 8).index_add(0, batch.nodes.ids, atoms)
        return sums / batch.nodes.lengths[:, None]

    def forward(self, batch: GraphBatch) -> Tensor:
        out: Tensor = self.head(self.embed(batch))
        return out


def train_gin(folder: Path, out: str, **wishes: object) -> Predictor:
    source = molecule_csv(folder / "data.csv")
    given = {"target": "y", "preset": "gin-vn", "settings": GIN, "options": QUIET, **wishes}
    return train(source, folder / out, **given)  # type: ignore[arg-type]


def test_gin_with_virtual_node_is_trained_predicts_evaluates_and_embeds(tmp_path: Path) -> None:
    run = train_gin(tmp_path, "run")
    assert run.spec.model.kind == "gin"
    assert to_dict(run.spec.model)["virtual_node"] is True
    predicted = run.predict([*TEXTS, "no molecule"]).mean
    assert np.isfinite(predicted[:-1]).all()
    assert np.isnan(predicted[-1]).all()
    assert (load(tmp_path / "run").predict(TEXTS).mean == predicted[:-1]).all()
    assert run.embed(TEXTS).shape == (30, 16)
    assert evaluate(tmp_path / "run", tmp_path / "data.csv", quiet=True).rows == 32
    card = (tmp_path / "run" / "README.md").read_text()
    assert "# GIN with virtual node for y" in card
    assert "| virtual node | yes |" in card
    over_dropout = run.predict(TEXTS, draws=3, over="dropout")
    assert over_dropout.std is not None
    assert (run.predict(TEXTS).mean == predicted[:-1]).all(), "draws over dropout leave the moments of batch norm alone"
    shapes = run.predict(["CCO", *TEXTS], draws=3, over="dropout").mean.shape
    assert shapes == (31, 1)
    with pytest.raises(ValueError, match="no identifiers to draw"):
        run.predict(TEXTS, draws=3)


def test_a_stopped_gin_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch norm's running moments are part of what a checkpoint holds."""
    train_gin(tmp_path, "whole")
    advance = progress.Progress.advance
    steps = iter(range(100))

    def stops(self: progress.Progress, epochs: float, graphs: int) -> None:
        if next(steps) == 7:
            raise Stopped
        advance(self, epochs, graphs)

    monkeypatch.setattr(progress.Progress, "advance", stops)
    with pytest.raises(Stopped):
        train_gin(tmp_path, "broken")
    monkeypatch.setattr(progress.Progress, "advance", advance)
    train_gin(tmp_path, "broken", resume=True)
    for name in ("model.safetensors", "predictions.csv", "metrics.jsonl"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.slow
def test_gin_in_folds_and_fine_tuned(tmp_path: Path) -> None:
    options = TrainOptions(quiet=True, workers=1, folds=3)
    folds = train_gin(tmp_path, "folds", options=options)
    assert len(folds.members) == 3
    assert folds.predict(TEXTS).std is not None
    tuned = finetune(
        tmp_path / "folds", tmp_path / "data.csv", tmp_path / "tuned", target="z", settings=BRIEF, options=QUIET
    )
    assert tuned.spec.model.kind == "gin"
    assert tuned.spec.start is not None
    with pytest.raises(ValueError, match=r"has .* of shape \[\d+, 16\], here it is of shape"):
        finetune(
            tmp_path / "folds",
            tmp_path / "data.csv",
            tmp_path / "wider",
            target="z",
            settings={**BRIEF, "model.dim": 24},
            options=QUIET,
        )


def test_a_module_of_ones_own_is_trained_and_loaded_again(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv")
    torch.manual_seed(0)
    mine = MeanOfAtoms()
    before = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
    settings = {"training.epochs": 40, "training.batch_size": 8, "training.learning_rate": 0.05}
    run = train(source, tmp_path / "run", target="y", model=mine, settings=settings, options=QUIET)
    assert all(torch.equal(before[name], tensor) for name, tensor in mine.state_dict().items()), "a copy is trained"
    test = evaluate(run, source, quiet=True)
    assert test.metrics["r2"] > 0.1
    again = load(tmp_path / "run", model=MeanOfAtoms())
    assert (again.predict(TEXTS).mean == run.predict(TEXTS).mean).all()
    assert again.embed(TEXTS[:4]).shape == (4, 8)
    with pytest.raises(ValueError, match=r"your own class MeanOfAtoms.*tokengt.load\(RUN, model=MeanOfAtoms"):
        load(tmp_path / "run")
    with pytest.raises(ValueError, match=r"own class MeanOfAtoms.*give the trained module itself to another training"):
        finetune(tmp_path / "run", source, tmp_path / "tuned", target="y", options=QUIET)
    # What that sentence advises.
    trained = load(tmp_path / "run", model=MeanOfAtoms()).members[0].model
    still = {"training.epochs": 1, "training.learning_rate": 0.0}
    tuned = train(source, tmp_path / "tuned", target="y", model=trained, settings=still, options=QUIET)
    assert (tuned.predict(TEXTS).mean == run.predict(TEXTS).mean).all()
    card = (tmp_path / "run" / "README.md").read_text()
    assert "# MeanOfAtoms for y" in card
    assert "tokengt.load(RUN, model=MeanOfAtoms(...)).predict" in card
    assert "tokengt predict" not in card


def test_models_of_an_ensemble_of_ones_own_module_differ(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv")
    options = TrainOptions(quiet=True, workers=1, ensemble=2)
    run = train(source, tmp_path / "run", target="y", model=MeanOfAtoms(), settings=BRIEF, options=options)
    first, second = (member.model.state_dict()["module.embed_atom.weight"] for member in run.members)
    assert not torch.allclose(first, second, atol=0.1), "their first weights are drawn by their own seeds"


def test_a_module_with_other_rows_than_the_task_is_one_sentence(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv")
    with pytest.raises(ValueError, match=r"MeanOfAtoms gives \[2, 3\] for a batch of 2 graphs; expected \[2, 1\]"):
        train(source, tmp_path / "run", target="y", model=MeanOfAtoms(3), settings=BRIEF, options=QUIET)
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_tokengt_that_is_built_already_keeps_its_config(tmp_path: Path) -> None:
    """Its tables may be larger than this data needs: what is written down describes the weights that are there."""
    source = molecule_csv(tmp_path / "data.csv")
    wide = replace(small(), dim=32, tokens=replace(small().tokens, null_token=True))
    run = train(source, tmp_path / "run", target="y", model=TokenGT(wide), settings=BRIEF, options=QUIET)
    assert run.spec.model == wide
    assert (load(tmp_path / "run").predict(TEXTS).mean == run.predict(TEXTS).mean).all()


@dataclass(frozen=True)
class HopsConfig(ModelConfig):
    """A model that asks for a fact per pair of nodes: how far apart they are."""

    kind: Literal["hops"] = field(default="hops", init=False)
    out_dim: int = 1

    def fit(self, data: Store, out_dim: int) -> "HopsConfig":
        return HopsConfig(out_dim=out_dim)

    def build(self) -> "Hops":
        return Hops(self)

    def describe(self) -> Description:
        return Description("Hops", "the mean distance of two atoms")

    def facts(self) -> tuple[StructureFact, ...]:
        return (HopDistances(8),)


class Hops(Model):
    def __init__(self, config: HopsConfig) -> None:
        super().__init__()
        self.config = config
        self.head = nn.Linear(1, config.out_dim)
        self.carried: list[bool] = []

    def forward(self, batch: GraphBatch, *, draw: int = 0) -> Tensor:
        (fact,) = self.config.facts()
        self.carried.append(batch.fact(fact.name) is not None)
        hops = fact_of(batch, fact).float()[:, None]
        return self.head(segment_sum(hops, batch.nodes.pairs) / batch.nodes.lengths[:, None] ** 2)  # type: ignore[no-any-return]


def test_facts_per_pair_are_worked_out_once_and_kept_with_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "hops", HopsConfig)
    monkeypatch.setitem(PRESETS, "hops", HopsConfig)
    built: list[Hops] = []
    monkeypatch.setattr(HopsConfig, "build", lambda self: built.append(Hops(self)) or built[-1])
    source = molecule_csv(tmp_path / "data.csv")
    run = train(source, tmp_path / "run", target="y", preset="hops", settings=BRIEF, options=QUIET)
    trained = next(model for model in built if model.carried)
    assert all(trained.carried), "every batch of training carries its part of the fact"
    assert list((tmp_path / "run" / "store" / "cache").glob("*hop*.safetensors"))
    # A molecule that no store has seen: the model asks, and the fact is worked out on the spot.
    ethane, propane = run.predict(["CC", "CCC"]).mean[:, 0]
    weight, bias = (float(part.detach().flatten()[0]) for part in run.members[0].model.head.parameters())  # type: ignore[union-attr]
    task = run.task
    assert ethane == pytest.approx(task.mean[0] + task.scale[0] * (weight * 2 / 4 + bias), rel=1e-4)
    assert propane == pytest.approx(task.mean[0] + task.scale[0] * (weight * 8 / 9 + bias), rel=1e-4)


def test_several_models_of_a_tokengt_that_was_handed_over_start_as_tokengts_do(tmp_path: Path) -> None:
    """Layers reset themselves to PyTorch's usual weights, which are fifty times as large as this model's."""
    built = resolve(
        TrainRequest(model=TokenGT(replace(small(), dim=32)), ensemble=2), molecule_store(12), None, tmp_path, print
    )
    first, second = (member.build() for member in built)
    table = "tokenizer.node_encoder.table.weight"
    assert 0.01 < float(first.state_dict()[table].std()) < 0.03
    assert not torch.equal(first.state_dict()[table], second.state_dict()[table])


def test_a_module_that_cannot_read_a_batch_is_one_sentence(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv")
    with pytest.raises(ValueError, match=r"Linear cannot read a batch of 2 graphs .*takes a GraphBatch"):
        train(source, tmp_path / "run", target="y", model=nn.Linear(1, 1), settings=BRIEF, options=QUIET)


def test_another_module_of_the_same_name_does_not_go_on_with_a_run(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv")
    train(source, tmp_path / "run", target="y", model=MeanOfAtoms(), settings=BRIEF, options=QUIET)
    other = MeanOfAtoms()
    other.extra = nn.Tanh()
    with pytest.raises(ValueError, match=r"was begun with other settings: model\.layers"):
        train(source, tmp_path / "run", target="y", model=other, settings=BRIEF, options=QUIET, resume=True)


class ForgetsToPool(MeanOfAtoms):
    """Right for one graph, wrong for two."""

    def forward(self, batch: GraphBatch) -> Tensor:
        return super().forward(batch).mean(0, keepdim=True)


def test_rows_that_are_right_for_one_graph_only_are_found_before_training(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv")
    with pytest.raises(ValueError, match=r"ForgetsToPool gives \[1, 1\] for a batch of 2 graphs; expected \[2, 1\]"):
        train(source, tmp_path / "run", target="y", model=ForgetsToPool(), settings=BRIEF, options=QUIET)


def test_another_module_than_the_trained_one_is_not_loaded(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv")
    train(source, tmp_path / "run", target="y", model=MeanOfAtoms(), settings=BRIEF, options=QUIET)
    with pytest.raises(ValueError, match="was trained with a MeanOfAtoms; model is a ForgetsToPool"):
        load(tmp_path / "run", model=ForgetsToPool())
    with pytest.raises(ValueError, match="your MeanOfAtoms is built with other layers"):
        load(tmp_path / "run", model=MeanOfAtoms(2))


def test_a_frozen_body_keeps_its_moments(tmp_path: Path) -> None:
    train_gin(tmp_path, "run")
    wishes = {"target": "z", "settings": BRIEF, "options": QUIET, "freeze": True}
    tuned = finetune(tmp_path / "run", tmp_path / "data.csv", tmp_path / "tuned", **wishes)
    before = load(tmp_path / "run").members[0].model.state_dict()
    after = tuned.members[0].model.state_dict()
    kept = [name for name in before if not name.startswith("head.")]
    assert any("running_mean" in name for name in kept)
    assert all(torch.equal(before[name], after[name]) for name in kept)
