"""Recorded steps against the plain loop, on a CPU; on a GPU ``recorded_cases.py`` compares them."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.training.forced import Again, force
from tests.training.test_loop import StopAfter, Stopped, parts_of, solubility, trainer, weights
from tests.workflow.small import EXACT
from tokengt import GraphBatch, StructureConfig
from tokengt.data.splits import Split
from tokengt.data.store import Store
from tokengt.models.own import as_model
from tokengt.presets import small
from tokengt.structure import facts as structure_facts
from tokengt.training import loop, recorded
from tokengt.training.config import TrainingConfig
from tokengt.training.loop import Trainer
from tokengt.training.parts import Part, Parts, cut
from tokengt.training.progress import Progress
from tokengt.training.recorded import _with_margin, why_not
from tokengt.training.tasks import Task
from tokengt.training.validation import set_training

GPU = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
Data = tuple[Parts, Task, Store]
# 16 graphs in steps of 5, so that the last of an epoch is short; three steps are worked out at once.
RECIPE = TrainingConfig(
    epochs=2, batch_size=5, learning_rate=3e-3, clip=0.5, precision="float64", checkpoint_seconds=-1.0
)
ORF = {name: value for name, value in EXACT.items() if "identifiers" not in name} | {
    "model.identifiers.kind": "orf",
    "model.identifiers.dim": 6,
}
DIRECTED = {**EXACT, "model.tokens.layout": "directed"}
STRUCTURED = {
    **EXACT,
    "model.structure.walks": 3,
    "model.structure.eigenpairs": 4,
    "model.structure.sign_flip": False,
    "model.structure.degree": True,
}
MASKED = {"model.encoder.incidence": "alternate"}


@pytest.mark.skipif(not GPU, reason="needs a GPU and Triton")
def test_on_a_gpu() -> None:
    """In a process of its own: the tests' type checks do not trace."""
    cases = Path(__file__).with_name("recorded_cases.py")
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", str(cases)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cases.parents[2])
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def data() -> Data:
    return with_facts(parts_of(24, solubility(24), "regression", first=("C", "O", "CCCCCCCCCCCCCCCCCCCC")))


def with_facts(data: Data) -> Data:
    """As ``prepare`` leaves them: eigenvectors and walks are known."""
    parts, _, _ = data
    facts = (*replace(small().identifiers, dim=4).facts(), *StructureConfig(3, 4, degree=True).facts())
    parts.graphs = structure_facts.with_facts(parts.graphs, facts)
    return data


def by_node(data: Data) -> Data:
    """One label per node, some of them missing."""
    _, _, store = data
    targets = torch.randn(store.graphs.num_nodes, 1, generator=torch.Generator().manual_seed(0)).double()
    targets[::7] = torch.nan
    places = torch.arange(len(store.graphs))
    split = Split(places[:16], places[16:20], places[20:])
    parts = cut(store.graphs, targets, "node", split, by_row=False, costs=data[0].costs)
    nodes = Store.from_memory(store.graphs, targets, target_names=("y",), level="node")
    return with_facts((parts, Task.fit("regression", targets, ("y",), None), nodes))


