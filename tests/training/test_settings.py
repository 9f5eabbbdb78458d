"""Every setting of training does what its description says: each is changed by itself, and its effect worked out."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from tests.effects import Effects
from tests.training.stores import molecule_store, ring
from tokengt import Graph, GraphBatch, TokenGTConfig
from tokengt.data.splits import Split
from tokengt.interop.descriptors import DESCRIPTORS
from tokengt.links import edges_as_links
from tokengt.models.own import as_model
from tokengt.training import checkpoint, loop, snapshots
from tokengt.training.checkpoint import CheckpointWriter, read_checkpoint
from tokengt.training.config import ForestWish, TrainingConfig
from tokengt.training.forest import is_wanted
from tokengt.training.links import LinkTraining, link_steps
from tokengt.training.loop import Trainer
from tokengt.training.memory import settle_memory
from tokengt.training.parts import Parts, cut
from tokengt.training.processes import DeviceConfig, make_fabric, shards_weights
from tokengt.training.progress import Progress
from tokengt.training.request import TrainRequest
from tokengt.training.resolve import resolve
from tokengt.training.tasks import Task

effects = Effects(TrainingConfig, LinkTraining)
WISHES: tuple[ForestWish, ...] = get_args(ForestWish)
TASK = Task("regression", ("y",))
# One step of all graphs per epoch, at a rate that does not change, without decay and clipping: easily worked by hand.
PLAIN = TrainingConfig(
    epochs=3,
    batch_size=100,
    learning_rate=0.1,
    weight_decay=0.0,
    warmup=0.0,
    schedule="constant",
    clip=0.0,
    precision="float64",
)
START, IDLE = 3.0, 5.0


class OneNumber(nn.Module):
    """Predicts w for every graph. ``idle`` is a weight that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(START))
        self.idle = nn.Parameter(torch.tensor(IDLE))
        self.batches: list[list[int]] = []
        self.products: set[torch.dtype] = set()

    def forward(self, batch: GraphBatch) -> Tensor:
        if self.training:
            self.batches.append(batch.nodes.host_lengths.tolist())
            self.products.add((self.w.expand(1, 1) @ self.w.expand(1, 1)).dtype)
        return self.w.expand(batch.num_graphs, 1)


class Watch(Progress):
    """Notes rate, gradients and weights as they stand after every step."""

    def __init__(self) -> None:
        super().__init__(1, quiet=True)
        self.rates: list[float] = []
        self.gradients: list[float] = []
        self.weights: list[float] = []
        self.trainer: Trainer | None = None

    def advance(self, epochs: float, graphs: int) -> None:
        assert self.trainer is not None
        self.rates.append(self.trainer.optimizer.param_groups[0]["lr"])
        weight = self.trainer.parameters[0]
        assert weight.grad is not None
        self.gradients.append(weight.grad.item())
        self.weights.append(weight.item())


def data(train: int = 10, label: float = 0.0, valid_label: float | None = None) -> Parts:
    """Training graphs of 1, 2, ... nodes that all have one label; four more to validate with, if these have one."""
    count = train + (0 if valid_label is None else 4)
    graphs = GraphBatch.collate([Graph(num_nodes=place + 1) for place in range(count)])
    labels = torch.full((count, 1), label, dtype=torch.float64)
    labels[train:] = 0.0 if valid_label is None else valid_label
    places = torch.arange(count)
    split = Split(places[:train], places[train:], places[:0])
    return cut(graphs, labels, "graph", split, by_row=False, costs=torch.arange(count) + 1)


def trained(
    config: TrainingConfig, parts: Parts | None = None, module: OneNumber | None = None, **more: Any
) -> tuple[Trainer, OneNumber, Watch]:
    """A finished training, its module and what was seen of it."""
    module, watch = module or OneNumber(), Watch()
    fabric = make_fabric(DeviceConfig("cpu"), config.precision)
    trainer = Trainer(fabric, as_model(module), parts or data(), TASK, config, progress=watch, **more)
    watch.trainer = trainer
    trainer.run()
    return trainer, module, watch


