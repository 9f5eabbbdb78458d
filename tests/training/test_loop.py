"""The training loop: what it learns, what it keeps, and that it can be stopped anywhere."""

import json
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from tests.training.test_settings import PLAIN, OneNumber, trained
from tests.training.test_settings import data as numbers
from tests.workflow.small import EXACT, TINY, molecules
from tokengt import GraphBatch, TokenGT
from tokengt.config import override
from tokengt.data.splits import Split
from tokengt.data.store import Store
from tokengt.interop.smiles import from_smiles
from tokengt.presets import small
from tokengt.training import checkpoint, loop
from tokengt.training.checkpoint import read_newest
from tokengt.training.config import TrainingConfig
from tokengt.training.loop import Trainer, step_seeds
from tokengt.training.parts import Parts, cut
from tokengt.training.progress import Progress
from tokengt.training.snapshots import State
from tokengt.training.stopping import stopping
from tokengt.training.tasks import Task, TaskKind
from tokengt.training.validation import is_better

RECIPE = TrainingConfig(epochs=2, batch_tokens=60, accumulate=2, ema=0.9, checkpoint_seconds=-1.0, clip=0.5)


class Stopped(Exception):
    """Stands for a machine that lost its power."""


class StopAfter(Progress):
    """Ends the training in the middle of a step's bookkeeping."""

    def __init__(self, steps: int) -> None:
        super().__init__(1, quiet=True)
        self.left = steps

    def advance(self, epochs: float, graphs: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise Stopped


def parts_of(
    count: int, targets: Tensor, kind: TaskKind, split: Split | None = None, first: tuple[str, ...] = ()
) -> tuple[Parts, Task, Store]:
    texts = [*first, *molecules(count)[0][len(first) :]]
    graphs = GraphBatch.collate([from_smiles(text) for text in texts])
    store = Store.from_memory(graphs, targets, target_names=("y",), texts=texts)
    places = torch.arange(count)
    split = split or Split(places[: count - 8], places[count - 8 : count - 4], places[count - 4 :])
    task = Task.fit(kind, targets[split.train], ("y",), None)
    costs = TokenGT(small()).costs(store.graphs)
    return cut(store.graphs, store.targets, "graph", split, by_row=False, costs=costs), task, store


def solubility(count: int) -> Tensor:
    return torch.tensor(molecules(count)[1], dtype=torch.float64)[:, None]


def trainer(
    data: tuple[Parts, Task, Store],
    config: TrainingConfig,
    folder: Path | None = None,
    settings: Mapping[str, Any] = TINY,
    **more: Any,
) -> Trainer:
    parts, task, store = data
    model_config = override(small().fit(store, task.out_dim), _of_the_model(settings), "model")
    torch.manual_seed(1)
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    return Trainer(fabric, TokenGT(model_config), parts, task, config, folder=folder, **more)


def _of_the_model(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("model."): value for name, value in settings.items() if name.startswith("model.")}


def weights(of: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in of.model.state_dict().items()}


@pytest.fixture(scope="module")
def data() -> tuple[Parts, Task, Store]:
    return parts_of(24, solubility(24), "regression")


def test_a_run_stopped_at_any_step_ends_as_if_it_was_not(
    data: tuple[Parts, Task, Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_CLOCK_STEPS", 1)
    whole = trainer(data, RECIPE)
    expected = whole.run()
    assert expected.step >= 10
    for steps in range(0, expected.step, 6):
        folder = tmp_path / str(steps)
        with pytest.raises(Stopped):
            trainer(data, RECIPE, folder, progress=StopAfter(steps)).run()
        torch.manual_seed(steps)  # The generator of the new process may be in any state.
        again = trainer(data, RECIPE, folder)
        state = again.run(resume=True)
        assert json.dumps(state.records) == json.dumps(expected.records)
        assert state.best_epoch == expected.best_epoch
        for name, tensor in weights(whole).items():
            torch.testing.assert_close(again.model.state_dict()[name], tensor, rtol=0, atol=0)


def test_a_finished_run_is_not_trained_again(data: tuple[Parts, Task, Store], tmp_path: Path) -> None:
    first = trainer(data, RECIPE, tmp_path)
    expected = first.run()
    again = trainer(data, RECIPE, tmp_path, progress=StopAfter(0))
    assert again.run(resume=True) == expected
    torch.testing.assert_close(weights(again), weights(first), rtol=0, atol=0)


def test_other_settings_do_not_go_on_with_a_checkpoint(data: tuple[Parts, Task, Store], tmp_path: Path) -> None:
    trainer(data, RECIPE, tmp_path, fingerprint="a").run()
    with pytest.raises(ValueError, match="other data or settings"):
        trainer(data, RECIPE, tmp_path, fingerprint="b").run(resume=True)


def test_another_number_of_threads_is_said(
    data: tuple[Parts, Task, Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer(data, RECIPE, tmp_path).run()
    warnings: list[str] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    trainer(data, RECIPE, tmp_path, warn=warnings.append).run(resume=True)
    assert any("threads was 1 and is 5" in sentence for sentence in warnings)


def test_torn_checkpoints_are_named_and_training_begins_anew(data: tuple[Parts, Task, Store], tmp_path: Path) -> None:
    first = trainer(data, RECIPE, tmp_path)
    expected = first.run()
    for file in (tmp_path / "checkpoints").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    warnings: list[str] = []
    again = trainer(data, RECIPE, tmp_path, warn=warnings.append)
    assert again.run(resume=True).records == expected.records
    assert len([sentence for sentence in warnings if "starting anew" in sentence]) == 2


def test_stopped_again_while_writing_a_torn_checkpoint_anew_the_whole_one_is_left(
    data: tuple[Parts, Task, Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_CLOCK_STEPS", 1)
    with pytest.raises(Stopped):
        trainer(data, RECIPE, tmp_path, progress=StopAfter(5)).run()
    folder = tmp_path / "checkpoints"
    (folder / "last.safetensors").write_bytes(b"torn")
    before, _ = read_newest(folder)
    assert before is not None

    def stop(*_: object) -> None:
        raise Stopped

    monkeypatch.setattr(checkpoint, "write_whole", stop)
    with pytest.raises(Stopped):
        trainer(data, RECIPE, tmp_path).run(resume=True)
    after, _ = read_newest(folder)
    assert after is not None
    assert after.state == before.state


def test_a_model_learns_twenty_molecules_by_heart() -> None:
    data = parts_of(20, solubility(20), "regression", Split(torch.arange(20), *[torch.arange(0)] * 2))
    config = TrainingConfig(epochs=60, batch_size=10, learning_rate=5e-3)
    records = trainer(data, config, settings=EXACT).run().records
    assert records[-1]["train_loss"] < records[0]["train_loss"] / 20


def test_training_draws_leave_the_callers_generator_alone(data: tuple[Parts, Task, Store]) -> None:
    subject = trainer(data, replace(RECIPE, epochs=1))
    torch.manual_seed(3)
    subject.run()
    drawn = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(3))


def test_the_best_epoch_is_kept_and_patience_ends_training(data: tuple[Parts, Task, Store]) -> None:
    config = TrainingConfig(epochs=40, batch_size=8, learning_rate=0.02, patience=3)
    subject = trainer(data, config)
    state = subject.run()
    values = [record["valid"]["rmse"] for record in state.records]
    assert state.best_value == min(values)
    assert state.best_epoch == values.index(min(values)) + 1
    assert len(values) == state.best_epoch + 3 < 40
    output = subject.outputs(subject.parts.valid)
    errors = data[1].predictions(output) - data[2].targets[subject.parts.valid.places]
    assert float(errors.square().mean().sqrt()) == pytest.approx(min(values), rel=1e-6)


def test_without_a_metric_to_choose_by_the_first_epoch_is_not_kept() -> None:
    """All validation labels are of one class: ROC AUC is undefined in every epoch, the loss is not."""
    labels = torch.tensor([[0.0], [1.0]] * 8 + [[1.0]] * 4 + [[0.0], [1.0]] * 2, dtype=torch.float64)
    state = trainer(parts_of(24, labels, "binary"), TrainingConfig(epochs=4)).run()
    losses = [record["valid_loss"] for record in state.records]
    assert losses.index(min(losses)) > 0
    assert state.best_epoch in (losses.index(min(losses)) + 1, 4)


def test_without_a_validation_part_the_last_epoch_is_kept() -> None:
    places = torch.arange(16)
    data = parts_of(16, solubility(16), "regression", Split(places, places[:0], places[:0]))
    state = trainer(data, TrainingConfig(epochs=3, patience=1)).run()
    assert state.best_epoch == len(state.records) == 3
    assert "valid" not in state.records[0]


def test_a_loss_that_is_no_number_ends_training_with_a_sentence(data: tuple[Parts, Task, Store]) -> None:
    config = TrainingConfig(epochs=30, batch_size=4, learning_rate=1e25, clip=0.0, warmup=0.0)
    with pytest.raises(ValueError, match=r"the training loss became .*; lower training\.learning_rate"):
        trainer(data, config).run()


def one_seed(seed: int, step: int, rank: int) -> int:
    (only,) = step_seeds(seed, step, 1, rank)
    return only


def test_step_seeds_differ_by_every_part_of_their_key() -> None:
    keys = [(seed, step, rank) for seed in (0, 1, 2**40) for step in range(20) for rank in range(3)]
    seeds = [one_seed(*key) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeds == [one_seed(*key) for key in keys]
    assert step_seeds(1, 5, 3, 2) == [one_seed(1, step, 2) for step in (5, 6, 7)]


def test_a_state_survives_json() -> None:
    state = State(epoch=2, loss_sum=0.1, best_value=1 / 3, records=[{"train_loss": 2 / 3}])
    assert State(**json.loads(json.dumps(vars(state)))) == state


def test_a_step_without_bonds_decays_the_edge_encoder() -> None:
    """As it does with several processes, where another one may have bonds."""
    data = parts_of(24, solubility(24), "regression", first=("C", "O", "N"))
    training = trainer(data, TrainingConfig(epochs=1, batch_size=3, learning_rate=0.1, weight_decay=0.5))
    table = training.model.tokenizer.edge_encoder.table
    assert table is not None
    before = table.weight.detach().clone()
    assert before.abs().min() > 0
    training.model.train()
    training.step([torch.arange(3)])
    torch.testing.assert_close(table.weight.detach(), before * (1 - 0.1 * 0.5))


class Noisy(OneNumber):
    """Notes in which mode it is called, and what chance gives it there."""

    def __init__(self) -> None:
        super().__init__()
        self.modes: list[bool] = []
        self.drawn: list[float] = []

    def forward(self, batch: GraphBatch) -> Tensor:
        self.modes.append(self.training)
        if self.training:
            self.drawn.append(torch.rand(()).item())
        return super().forward(batch)


def test_chance_is_a_function_of_the_seed_and_the_step() -> None:
    """Dropout masks and draws would otherwise repeat at every step, or depend on what was drawn before."""

    def drawn_after(key: int) -> float:
        return torch.rand((), generator=torch.Generator().manual_seed(key)).item()

    for seed in (0, 5):
        _, module, _ = trained(replace(PLAIN, batch_size=4), module=(noisy := Noisy()), seed=seed)
        assert module is noisy
        assert noisy.drawn == [drawn_after(one_seed(seed, step, 0)) for step in range(9)]


def test_every_epoch_has_an_order_of_its_own_by_the_seed() -> None:
    config = replace(PLAIN, batch_size=4)
    orders = {}
    for seed in (0, 5):
        _, module, _ = trained(config, seed=seed)
        expected = [
            sorted((step[0] + 1).tolist())
            for epoch in range(3)
            for step in loop.epoch_steps(
                torch.arange(10), torch.arange(10), config.batching, seed=seed, epoch=epoch, pieces=1
            )
        ]
        assert [sorted(batch) for batch in module.batches] == expected
        assert expected[:3] != expected[3:6] != expected[6:]
        orders[seed] = expected
    assert orders[0] != orders[5]


def test_the_training_loss_of_an_epoch_is_the_mean_over_its_own_labels() -> None:
    """Steps of 4, 4 and 2 graphs whose label is 0: the loss of each is w^2, before the step."""
    parts = numbers()
    parts.train.targets[3] = torch.nan  # A missing label counts for nothing.
    trainer, module, watch = trained(replace(PLAIN, batch_size=4), parts)
    before = [3.0, *watch.weights[:-1]]
    labels = [sum(nodes != 4 for nodes in batch) for batch in module.batches]
    for epoch, record in enumerate(trainer.state.records):
        at = slice(3 * epoch, 3 * epoch + 3)
        summed = sum(count * w**2 for count, w in zip(labels[at], before[at], strict=True))
        assert sum(labels[at]) == 9
        assert record["train_loss"] == pytest.approx(summed / 9, rel=1e-12)


def test_steps_are_taken_in_training_mode_and_validation_is_not() -> None:
    """Also after the first validation: without dropout from then on, training would go on silently."""
    trainer, _, _ = trained(replace(PLAIN, batch_size=5, epochs=2), numbers(valid_label=1.0), module=(noisy := Noisy()))
    assert noisy.modes == [True, True, False] * 2
    trainer.outputs(trainer.parts.valid)
    assert noisy.modes[-1] is False


@pytest.mark.parametrize(
    ("names", "value", "loss", "better"),
    [
        (("a",), 0.9, 2.0, True),  # The metric decides,
        (("a",), 1.1, 0.5, False),
        (("a",), 1.0, 0.9, True),  # and the loss where it ties.
        (("a",), 1.0, 1.0, False),
        (("a",), float("nan"), 0.5, False),
        (("a", "b"), 0.9, 2.0, False),  # The mean error of several targets is that of the largest numbers.
        (("a", "b"), 1.1, 0.9, True),
        (("a", "b"), 1.1, 1.0, False),
        (("a",), None, None, True),  # Nothing to validate with: the last epoch is kept.
    ],
)
def test_which_epoch_is_better(names: tuple[str, ...], value: float | None, loss: float | None, better: bool) -> None:
    """Compared with a best epoch of metric 1 and loss 1."""
    assert is_better(Task("regression", names), value, loss, 1.0, 1.0, asked=False) == better


@pytest.mark.parametrize(("metric", "best"), [("rmse", min), ("spearman", max), ("r2", max), ("mae", min)])
def test_the_metric_that_was_asked_for_chooses_the_epoch(
    data: tuple[Parts, Task, Store], metric: str, best: Callable[..., int]
) -> None:
    parts, task, store = data
    config = replace(RECIPE, epochs=4, learning_rate=0.02, metric=metric)
    state = trainer((parts, replace(task, metric=metric), store), config).run()
    values = [record["valid"][metric] for record in state.records]
    assert len(set(values)) > 1
    assert state.best_value == values[state.best_epoch - 1] == best(values)


@pytest.mark.parametrize("asked", [False, True])
def test_of_several_numbers_the_loss_chooses_unless_a_metric_is_asked_for(asked: bool) -> None:
    task = Task("regression", ("a", "b"))
    assert is_better(task, 0.9, 0.6, 1.0, 0.5, asked=asked) == asked
    assert is_better(task, 1.1, 0.4, 1.0, 0.5, asked=asked) != asked


def test_an_undefined_metric_is_said_and_the_loss_chooses() -> None:
    """The four validation molecules are all of one class."""
    labels = torch.tensor([[float(place % 2)] for place in range(24)], dtype=torch.float64)
    labels[16:20] = 1
    said: list[str] = []
    config = replace(RECIPE, epochs=3, learning_rate=0.01)
    state = trainer(parts_of(24, labels, "binary"), config, warn=said.append).run()
    losses = [record["valid_loss"] for record in state.records]
    assert state.best_epoch - 1 == losses.index(min(losses))
    assert [sentence for sentence in said if "roc_auc is not defined on the validation part" in sentence] == said
    assert len(said) == 1


class Normed(OneNumber):
    """Batch norm of the number of nodes, which w multiplies."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1, momentum=None).requires_grad_(not frozen)

    def forward(self, batch: GraphBatch) -> Tensor:
        out: Tensor = self.w * self.norm(batch.nodes.lengths[:, None].to(self.w.dtype))
        return out


@pytest.mark.parametrize("frozen", [False, True])
def test_batch_norm_learns_its_moments_in_training_unless_it_is_frozen(frozen: bool) -> None:
    """Ten graphs of 1 to 10 nodes: the mean is 5.5, also of the batches that validation does not see."""
    module = Normed(frozen)
    trained(replace(PLAIN, epochs=1), numbers(valid_label=1.0), module=module)
    assert module.norm.running_mean is not None
    assert module.norm.running_mean.item() == (0.0 if frozen else pytest.approx(5.5))


class CtrlCAfter(Progress):
    """Presses Ctrl-C when so many steps are done; ``told`` as the last thing of their epoch."""

    def __init__(self, steps: int, told: bool) -> None:
        super().__init__(1, quiet=True)
        self.left, self.told = steps, told

    def advance(self, share: float, graphs: int) -> None:
        self.left -= 1
        if self.left == 0 and not self.told:
            signal.raise_signal(signal.SIGINT)

    def epoch(self, epoch: int, finished: bool, **notes: str) -> None:
        if self.left == 0 and self.told:
            signal.raise_signal(signal.SIGINT)


# Inside an epoch, at an epoch's end, at the end of all.
@pytest.mark.parametrize(("steps", "told"), [(2, False), (4, False), (4, True), (12, False)])
def test_ctrl_c_writes_down_what_is_done_and_the_run_goes_on_exactly(
    data: tuple[Parts, Task, Store], tmp_path: Path, steps: int, told: bool
) -> None:
    config = replace(RECIPE, batch_tokens=0, batch_size=4, accumulate=1, epochs=3, checkpoint_seconds=1e9)
    whole = trainer(data, config)
    expected = whole.run()
    assert expected.step == 12
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            trainer(data, config, tmp_path, progress=CtrlCAfter(steps, told)).run()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    saved, _ = read_newest(tmp_path / "checkpoints")
    assert saved is not None
    assert saved.state["step"] == steps
    again = trainer(data, config, tmp_path)
    assert json.dumps(again.run(resume=True).records) == json.dumps(expected.records)
    torch.testing.assert_close(weights(again), weights(whole), rtol=0, atol=0)


def test_a_second_ctrl_c_stops_at_once() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with stopping() as stop:
            signal.raise_signal(signal.SIGINT)
            assert stop.asked
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