@pytest.fixture(params=[False, True], ids=["segments", "tiles"])
def forced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Steps are recorded from here on; three are worked out at once."""
    monkeypatch.setattr(recorded, "_AT_ONCE", 3)
    monkeypatch.tiled = request.param  # type: ignore[attr-defined]
    return monkeypatch


def run_both(
    patch: pytest.MonkeyPatch, data: Data, config: TrainingConfig, settings: Any = EXACT
) -> tuple[Trainer, Trainer]:
    """The same training by the plain loop, and recorded."""
    plain = trainer(data, config, settings=settings)
    assert plain.recorded is None
    plain.run()
    force(patch, tiled=patch.tiled)  # type: ignore[attr-defined]
    fast = trainer(data, config, settings=settings)
    assert fast.recorded is not None
    fast.run()
    assert fast.recorded.recorder.replays > 0
    return plain, fast


def assert_same(one: Trainer, other: Trainer, tolerance: float = 1e-9) -> None:
    for found, expected in zip(one.state.records, other.state.records, strict=True):
        assert found["learning_rate"] == pytest.approx(expected["learning_rate"], rel=1e-12)
        assert found["train_loss"] == pytest.approx(expected["train_loss"], rel=tolerance)
        assert found["valid_loss"] == pytest.approx(expected["valid_loss"], rel=tolerance)
    assert one.state.best_epoch == other.state.best_epoch
    torch.testing.assert_close(weights(one), weights(other), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({}, EXACT),
        ({"clip": 0.0}, EXACT),
        ({}, {**EXACT, **MASKED}),
        ({"clip": 0.0}, {**DIRECTED, **MASKED}),
        ({"accumulate": 3}, EXACT),
        ({"accumulate": 7}, EXACT),  # More parts than graphs: some are empty.
        ({"ema": 0.9, "accumulate": 2}, EXACT),
        ({"batch_tokens": 60}, EXACT),
        ({"batch_size": 100}, EXACT),
        ({"batch_size": 1}, DIRECTED),
        ({"weight_decay": 0.5, "schedule": "constant"}, DIRECTED),
        ({"accumulate": 2}, ORF),
        ({"accumulate": 2}, STRUCTURED),
        ({}, {**STRUCTURED, **DIRECTED}),
    ],
    ids=[
        "plain",
        "unclipped",
        "masked",
        "masked, directed",
        "three parts",
        "empty parts",
        "average",
        "tokens",
        "one step",
        "one graph",
        "decay",
        "orf",
        "structure",
        "structure, directed",
    ],
)
def test_recorded_steps_are_the_steps_of_the_plain_loop(
    forced: pytest.MonkeyPatch, data: Data, changes: dict[str, Any], settings: Any
) -> None:
    plain, fast = run_both(forced, data, replace(RECIPE, **changes), settings)
    assert_same(fast, plain)


def test_labels_of_nodes(forced: pytest.MonkeyPatch, data: Data) -> None:
    plain, fast = run_both(forced, by_node(data), RECIPE)
    assert_same(fast, plain)


def test_rows_of_one_graph_that_stands_in_every_part(forced: pytest.MonkeyPatch, data: Data) -> None:
    """As in node classification: each part shows other labels of it."""
    _, _, store = by_node(data)
    only = store.graphs.select(torch.tensor([2]))
    alone = Store.from_memory(only, store.targets[-20:], target_names=("y",), level="node")
    assert alone.graphs.num_nodes == 20
    targets = torch.randn(20, 1, dtype=torch.float64)
    rows = torch.arange(20)
    split = Split(rows[::2].clone(), rows[1::4].clone(), rows[3::4].clone())
    parts = cut(alone.graphs, targets, "node", split, by_row=True, costs=torch.tensor([40]))
    task = Task.fit("regression", targets, ("y",), None)
    plain, fast = run_both(forced, with_facts((parts, task, alone)), replace(RECIPE, epochs=4))
    assert_same(fast, plain)


def test_molecules_without_any_bond(forced: pytest.MonkeyPatch) -> None:
    """There is no edge in all of the data, and none in what fills it up; weights of edges decay all the same."""
    atoms = ("C", "O", "N", "S", "F", "Cl", "Br", "I", "P", "B", "[Na+]", "[K+]")
    few = parts_of(12, solubility(12), "regression", first=atoms)
    assert few[0].graphs.num_edges == 0
    plain, fast = run_both(forced, with_facts(few), replace(RECIPE, batch_size=2, weight_decay=0.3))
    assert_same(fast, plain)


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_a_recorded_run_stopped_at_any_step_ends_as_if_it_was_not(
    forced: pytest.MonkeyPatch, data: Data, tmp_path: Path, steps: int
) -> None:
    """Bit for bit: in the middle of steps that were worked out at once, at their end, in another epoch."""
    force(forced, tiled=forced.tiled)  # type: ignore[attr-defined]
    forced.setattr(loop, "_CLOCK_STEPS", 1)
    config = replace(RECIPE, accumulate=2, ema=0.9)
    whole = trainer(data, config, settings=ORF)
    expected = whole.run()
    with pytest.raises(Stopped):
        trainer(data, config, tmp_path, settings=ORF, progress=StopAfter(steps)).run()
    torch.manual_seed(steps)
    again = trainer(data, config, tmp_path, settings=ORF)
    state = again.run(resume=True)
    assert json.dumps(state.records) == json.dumps(expected.records)
    torch.testing.assert_close(weights(again), weights(whole), rtol=0, atol=0)


def test_with_or_without_cuda_graphs_a_run_has_the_same_bits(forced: pytest.MonkeyPatch, data: Data) -> None:
    """With dropout and drop path on, where attention is PyTorch's."""
    force(forced, tiled=forced.tiled)  # type: ignore[attr-defined]
    settings = ORF if forced.tiled else {**ORF, "model.encoder.mlp_dropout": 0.2, "model.encoder.drop_path": 0.2}  # type: ignore[attr-defined]
    runs = []
    for cuda_graphs in (True, False):
        subject = trainer(data, replace(RECIPE, cuda_graphs=cuda_graphs), settings=settings)
        subject.run()
        assert subject.recorded is not None
        assert (subject.recorded.recorder.replays > 0) == cuda_graphs
        runs.append(subject)
    assert json.dumps(runs[0].state.records) == json.dumps(runs[1].state.records)
    torch.testing.assert_close(weights(runs[0]), weights(runs[1]), rtol=0, atol=0)