def adam(rates: list[float], beta2: float = 0.999, decay: float = 0.0, clip: float = math.inf) -> Iterator[float]:
    """w after every step of AdamW, from its formula: the loss is w^2, its gradient 2 w, cut off at ``clip``."""
    w, first, second = START, 0.0, 0.0
    for step, rate in enumerate(rates, 1):
        gradient = max(-clip, min(clip, 2 * w))
        first, second = 0.9 * first + 0.1 * gradient, beta2 * second + (1 - beta2) * gradient**2
        move = (first / (1 - 0.9**step)) / (math.sqrt(second / (1 - beta2**step)) + 1e-8)
        w = w * (1 - rate * decay) - rate * move
        yield w


def test_every_setting_of_training_has_a_test_of_its_effect() -> None:
    assert effects.missing == []


@effects.of(TrainingConfig, "recompute", "memory")
def test_activations_are_recomputed_where_they_are_to_be_or_where_memory_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The parity of the two is in ``test_memory.py``; here, which of them is chosen."""

    def choice(**settings: Any) -> bool:
        model, chosen = as_model(OneNumber()), []
        model.set_recompute = lambda on: chosen.append(on) or on
        monkeypatch.setattr(
            type(model.config), "step_bytes", lambda self, graphs, places, itemsize: 3 * 2**20 * itemsize
        )
        config = replace(PLAIN, precision="float32", **settings)
        settle_memory(model, data().graphs, [torch.tensor([0])], config, torch.device("cpu"))
        return chosen == [True]

    # 12 MiB in float32: more than half of 23 MiB, and less than half of 25.
    assert choice(memory=23 / 1024)
    assert not choice(memory=25 / 1024)
    assert not choice(memory=23 / 1024, recompute="never")
    assert choice(memory=25 / 1024, recompute="always")


@effects.of(TrainingConfig, "links")
@effects.of(LinkTraining, "folds", "negatives")
def test_folds_and_negatives_say_how_many_links_an_epoch_asks_about() -> None:
    """A ring of 12 nodes has 12 links; a run of links by its settings is in ``tests/workflow/test_links.py``."""
    linked = edges_as_links(GraphBatch.collate([ring(12)]), directed=False)

    def counts(**changed: float) -> tuple[int, int]:
        config = replace(PLAIN, links=LinkTraining(**changed))
        steps = link_steps(linked, torch.ones(12, 1), torch.arange(12), None, config.links, 0)
        targets = steps.asked(torch.tensor([0]), 1).targets
        return int((targets == 1).sum()), int((targets == 0).sum())

    assert counts(folds=3) == (4, 4)
    assert counts(folds=6) == (2, 2)
    assert counts(folds=3, negatives=2.5) == (4, 10)


@effects.of(TrainingConfig, "epochs")
def test_epochs_are_passes_over_the_training_part() -> None:
    for epochs in (1, 4):
        trainer, module, _ = trained(replace(PLAIN, epochs=epochs))
        assert [record["epoch"] for record in trainer.state.records] == list(range(1, epochs + 1))
        assert module.batches == [[*range(10, 0, -1)]] * epochs  # Every graph once a pass, the longest first.


@effects.of(TrainingConfig, "epochs")
@pytest.mark.parametrize(
    ("graphs", "begun", "epochs"),
    [
        (2_000, False, 60),
        (3_000, False, 40),  # 120,000 graphs seen in all.
        (6_000, False, 20),
        (100_000, False, 20),
        (2_000, True, 30),
        (100_000, True, 10),
        (100, False, 75),  # Four steps per pass: 300 steps.
        (100, True, 75),
        (10, False, 300),
    ],
)
def test_no_epochs_are_chosen_by_the_size_of_the_training_part(graphs: int, begun: bool, epochs: int) -> None:
    config = TrainingConfig()
    assert config.for_graphs(graphs, begun=begun) == replace(config, epochs=epochs)
    assert replace(config, epochs=7).for_graphs(graphs, begun=begun).epochs == 7


@effects.of(TrainingConfig, "batch_size")
def test_batch_size_is_the_number_of_graphs_of_a_step() -> None:
    for size, expected in ((4, [4, 4, 2]), (5, [5, 5]), (100, [10])):
        trainer, module, _ = trained(replace(PLAIN, epochs=1, batch_size=size))
        assert [len(batch) for batch in module.batches] == expected
        assert trainer.state.step == len(expected)


@effects.of(TrainingConfig, "batch_tokens")
def test_batch_tokens_fill_a_step_up_to_this_many() -> None:
    """A graph of n nodes costs n here. Steps hold what fits and no graph more, whatever batch_size says."""
    _, module, _ = trained(replace(PLAIN, epochs=1, batch_size=1, batch_tokens=12))
    sums = [sum(batch) for batch in module.batches]
    assert sum(sums) == 55
    assert max(sums) <= 12
    assert sum(map(len, module.batches)) == 10
    # In the order of the epoch, the first graph of the next step would not have fitted any more.
    order = loop.epoch_steps(torch.arange(10), torch.arange(10) + 1, replace(PLAIN, batch_tokens=12).batching,
                             seed=0, epoch=0, pieces=1)  # fmt: skip
    assert [sorted(sizes) for sizes in module.batches] == [sorted((step[0] + 1).tolist()) for step in order]
    assert len(sums) <= 7  # Two neighbouring steps hold more than 12 together.


@effects.of(TrainingConfig, "accumulate")
def test_accumulated_parts_are_smaller_and_the_step_is_the_same() -> None:
    whole, _, seen = trained(replace(PLAIN, clip=1.0))
    parts, module, cut_up = trained(replace(PLAIN, clip=1.0, accumulate=3))
    assert [len(batch) for batch in module.batches] == [3, 3, 4] * 3
    assert parts.state.step == whole.state.step == 3
    assert cut_up.gradients == pytest.approx(seen.gradients, rel=1e-14)
    assert cut_up.weights == pytest.approx(seen.weights, rel=1e-14)


@effects.of(TrainingConfig, "accumulate")
def test_parts_without_a_graph_add_nothing_to_the_step() -> None:
    """Two graphs in five parts. A part without any runs a graph at weight zero, as a process without any has to."""
    whole, _, seen = trained(PLAIN, data(2))
    parts, module, cut_up = trained(replace(PLAIN, accumulate=5), data(2))
    assert [len(batch) for batch in module.batches] == [1] * 15
    assert cut_up.gradients == pytest.approx(seen.gradients, rel=1e-14)
    assert [record["train_loss"] for record in parts.state.records] == pytest.approx(
        [record["train_loss"] for record in whole.state.records], rel=1e-14
    )


@effects.of(TrainingConfig, "learning_rate")
def test_the_learning_rate_is_the_length_of_the_first_step() -> None:
    """The first step of Adam is the rate times the sign of the gradient; the rest follow its formula."""
    for rate in (0.1, 0.02):
        _, _, watch = trained(replace(PLAIN, learning_rate=rate))
        assert watch.weights[0] == pytest.approx(START - rate, abs=1e-9)
        assert watch.weights == pytest.approx(list(adam([rate] * 3)), rel=1e-12)


@effects.of(TrainingConfig, "forest")
def test_a_forest_stands_beside_the_model_as_asked() -> None:
    """By itself beside a model whose head reads features of molecules alone; these numbers are a table's."""
    store, task = molecule_store(), Task("regression", ("y",))
    numbered = replace(store, graphs=store.graphs.with_graph_features(torch.ones(len(store), 2)))
    found = {wish: is_wanted(TrainingConfig(forest=wish), task, numbered, TokenGTConfig()) for wish in WISHES}
    assert found == {"auto": False, "always": True, "never": False}
    with pytest.raises(ValueError, match=r"training\.forest is 'always', and the data has no numbers"):
        is_wanted(TrainingConfig(forest="always"), task, store, TokenGTConfig())


@effects.of(TrainingConfig, "weight_decay")
def test_weight_decay_shrinks_all_weights_also_those_without_a_gradient() -> None:
    for decay in (0.0, 0.3):
        _, module, watch = trained(replace(PLAIN, weight_decay=decay))
        assert module.idle.item() == pytest.approx(IDLE * (1 - 0.1 * decay) ** 3, rel=1e-14)
        assert watch.weights == pytest.approx(list(adam([0.1] * 3, decay=decay)), rel=1e-12)


@effects.of(TrainingConfig, "beta2")
def test_beta2_is_the_memory_of_squared_gradients() -> None:
    # A large rate, so that the gradients of the three steps differ much.
    results = {}
    for beta2 in (0.999, 0.5):
        _, _, watch = trained(replace(PLAIN, learning_rate=2.0, beta2=beta2))
        assert watch.weights == pytest.approx(list(adam([2.0] * 3, beta2)), rel=1e-12)
        results[beta2] = watch.weights[-1]
    assert abs(results[0.999] - results[0.5]) > 0.1


@effects.of(TrainingConfig, "warmup")
def test_warmup_is_the_share_of_the_training_over_which_the_rate_rises() -> None:
    """Ten steps, each at its middle: 0.05, 0.15, ... of the training."""
    config = replace(PLAIN, epochs=2, batch_size=2, warmup=0.4)
    _, _, watch = trained(config)
    by_hand = [0.0125, 0.0375, 0.0625, 0.0875, *[0.1] * 6]
    assert watch.rates == pytest.approx(by_hand, rel=1e-12)
    assert watch.weights == pytest.approx(list(adam(by_hand)), rel=1e-12)
    assert trained(replace(config, warmup=0.0))[2].rates == [0.1] * 10