def test_more_tiles_than_usual_get_more_room(monkeypatch: pytest.MonkeyPatch, data: Data) -> None:
    """Recordings of the room before are freed, and the result is that of the plain loop."""
    config = replace(RECIPE, epochs=4, batch_tokens=70)
    plain = trainer(data, config, settings=EXACT)
    plain.run()
    force(monkeypatch, tiled=True)
    monkeypatch.setattr(recorded, "_with_margin", lambda entries: entries)
    fast = trainer(data, config, settings=EXACT)
    assert fast.recorded is not None
    fast.recorded._room[:] = 0
    clear, cleared = fast.recorded.recorder.clear, []
    monkeypatch.setattr(fast.recorded.recorder, "clear", lambda: cleared.append(fast.recorded._room.copy()) or clear())  # type: ignore[union-attr]
    fast.run()
    grown = cleared[:-1]  # The last time is the end of the run.
    assert len(grown) > 1
    assert all((later >= room).all() and (later > room).any() for room, later in pairwise(grown))
    assert_same(fast, plain)


def test_room_has_a_margin_as_counts_have() -> None:
    entries = np.array([0, 1, 15, 100, 5000])
    room = _with_margin(entries)
    assert room.tolist() == [0, 16, 32, 144, 5280]


class Seen(Progress):
    """Asks for numbers at every step."""

    wants_numbers = True

    def __init__(self) -> None:
        super().__init__(1, quiet=True)
        self.losses: list[str] = []

    def show(self, **notes: str) -> None:
        self.losses.append(notes["loss"])


def test_the_loss_of_every_step_is_shown(forced: pytest.MonkeyPatch, data: Data) -> None:
    shown = []
    for recording in (False, True):
        if recording:
            force(forced, tiled=forced.tiled)  # type: ignore[attr-defined]
        trainer(data, RECIPE, settings=EXACT, progress=(seen := Seen())).run()
        shown.append(seen.losses)
    assert len(shown[0]) == 8
    assert shown[0] == shown[1]