@effects.of(TrainingConfig, "schedule")
@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("constant", [0.5, 1, 1, 1, 1]),
        ("linear", [0.5, 0.875, 0.625, 0.375, 0.125]),
        ("cosine", [0.5, *(0.5 + 0.5 * math.cos(math.pi * rest) for rest in (0.125, 0.375, 0.625, 0.875))]),
    ],
)
def test_the_schedule_is_how_the_rate_of_every_step_falls(schedule: Any, shares: list[float]) -> None:
    """Warm-up over the first of five steps."""
    trainer, _, watch = trained(replace(PLAIN, epochs=5, warmup=0.2, schedule=schedule))
    rates = [0.1 * share for share in shares]
    assert watch.rates == pytest.approx(rates, rel=1e-12)
    assert [record["learning_rate"] for record in trainer.state.records] == watch.rates
    assert watch.weights == pytest.approx(list(adam(rates)), rel=1e-12)


@effects.of(TrainingConfig, "clip")
def test_the_gradient_is_cut_down_to_the_norm_of_clip_and_not_touched_below_it() -> None:
    """The gradient at w is 2 w: 6 at the start, and below 5 from the second step on."""
    config = replace(PLAIN, learning_rate=0.6, clip=0.0)
    _, _, free = trained(config)
    assert free.gradients == pytest.approx([2 * w for w in (START, *free.weights[:-1])], rel=1e-14)
    for clip, clipped in ((5.0, [True, False, False]), (0.25, [True, True, True])):
        _, _, watch = trained(replace(config, clip=clip))
        starts = (START, *watch.weights[:-1])
        assert [2 * w > clip for w in starts] == clipped
        # torch's clipping divides by the norm plus 1e-6.
        assert watch.gradients == pytest.approx([min(clip, 2 * w) for w in starts], rel=1e-5)
        assert watch.weights == pytest.approx(list(adam([0.6] * 3, clip=clip)), rel=1e-5)


@effects.of(TrainingConfig, "clip")
def test_the_norm_that_is_clipped_is_that_of_all_weights_together() -> None:
    class Two(OneNumber):
        def forward(self, batch: GraphBatch) -> Tensor:
            return (3 * self.w + 4 * self.idle).expand(batch.num_graphs, 1)

    _, module, _ = trained(replace(PLAIN, epochs=1, clip=0.5), module=Two())
    assert module.w.grad is not None
    assert module.idle.grad is not None
    assert [module.w.grad.item(), module.idle.grad.item()] == pytest.approx([0.3, 0.4], rel=1e-6)


@effects.of(TrainingConfig, "ema")
def test_the_moving_average_is_what_is_validated_and_kept(tmp_path: Path) -> None:
    """w_avg <- d w_avg + (1 - d) w with d = min(ema, (1 + t) / (10 + t)): 1/10, 2/11, then 0.2 instead of 3/12."""
    trainer, module, watch = trained(replace(PLAIN, ema=0.2), data(valid_label=0.0), folder=tmp_path)
    average, averages = START, []
    for decay, w in zip((1 / 10, 2 / 11, 0.2), watch.weights, strict=True):
        average = decay * average + (1 - decay) * w
        averages.append(average)
    # Labels of 0: the error of a constant prediction is that number.
    assert [record["valid"]["rmse"] for record in trainer.state.records] == pytest.approx(averages, rel=1e-12)
    assert [record["valid_loss"] for record in trainer.state.records] == pytest.approx([a**2 for a in averages])
    assert module.w.item() == pytest.approx(average, rel=1e-12)
    assert float(trainer.best["module.w"]) == module.w.item()
    # Training itself goes on with the weights as they are, and so does a run that is resumed.
    assert watch.weights == pytest.approx(list(adam([0.1] * 3)), rel=1e-12)
    last = read_checkpoint(tmp_path / "checkpoints" / "last.safetensors").tensors
    assert float(last["model.module.w"]) == watch.weights[-1]
    assert float(last["average.0"]) == module.w.item()


@effects.of(TrainingConfig, "ema")
def test_without_a_moving_average_the_weights_themselves_are_validated_and_kept() -> None:
    trainer, module, watch = trained(replace(PLAIN, ema=0.0), data(valid_label=0.0))
    assert [record["valid"]["rmse"] for record in trainer.state.records] == pytest.approx(watch.weights, rel=1e-12)
    assert module.w.item() == watch.weights[-1]


@effects.of(TrainingConfig, "patience")
def test_patience_is_how_many_epochs_may_pass_without_a_better_one() -> None:
    """The training labels are 0 and those of validation 2.61: w falls from 3 by 0.1 per epoch; the fourth is best."""
    for patience, epochs in ((0, 12), (1, 5), (4, 8)):
        config = replace(PLAIN, epochs=12, patience=patience)
        trainer, module, watch = trained(config, data(valid_label=2.61))
        assert len(trainer.state.records) == epochs
        assert trainer.state.best_epoch == 4
        assert module.w.item() == watch.weights[3]


class Clock:
    """Stands for the module time: ten seconds pass at every step, and none besides."""

    def __init__(self, watch: type[Watch], monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        advance = watch.advance

        def slow(mine: Watch, epochs: float, graphs: int) -> None:
            self.now += 10.0
            advance(mine, epochs, graphs)

        monkeypatch.setattr(watch, "advance", slow)
        monkeypatch.setattr(loop, "time", self)

    def monotonic(self) -> float:
        return self.now


@effects.of(TrainingConfig, "minutes")
@pytest.mark.parametrize(("minutes", "epochs"), [(0.0, 12), (0.01, 1), (0.5, 3), (0.6, 3), (2.0, 12), (math.inf, 12)])
def test_no_epoch_is_begun_that_would_end_after_the_minutes(
    minutes: float, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every epoch takes ten seconds: three of them fit into 0.6 minutes. Those that ended earlier say so."""
    Clock(Watch, monkeypatch)
    warned: list[str] = []
    trainer, _, _ = trained(replace(PLAIN, epochs=12, minutes=minutes), warn=warned.append)
    assert (trainer.state.epoch, trainer.state.finished) == (epochs, True)
    assert trainer.state.seconds == (10.0 * epochs if minutes else 0.0)
    ended = f"training ends after {epochs} of 12 epochs: another one would end after the {minutes:g} minutes"
    assert [sentence.startswith(ended) for sentence in warned] == [True] * (epochs < 12)


def test_the_rate_falls_over_the_epochs_that_fit_into_the_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long an epoch takes is not known before the first: it has the rate of a training of twelve."""
    Clock(Watch, monkeypatch)
    _, _, watch = trained(replace(PLAIN, epochs=12, minutes=2 / 3, schedule="linear"))
    shares = [1 - 0.5 / 12, 1 - 1.5 / 4, 1 - 2.5 / 4, 1 - 3.5 / 4]
    assert watch.rates == pytest.approx([0.1 * share for share in shares], rel=1e-12)


def test_seconds_go_on_counting_in_a_run_that_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after two of three epochs that fit, a run has the third left (or two, where the checkpoint was late)."""
    Clock(Watch, monkeypatch)
    config = replace(PLAIN, epochs=12, minutes=0.5, checkpoint_seconds=-1.0)

    def power_cut(records: list[dict[str, Any]]) -> None:
        if len(records) == 2:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        trained(config, folder=tmp_path, on_epoch=power_cut)
    watch, fabric = Watch(), make_fabric(DeviceConfig("cpu"), config.precision)
    again = Trainer(fabric, as_model(OneNumber()), data(), TASK, config, progress=watch, folder=tmp_path)
    watch.trainer = again
    assert (again.run(resume=True).epoch, again.state.seconds) == (3, 30.0)
    assert len(watch.rates) < 3


@effects.of(TrainingConfig, "precision")
@pytest.mark.parametrize(
    ("precision", "weights", "products"),
    [
        ("auto", torch.float32, torch.float32),  # On a CPU.
        ("float32", torch.float32, torch.float32),
        ("bfloat16", torch.float32, torch.bfloat16),
        ("float64", torch.float64, torch.float64),
    ],
)
def test_precision_is_that_of_weights_and_of_products(
    precision: Any, weights: torch.dtype, products: torch.dtype
) -> None:
    _, module, _ = trained(replace(PLAIN, epochs=1, precision=precision))
    assert module.w.dtype == weights
    assert module.products == {products}


@effects.of(TrainingConfig, "compile")
@pytest.mark.parametrize("compiled", [True, False])
def test_blocks_are_compiled_as_the_recipe_says(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    """Kernels are asked for where steps can be recorded, which those of a module of one's own cannot."""
    wishes: list[tuple[bool, bool]] = []

    def noted(model: nn.Module, *, device: torch.device, compile: bool, kernels: bool) -> nn.Module:
        wishes.append((compile, kernels))
        return model

    monkeypatch.setattr(loop, "accelerate", noted)
    fabric = make_fabric(DeviceConfig("cpu"), "float32")
    said: list[str] = []
    config = TrainingConfig(epochs=1, compile=compiled)
    subject = Trainer(fabric, as_model(OneNumber()), data(), TASK, config, warn=said.append)
    assert wishes == [(compiled, False)]
    assert ("blocks compiled" in subject.how) == compiled
    # The model came back as it went in, which a person who asked for speed is told.
    assert any("training.compile does nothing for this model" in sentence for sentence in said) == compiled


@effects.of(TrainingConfig, "cuda_graphs")
@pytest.mark.parametrize("graphs", [True, False])
def test_steps_are_recorded_as_the_recipe_says(monkeypatch: pytest.MonkeyPatch, graphs: bool) -> None:
    """Where they can be, which is made so here; and the same weights come out (``test_recorded.py``)."""
    from tests.graphs import random_graph, small_model
    from tests.training.forced import force

    force(monkeypatch)
    batch = GraphBatch.collate([random_graph(5, 4, place) for place in range(12)])
    (fact,) = small_model().config.facts()
    batch = batch.with_fact(fact.name, fact.compute(batch))
    places = torch.arange(12)
    parts = cut(batch, torch.randn(12, 2).double(), "graph", Split(places, places[:0], places[:0]), by_row=False,
                costs=torch.ones(12, dtype=torch.int64))  # fmt: skip
    fabric = make_fabric(DeviceConfig("cpu"), "float32")
    config = TrainingConfig(epochs=3, batch_size=4, cuda_graphs=graphs)
    subject = Trainer(fabric, small_model(), parts, Task("regression", ("a", "b")), config)
    subject.run()
    assert subject.recorded is not None
    # Nine steps, each gradients and update; the first of each kind is run, the second recorded.
    assert subject.recorded.recorder.replays == (16 if graphs else 0)
    assert subject.how.endswith("replayed" if graphs else "training.cuda_graphs is false")


@pytest.mark.parametrize(("strategy", "kernels"), [("auto", True), ("fsdp", False)])
def test_no_row_kernels_where_blocks_lose_their_weights(
    monkeypatch: pytest.MonkeyPatch, strategy: Any, kernels: bool
) -> None:
    """FSDP frees a block's weights before the next block adds its bias."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

    from tests.graphs import small_model

    asked: list[bool] = []

    class Asked(Exception):
        pass

    def noted(model: nn.Module, *, kernels: bool, **_: Any) -> nn.Module:
        asked.append(kernels)
        raise Asked

    monkeypatch.setattr(loop, "accelerate", noted)
    fabric = Fabric(accelerator="cpu", devices=1)
    if strategy == "fsdp":
        sharing = ModelParallelStrategy(lambda model, mesh: model)
        sharing.parallel_devices = [torch.device("cpu")]
        monkeypatch.setattr(fabric, "_strategy", sharing)
    with pytest.raises(Asked):
        Trainer(fabric, small_model(), data(), TASK, TrainingConfig(epochs=1))
    assert asked == [kernels]
    assert not shards_weights(make_fabric(DeviceConfig("cpu"), "float32"))


@effects.of(TrainingConfig, "checkpoint_seconds")
def test_checkpoints_are_written_when_so_many_seconds_have_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes ten seconds by this clock. The eleventh of eleven steps ends the run, which is saved anyway."""
    now, written = [0.0], []

    def ticking(steps: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Trainer, pieces: list[Tensor]) -> Any:
            now[0] += 10
            return steps(self, pieces)

        return step

    def put(self: CheckpointWriter, saved: checkpoint.Checkpoint) -> None:
        written.append(saved.state["step"])
        write(self, saved)
        self.wait()  # The disk is as fast as this clock: it never holds a checkpoint back.

    write = CheckpointWriter.put
    monkeypatch.setattr(loop, "_CLOCK_STEPS", 1)
    for module in (loop, snapshots):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Trainer, "step", ticking(Trainer.step))
    monkeypatch.setattr(CheckpointWriter, "put", put)
    for seconds, steps in ((25.0, [3, 6, 9, 11]), (10.0, [2, 4, 6, 8, 10, 11]), (1e9, [11])):
        written.clear()
        config = replace(PLAIN, epochs=1, batch_size=1, checkpoint_seconds=seconds)
        trained(config, data(11), folder=tmp_path / str(seconds))
        assert written == steps
    assert checkpoint.read_newest(tmp_path / "25.0" / "checkpoints")[0] is not None


@effects.of(TrainingConfig, "metric", "loss")
def test_metric_and_loss_are_those_of_the_task_that_is_trained(tmp_path: Path) -> None:
    def task(**asked: Any) -> Task:
        request = TrainRequest(settings={f"training.{name}": value for name, value in asked.items()})
        return resolve(request, molecule_store(), None, tmp_path, lambda sentence: None)[0].spec.task

    assert (task().metric, task().loss) == ("rmse", "mse")
    assert (task(metric="mae").metric, task(metric="mae").loss) == ("mae", "mse")
    assert (task(loss="huber").metric, task(loss="huber").loss) == ("rmse", "huber")


@effects.of(TrainingConfig, "metric")
def test_the_metric_chooses_the_epoch() -> None:
    """Labels 2.9, 2.9, 2.9 and 0: the absolute error is least at w = 2.9, in epoch 1, the square at the mean, 2.175."""
    parts = data(valid_label=2.9)
    parts.valid.targets[-1] = 0.0
    best = {}
    for metric in ("mae", "rmse"):
        module = OneNumber()
        fabric = make_fabric(DeviceConfig("cpu"), "float64")
        asked = replace(PLAIN, epochs=10, metric=metric)
        best[metric] = Trainer(fabric, as_model(module), parts, replace(TASK, metric=metric), asked).run().best_epoch
        assert module.w.item() == pytest.approx(START - 0.1 * best[metric], abs=0.02)
    assert best == {"mae": 1, "rmse": 8}


@effects.of(TrainingConfig, "loss")
@pytest.mark.parametrize(
    ("loss", "sums"), [("mse", 0.25 + 9), ("mae", 0.5 + 3), ("huber", 0.125 + 2.5), ("quantile", 0.25 + 1.5)]
)
def test_the_loss_by_hand(loss: str, sums: float) -> None:
    """Errors of 0.5 and -3: Huber's is half the square up to 1, and a line of slope 1 from there."""
    task = replace(TASK, loss=loss)
    output, labels = torch.tensor([[0.5], [-2.0]]), torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    assert task.loss_sum(output, labels).item() == pytest.approx(sums)


@effects.of(TrainingConfig, "quantile", "target_weights", "balance")
def test_what_labels_count_is_asked_of_the_task_that_is_trained(tmp_path: Path) -> None:
    store = molecule_store()

    def task(store: Any = store, **asked: Any) -> Task:
        request = TrainRequest(settings={f"training.{name}": value for name, value in asked.items()})
        return resolve(request, store, None, tmp_path, lambda sentence: None)[0].spec.task

    names = len(store.manifest.targets)
    assert task(quantile="0.9").quantile == 0.9
    assert task(target_weights=(2.0,) * names).target_weights == (2.0,) * names
    assert task().class_weights == ()
    with pytest.raises(ValueError, match=rf"target_weights are {names + 1} numbers; expected {names}"):
        task(target_weights=(1.0,) * (names + 1))
    with pytest.raises(ValueError, match="balance lets classes count alike; this task predicts numbers"):
        task(balance="true")
    yes_and_no = replace(store, targets=(torch.arange(len(store)) % 3 == 0).double()[:, None].repeat(1, names))
    balanced = task(yes_and_no, balance="true").class_weights
    # Rows of both classes together count as much as without weights.
    assert len(balanced) == 2 * names
    assert balanced[0] < 1 < balanced[names]


@effects.of(TrainingConfig, "log_targets")
def test_logarithms_are_learned_where_labels_or_a_person_ask_for_them(tmp_path: Path) -> None:
    """Which labels ask for it, and what is then learned, is worked out in test_log_targets.py."""
    store = molecule_store()
    ranks = torch.arange(len(store), dtype=torch.float64)[:, None].repeat(1, len(store.manifest.targets))

    def logged(targets: Tensor, **asked: Any) -> bool:
        request = TrainRequest(settings={f"training.{name}": value for name, value in asked.items()})
        (member,) = resolve(request, replace(store, targets=targets), None, tmp_path, lambda sentence: None)
        return bool(member.spec.task.logged)

    even, skewed = 1 + ranks, ranks.exp()
    assert [logged(even), logged(skewed)] == [False, True]
    assert [logged(even, log_targets="always"), logged(skewed, log_targets="never")] == [True, False]


@effects.of(TrainingConfig, "auxiliary_weight")
def test_auxiliary_numbers_count_by_their_weight(tmp_path: Path) -> None:
    """An error of 1 in the target; of two auxiliary numbers one is off by 2 and the other not known."""
    task = replace(TASK, auxiliary=2, auxiliary_weight=0.25)
    output = torch.tensor([[1.0, 5.0, 7.0]])
    table = torch.tensor([[0.0, 3.0, math.nan]], dtype=torch.float64)
    assert task.loss_sum(output, table).item() == pytest.approx(1 + 0.25 * (4 + 0) / 2)
    assert task.predictions(output).tolist() == [[1.0]]
    assert task.label_count(table) == 1
    asked = TrainRequest(settings={"training.auxiliary_weight": "0.7"}, auxiliary=("rdkit2d",))
    (member,) = resolve(asked, molecule_store(), None, tmp_path, lambda sentence: None)
    assert member.spec.task.auxiliary_weight == 0.7
    assert member.spec.task.auxiliary == member.labels.shape[1] - len(member.spec.task.names) == len(DESCRIPTORS)
    assert member.spec.task.out_dim == len(member.spec.task.names) + len(DESCRIPTORS)


class Tower(nn.Module):
    """w1 w2 w3, the last of them in a head, the first two in pieces: one number for every graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = (nn.Linear(1, 1, bias=False) for _ in range(3))
        for layer in (self.first, self.second, self.head):
            nn.init.ones_(layer.weight)

    def forward(self, batch: GraphBatch) -> Tensor:
        return self.head(self.second(self.first(torch.ones(batch.num_graphs, 1, dtype=self.head.weight.dtype))))


def moved(config: TrainingConfig, steps: int) -> list[list[float]]:
    """How far the weights of each layer, from below, have moved after every step."""
    model = as_model(Tower())
    tower = next(module for module in model.modules() if isinstance(module, Tower))
    # What a model of ours answers by itself.
    model.head, model.pieces = tower.head, lambda: (tower.first, tower.second)  # type: ignore[method-assign]
    seen: list[list[float]] = []

    class Seen(Progress):
        def advance(self, epochs: float, graphs: int) -> None:
            layers = (tower.first, tower.second, tower.head)
            seen.append([abs(1 - layer.weight.item()) for layer in layers])

    fabric = make_fabric(DeviceConfig("cpu"), config.precision)
    Trainer(fabric, model, data(label=0.0), TASK, replace(config, epochs=steps), progress=Seen(1, quiet=True)).run()
    return seen


@effects.of(TrainingConfig, "layer_decay")
def test_deeper_layers_learn_more_slowly() -> None:
    """The first step of Adam moves every weight by its rate, whatever the gradient."""
    assert moved(PLAIN, 1)[0] == pytest.approx([0.1, 0.1, 0.1], rel=1e-6)
    assert moved(replace(PLAIN, layer_decay=0.5), 1)[0] == pytest.approx([0.025, 0.05, 0.1], rel=1e-6)


@effects.of(TrainingConfig, "unfreeze")
def test_layers_begin_to_learn_one_after_another() -> None:
    """Of ten steps, the head learns from the first, the layer below it after a quarter, the lowest after a half."""
    steps = moved(replace(PLAIN, unfreeze=0.5), 10)
    began = [next(place for place, row in enumerate(steps) if row[layer] > 0) for layer in (2, 1, 0)]
    assert began == [0, 2, 5]
    assert steps[0][2] == pytest.approx(0.1, rel=1e-6)