def test_evaluation_gets_the_memory_that_recordings_hold(monkeypatch: pytest.MonkeyPatch, data: Data) -> None:
    force(monkeypatch)
    subject = trainer(data, replace(RECIPE, epochs=1), settings=EXACT)
    assert subject.recorded is not None
    recorder = subject.recorded.recorder
    expected = subject.outputs(subject.parts.valid)
    for _ in range(2):
        recorder.run("a", lambda: None)
    forward = type(subject.model).forward

    def full(self: Any, *given: Any, **more: Any) -> Tensor:
        if recorder.holds_memory:
            raise torch.OutOfMemoryError("no memory left")
        return forward(self, *given, **more)

    monkeypatch.setattr(type(subject.model), "forward", full)
    with pytest.warns(UserWarning, match="goes on without CUDA graphs, slower: no memory left"):
        assert torch.equal(subject.outputs(subject.parts.valid), expected)

    def always(self: Any, *_: Any) -> Tensor:
        raise torch.OutOfMemoryError("none at all")

    monkeypatch.setattr(type(subject.model), "forward", always)
    with pytest.raises(torch.OutOfMemoryError, match="none at all"):
        subject.outputs(subject.parts.valid)
    monkeypatch.undo()
    with pytest.MonkeyPatch.context() as other:
        other.setattr(type(subject.model), "forward", always)
        with pytest.raises(torch.OutOfMemoryError, match="none at all"):
            trainer(data, RECIPE, settings=EXACT).outputs(subject.parts.valid)


def test_a_step_that_finds_no_memory_is_taken_again(monkeypatch: pytest.MonkeyPatch, data: Data) -> None:
    """In the middle of an epoch, in a frame that has no recording: the run ends with the same bits."""
    force(monkeypatch)
    settings = {**ORF, "model.encoder.mlp_dropout": 0.2}
    whole = trainer(data, replace(RECIPE, batch_tokens=60), settings=settings)
    whole.run()
    subject = trainer(data, replace(RECIPE, batch_tokens=60), settings=settings)
    assert subject.recorded is not None
    recorder, loss_sum = subject.recorded.recorder, Task.loss_sum

    def full(self: Task, output: Tensor, targets: Tensor) -> Tensor:
        if recorder.holds_memory and not replaying and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("no memory left")
        return loss_sum(self, output, targets)

    replaying: list[bool] = []
    replay = Again.replay
    monkeypatch.setattr(Again, "replay", lambda self: (replaying.append(True), replay(self), replaying.clear()))
    monkeypatch.setattr(Task, "loss_sum", full)
    with pytest.warns(UserWarning, match="goes on without CUDA graphs, slower: no memory left"):
        subject.run()
    assert not recorder.holds_memory
    assert json.dumps(subject.state.records) == json.dumps(whole.state.records)
    torch.testing.assert_close(weights(subject), weights(whole), rtol=0, atol=0)


def test_recordings_are_freed_when_training_ends(monkeypatch: pytest.MonkeyPatch, data: Data) -> None:
    force(monkeypatch)
    subject = trainer(data, RECIPE, settings=EXACT)
    subject.run()
    assert subject.recorded is not None
    assert subject.recorded.recorder.replays > 0
    assert not subject.recorded.recorder.holds_memory


def test_rounded_weights_learn_as_under_autocast(monkeypatch: pytest.MonkeyPatch, data: Data) -> None:
    """Matrices are rounded once per step and not at every use; also where two layers share one."""
    from lightning_fabric import Fabric

    from tests.training.test_loop import _of_the_model
    from tokengt import TokenGT
    from tokengt.config import override

    parts, task, store = data

    def subject() -> Trainer:
        torch.manual_seed(1)
        model = TokenGT(
            override(small().fit(store, 1), _of_the_model({**EXACT, "model.encoder.num_layers": 2}), "model")
        )
        first, second = model.encoder.blocks
        second.mlp.up.weight = first.mlp.up.weight  # type: ignore[union-attr]
        fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
        fabric.launch()
        return Trainer(fabric, model, parts, task, replace(RECIPE, precision="bfloat16", clip=0.0))

    plain = subject()
    set_training(plain.forward, plain.model)
    steps = plain._steps_of(0)[:1]
    list(plain.take(steps, [1e-3]))
    force(monkeypatch)
    fast = subject()
    set_training(fast.forward, fast.model)
    list(fast.take(steps, [1e-3]))
    assert fast.recorded is not None
    assert len(fast.recorded._rounded.weights) == len({id(w) for w in fast.recorded._rounded.weights.values()}) + 1
    for one, other in zip(fast.parameters, plain.parameters, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        error = float((one.grad - other.grad).norm())
        assert error <= 0.03 * max(float(other.grad.norm()), 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2])
def test_two_processes_take_the_steps_of_one(data: Data, processes: int, tmp_path: Path) -> None:
    script = Path(__file__).with_name("recorded_processes.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run([*command, str(script), str(tmp_path)], capture_output=True, text=True, cwd=script.parents[2])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    alone, together = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("plain", "recorded"))
    assert len(alone["losses"]) == 4
    assert together["losses"] == pytest.approx(alone["losses"], rel=1e-9)
    assert together["weights"] == pytest.approx(alone["weights"], rel=1e-9, abs=1e-9)


def test_why_steps_are_not_recorded(data: Data) -> None:
    subject = trainer(data, RECIPE, settings=EXACT)
    assert subject.recorded is None
    assert subject.how.endswith("no CUDA graphs because there is no GPU")
    assert "5 graphs per step in float64, nothing compiled" in subject.how

    class Gpu:
        device = torch.device("cuda")

    def reason(model: Any = subject.model, parts: Parts = subject.parts) -> str | None:
        return why_not(model, parts, Gpu())

    # The data here lies in the memory of the host, which is the reason when there is no other before it.
    assert reason() == "the data is larger than half of the GPU's memory"
    own = as_model(nn.Linear(2, 2))
    assert reason(own) == f"a step of {type(own).__name__} with these settings differs from the next"
    favor = trainer(data, RECIPE, settings={**EXACT, "model.encoder.attention.kind": "favor"})
    assert reason(favor.model) == "a step of TokenGT with these settings differs from the next"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GraphBatch, "device", torch.device("cuda"))
        assert reason() is None
        empty = replace(subject.parts, train=Part(torch.arange(0), subject.parts.train.targets))
        assert reason(parts=empty) == "there is nothing to train on"
        bare = replace(subject.parts, graphs=replace(subject.parts.graphs, facts={}))
        assert reason(parts=bare) == "the graphs come without facts that the model needs"
        pairs = subject.parts.graphs.with_fact(
            "steps", torch.zeros(subject.parts.graphs.nodes.pairs.total, 1), per="pair"
        )
        assert (
            reason(parts=replace(subject.parts, graphs=pairs))
            == "the graphs have hyperedges, sparse features, or facts of pairs of nodes"
        )
        subject.model.head.project.weight.device_mesh = None  # type: ignore[union-attr]
        assert reason() == "the weights lie in pieces on several GPUs"


def test_how_steps_are_taken_is_said(monkeypatch: pytest.MonkeyPatch, data: Data) -> None:
    force(monkeypatch)
    config = replace(RECIPE, batch_tokens=6000)
    assert trainer(data, config, settings=EXACT).how.endswith("whole steps recorded as CUDA graphs and replayed")
    assert "6,000 tokens per step" in trainer(data, config, settings=EXACT).how
    slow = trainer(data, replace(config, cuda_graphs=False), settings=EXACT)
    assert slow.how.endswith("no CUDA graphs because training.cuda_graphs is false")
    monkeypatch.setattr(recorded.RecordedSteps, "applies", False)
    other = trainer(data, config, settings=EXACT)
    assert other.recorded is None
    assert other.how.endswith("no CUDA graphs because PyTorch attends to graphs as large as these")


def with_descriptors(data: Data) -> Data:
    """Three numbers about every graph, which the head reads."""
    parts, task, store = data
    numbers = torch.randn(len(store.graphs), 3, generator=torch.Generator().manual_seed(1))
    graphs = parts.graphs.with_graph_features(numbers)
    return replace(parts, graphs=graphs), task, replace(store, graphs=graphs)


def test_what_the_head_reads_of_whole_graphs_is_recorded_too(forced: pytest.MonkeyPatch, data: Data) -> None:
    settings = {
        **EXACT,
        "model.descriptors.kind": "head",
        "model.descriptors.feature_dropout": 0.0,
        "model.descriptors.dropout": 0.0,
    }
    plain, fast = run_both(forced, with_descriptors(data), RECIPE, settings)
    assert_same(fast, plain)
    (reader,) = [part for name, part in plain.model.named_modules() if name == "head.descriptors"]
    assert all(bool(weight.grad is not None) for weight in reader.parameters())
