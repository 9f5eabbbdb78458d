"""What recorded training steps must do on a GPU with Triton: ``pytest --noconftest -c /dev/null`` runs it there."""

import copy
import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tokengt import (
    EncoderConfig,
    FeatureSpec,
    Graph,
    GraphBatch,
    HeadConfig,
    LaplacianIds,
    OrfIds,
    StructureConfig,
    TokenGT,
    TokenGTConfig,
    TokensConfig,
)
from tokengt.attention import SoftmaxConfig
from tokengt.data.splits import Split
from tokengt.level import Level
from tokengt.models.tokengt.heads import HeadDescriptors
from tokengt.structure.facts import with_facts
from tokengt.training import loop, recorded
from tokengt.training.config import TrainingConfig
from tokengt.training.loop import Trainer
from tokengt.training.parts import Parts, cut
from tokengt.training.processes import DeviceConfig, make_fabric
from tokengt.training.progress import Progress
from tokengt.training.tasks import Task
from tokengt.training.validation import set_training

TASK = Task("regression", ("y",))
COUNT, TRAINED = 176, 160
# Ten steps per epoch: forty in all.
RECIPE = TrainingConfig(epochs=4, batch_size=16, learning_rate=2e-3, checkpoint_seconds=-1.0)
NODES = FeatureSpec(categories=(5, 3))
IDS = LaplacianIds(dim=8, dropout=0.1)
# Chance everywhere: in attention, in the MLP, in both branches, at the input.
ENCODER = EncoderConfig(
    num_layers=3,
    num_heads=4,
    mlp_dim=96,
    attention=SoftmaxConfig(dropout=0.1),
    mlp_dropout=0.1,
    residual_dropout=0.1,
    input_dropout=0.1,
    drop_path=0.2,
    input_norm=True,
)
MODEL = TokenGTConfig(
    dim=64,
    tokens=TokensConfig(node_features=NODES, edge_features=FeatureSpec(categories=(4,)), layout="undirected"),
    identifiers=IDS,
    encoder=ENCODER,
)
# The same without chance, to be compared with other code.
EXACT = replace(
    MODEL,
    identifiers=replace(IDS, dropout=0.0, sign_flip=False),
    encoder=replace(
        ENCODER,
        attention=SoftmaxConfig(),
        mlp_dropout=0.0,
        residual_dropout=0.0,
        input_dropout=0.0,
        drop_path=0.0,
    ),
)
DIRECTED = replace(MODEL, tokens=replace(MODEL.tokens, layout="directed"))
STRUCTURED = replace(MODEL, structure=StructureConfig(walks=6, eigenpairs=5, rings=8, degree=True))


DESCRIBED = replace(
    MODEL, tokens=replace(MODEL.tokens, graph_features=FeatureSpec(width=3)), descriptors=HeadDescriptors(width=8)
)


def ring_with_chords(nodes: int, generator: torch.Generator) -> Graph:
    """Both directions of every edge, with the same category."""
    chords = torch.randint(nodes, (2, nodes // 3), generator=generator)
    around = torch.stack([torch.arange(nodes), torch.arange(nodes).roll(1)])
    one_way = torch.cat([around, chords], 1)
    one_way = torch.unique(torch.stack([one_way.amin(0), one_way.amax(0)]), dim=1)
    one_way = one_way[:, one_way[0] != one_way[1]]
    kinds = torch.randint(4, (one_way.shape[1], 1), generator=generator)
    columns = [torch.randint(size, (nodes,), generator=generator) for size in NODES.categories]
    return Graph(torch.stack(columns, 1), torch.cat([one_way, one_way.flip(0)], 1), torch.cat([kinds, kinds]))


def make_parts(level: Level = "graph", *, large: int = 0, described: bool = False) -> Parts:
    """Graphs of 1 to 30 nodes, and ``large`` ones of 150; some labels are missing.

    ``described``: there are three numbers about every graph as a whole.
    """
    generator = torch.Generator().manual_seed(7)
    sizes = torch.randint(1, 31, (COUNT,), generator=generator).tolist()
    sizes[:large] = [150] * large
    graphs = GraphBatch.collate([ring_with_chords(size, generator) for size in sizes])
    graphs = with_facts(graphs, STRUCTURED.facts())
    if described:
        graphs = graphs.with_graph_features(torch.randn(COUNT, 3, generator=generator))
    rows = {"graph": COUNT, "node": graphs.num_nodes, "edge": graphs.num_edges}[level]
    targets = torch.randn(rows, 1, generator=generator, dtype=torch.float64)
    targets[::9] = torch.nan
    places = torch.arange(COUNT)
    split = Split(places[:TRAINED], places[TRAINED:], places[:0])
    costs = TokenGT(MODEL).costs(graphs)
    return cut(graphs, targets, level, split, by_row=False, costs=costs)


def make(
    config: TrainingConfig = RECIPE,
    model: TokenGTConfig = MODEL,
    parts: Parts | None = None,
    fabric: Any = None,
    **more: Any,
) -> Trainer:
    torch.manual_seed(3)
    fabric = fabric or make_fabric(DeviceConfig("cuda"), config.precision)
    return Trainer(fabric, TokenGT(model), parts or make_parts(), TASK, config, seed=5, **more)


def finished(subject: Trainer, *, resume: bool = False) -> Trainer:
    subject.run(resume)
    return subject


def recording(subject: Trainer) -> recorded.RecordedSteps:
    assert subject.recorded is not None, subject.how
    return subject.recorded


def assert_same_bits(one: Trainer, other: Trainer) -> None:
    first, second = one.model.state_dict(), other.model.state_dict()
    differ = {name: float((first[name] - second[name]).abs().max()) for name in first}
    assert not any(differ.values()), {name: by for name, by in differ.items() if by}
    assert json.dumps(one.state.records) == json.dumps(other.state.records)


def of_level(level: Level, layout: Any = "undirected") -> TokenGTConfig:
    return replace(MODEL, head=HeadConfig(level=level), tokens=replace(MODEL.tokens, layout=layout))


def masked(model: TokenGTConfig) -> TokenGTConfig:
    return replace(model, encoder=replace(model.encoder, incidence="alternate"))


CASES: dict[str, tuple[dict[str, Any], TokenGTConfig, Level]] = {
    "plain": ({}, MODEL, "graph"),
    "compiled": ({"compile": True}, MODEL, "graph"),
    "directed": ({}, DIRECTED, "graph"),
    "orf": ({}, replace(MODEL, identifiers=OrfIds(8)), "graph"),
    "orf in parts": ({"accumulate": 3}, replace(MODEL, identifiers=OrfIds(8)), "graph"),
    "parts": ({"accumulate": 3}, MODEL, "graph"),
    "empty parts": ({"accumulate": 20, "epochs": 2}, MODEL, "graph"),
    "average": ({"ema": 0.9, "clip": 0.1}, MODEL, "graph"),
    "tokens": ({"batch_tokens": 400, "clip": 0.0}, MODEL, "graph"),
    "nodes": ({}, of_level("node"), "node"),
    "edges": ({}, of_level("edge"), "edge"),
    "directed edges": ({}, of_level("edge", "directed"), "edge"),
    "descriptors": ({"ema": 0.9}, DESCRIBED, "graph"),
    "sums": ({}, replace(MODEL, head=HeadConfig(readout="sum")), "graph"),
    "means": ({}, replace(MODEL, head=HeadConfig(readout="mean")), "graph"),
    "wide": ({"epochs": 2}, replace(MODEL, dim=320), "graph"),
    "wide compiled": ({"epochs": 2, "compile": True}, replace(MODEL, dim=320), "graph"),
    "structure": ({"accumulate": 2}, STRUCTURED, "graph"),
    "structure compiled": ({"compile": True}, STRUCTURED, "graph"),
    "directed structure": ({}, replace(STRUCTURED, tokens=DIRECTED.tokens), "graph"),
    "float32": ({"precision": "float32"}, MODEL, "graph"),
    "masked": ({}, masked(MODEL), "graph"),
    "masked directed nodes": ({}, masked(of_level("node", "directed")), "node"),
    "masked compiled": ({"compile": True}, masked(MODEL), "graph"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_has_the_same_bits_recorded_or_not(case: str) -> None:
    changes, model, level = CASES[case]
    config, parts = replace(RECIPE, **changes), make_parts(level, described=model is DESCRIBED)
    one = finished(make(config, model, copy.copy(parts)))
    other = finished(make(replace(config, cuda_graphs=False), model, copy.copy(parts)))
    assert recording(one).recorder.replays > 10
    assert recording(other).recorder.replays == 0
    assert_same_bits(one, other)
    losses = [record["train_loss"] for record in one.state.records]
    assert all(np.isfinite(losses))
    # Forty steps on labels drawn at random: there is nothing to learn that every case would have learned by then.


class Stopped(Exception):
    """Stands for a machine that lost its power."""


class StopAfter(Progress):
    def __init__(self, steps: int) -> None:
        super().__init__(1, quiet=True)
        self.left = steps

    def advance(self, epochs: float, graphs: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise Stopped


@pytest.mark.parametrize("steps", [1, 7, 10, 23])
@pytest.mark.parametrize("model", [MODEL, replace(MODEL, identifiers=OrfIds(8))], ids=["laplacian", "orf"])
def test_a_resumed_run_has_the_bits_of_the_unbroken_one(
    steps: int, model: TokenGTConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was recorded when it stopped; other steps are worked out at once then."""
    monkeypatch.setattr(loop, "_CLOCK_STEPS", 1)
    monkeypatch.setattr(recorded, "_AT_ONCE", 4)
    config = replace(RECIPE, ema=0.9)
    whole = finished(make(config, model))
    with pytest.raises(Stopped):
        make(config, model, folder=tmp_path, progress=StopAfter(steps)).run()
    torch.manual_seed(steps)
    again = finished(make(config, model, folder=tmp_path), resume=True)
    assert recording(again).recorder.replays > 5
    assert_same_bits(again, whole)


def plain(patch: pytest.MonkeyPatch, **given: Any) -> Trainer:
    with patch.context() as here:
        here.setattr(loop, "why_not", lambda *_: "the test asks for plain steps")
        here.setattr(loop, "accelerate", lambda model, **_: model)
        subject = make(**given)
    assert subject.recorded is None
    assert subject.fast is subject.model
    return subject


def gradients(subject: Trainer, rounds: int) -> list[Tensor]:
    """Those of the last of three steps, taken so often at a rate of 0: nothing learns, and recordings are replayed."""
    steps = subject._steps_of(0)[:3]
    for _ in range(rounds):
        set_training(subject.forward, subject.model)
        for _ in subject.take(steps, [0.0] * len(steps)):
            subject.state.step += 1
    return [parameter.grad.clone() for parameter in subject.parameters if parameter.grad is not None]


@pytest.mark.parametrize("rounds", [1, 4])
@pytest.mark.parametrize(("precision", "tolerance"), [("auto", 4e-2), ("float32", 2e-4)])
@pytest.mark.parametrize("layout", ["directed", "undirected"])
@pytest.mark.parametrize(
    ("level", "incidence"), [("graph", "never"), ("node", "never"), ("edge", "never"), ("graph", "alternate")]
)
def test_gradients_are_those_of_the_plain_loop(
    level: Level,
    incidence: Any,
    layout: Any,
    precision: Any,
    tolerance: float,
    rounds: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Run as they are, or replayed; in two parts, which are added up."""
    replayed = rounds > 1
    config = replace(RECIPE, precision=precision, clip=0.0, weight_decay=0.0, accumulate=2, cuda_graphs=replayed)
    encoder, tokens = replace(EXACT.encoder, incidence=incidence), replace(EXACT.tokens, layout=layout)
    model = replace(EXACT, head=HeadConfig(level=level), tokens=tokens, encoder=encoder)
    subject = make(config, model, make_parts(level))
    found = gradients(subject, rounds)
    assert (recording(subject).recorder.replays > 0) == replayed
    expected = gradients(plain(monkeypatch, config=config, model=model, parts=make_parts(level)), 1)
    assert len(found) == len(expected)
    whole = torch.cat([one.flatten() - other.flatten() for one, other in zip(found, expected, strict=True)])
    assert float(whole.norm()) <= tolerance * float(torch.cat([other.flatten() for other in expected]).norm())
    for one, other in zip(found, expected, strict=True):
        # Each by itself too, where it is not tiny: the gradient of a bias of keys is zero but for rounding.
        if float(other.norm()) > 1e-2 * float(whole.norm() / tolerance):
            assert float((one - other).norm()) <= 3 * tolerance * float(other.norm()) + 1e-5


def test_a_whole_run_learns_as_the_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(RECIPE, ema=0.9)
    one, other = finished(make(config, EXACT)), finished(plain(monkeypatch, config=config, model=EXACT))
    for found, expected in zip(one.state.records, other.state.records, strict=True):
        assert found["learning_rate"] == pytest.approx(expected["learning_rate"], rel=1e-6)
        assert found["train_loss"] == pytest.approx(expected["train_loss"], rel=5e-2)
        assert found["valid_loss"] == pytest.approx(expected["valid_loss"], rel=5e-2)


def test_graphs_far_larger_than_the_rest_have_frames_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(RECIPE, batch_size=4, epochs=2)
    one = finished(make(config, parts=make_parts(large=5)))
    other = finished(make(replace(config, cuda_graphs=False), parts=make_parts(large=5)))
    assert len(recording(one)._buffers) > 1
    assert_same_bits(one, other)
    exact = replace(config, clip=0.0, weight_decay=0.0, precision="float32")
    subject = make(exact, EXACT, make_parts(large=5))
    reference = plain(monkeypatch, config=exact, model=EXACT, parts=make_parts(large=5))
    steps = subject._steps_of(0)
    with_large = next(step for step in steps if int(step[0].min()) < 5)
    for each in (subject, reference):
        set_training(each.forward, each.model)
        list(each.take([with_large], [0.0]))
    for mine, theirs in zip(subject.parameters, reference.parameters, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert float((mine.grad - theirs.grad).norm()) <= 1e-3 * max(float(theirs.grad.norm()), 1e-2)


def test_more_room_for_tiles_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(RECIPE, batch_size=8, epochs=3)
    whole = finished(make(config))
    monkeypatch.setattr(recorded, "_with_margin", lambda entries: entries)
    monkeypatch.setattr(recorded, "_AT_ONCE", 4)
    subject = make(config)
    recording(subject)._room[:] = 0
    rooms, make_room = [], recorded.RecordedSteps._make_room

    def noting(self: recorded.RecordedSteps, filled: Any) -> None:
        make_room(self, filled)
        rooms.append(tuple(self._room.tolist()))

    monkeypatch.setattr(recorded.RecordedSteps, "_make_room", noting)
    finished(subject)
    assert len(set(rooms)) > 1
    assert recording(subject).recorder.replays > 5
    assert_same_bits(subject, whole)


def test_what_cannot_be_recorded_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that the host waits for: one sentence says so, and the run has the bits that it would have had."""
    config = replace(RECIPE, epochs=2)
    whole = finished(make(replace(config, cuda_graphs=False)))
    loss_sum = Task.loss_sum

    def waits(self: Task, output: Tensor, targets: Tensor) -> Tensor:
        loss = loss_sum(self, output, targets)
        assert np.isfinite(loss.item())
        return loss

    monkeypatch.setattr(Task, "loss_sum", waits)
    subject = make(config)
    with pytest.warns(UserWarning, match="training goes on without CUDA graphs, slower"):
        finished(subject)
    assert not recording(subject).recorder.holds_memory
    assert_same_bits(subject, whole)


def test_a_step_that_finds_no_memory_gets_that_of_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first step of a frame, after its draws: the step is taken again with the same ones."""
    config = replace(RECIPE, epochs=2, batch_size=4)
    whole = finished(make(config, parts=make_parts(large=5)))
    subject = make(config, parts=make_parts(large=5))
    recorder, loss_sum, raised = recording(subject).recorder, Task.loss_sum, []

    def full(self: Task, output: Tensor, targets: Tensor) -> Tensor:
        capturing = torch.cuda.is_current_stream_capturing()
        if torch.is_grad_enabled() and recorder.holds_memory and not capturing and not raised:
            raised.append(True)
            raise torch.OutOfMemoryError("no memory left")
        return loss_sum(self, output, targets)

    monkeypatch.setattr(Task, "loss_sum", full)
    with pytest.warns(UserWarning, match="slower: no memory left"):
        finished(subject)
    assert raised
    assert_same_bits(subject, whole)


def test_the_memory_of_recordings_is_freed() -> None:
    """Its own pool is gone when recordings are forgotten, and training goes on."""
    before = private_bytes()  # Those of other tests, if any are left.
    subject = make(model=replace(MODEL, dim=320))
    gradients(subject, 4)
    recorder = recording(subject).recorder
    assert recorder.holds_memory
    assert private_bytes() > before
    recorder.forget()
    assert private_bytes() == before
    replays = recorder.replays
    gradients(subject, 2)
    assert recorder.replays == replays


def private_bytes() -> int:
    """What pools of recordings reserve."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    segments = torch.cuda.memory_snapshot()
    return sum(each["total_size"] for each in segments if tuple(each["segment_pool_id"]) != (0, 0))


def test_evaluation_by_row_kernels_is_that_of_the_plain_model() -> None:
    subject = make()
    outputs = subject.outputs(subject.parts.valid)
    assert torch.equal(subject.outputs(subject.parts.valid), outputs)
    subject.model.eval()
    places = subject.parts.valid.places
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        expected = subject.model(subject.parts.graphs.select(places)).double().cpu()
    assert float((outputs - expected).norm()) <= 3e-2 * float(expected.norm())


def test_one_process_of_ddp_takes_the_same_steps() -> None:
    """DDP watches the weights for gradients of its own, which recorded steps do not make."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    config = replace(RECIPE, epochs=2)
    whole = finished(make(config))
    fabric = Fabric(accelerator="cuda", devices=1, strategy=DDPStrategy(), precision="bf16-mixed")
    fabric.launch()
    try:
        subject = finished(make(config, fabric=fabric))
        assert recording(subject).recorder.replays > 10
        assert_same_bits(subject, whole)
    finally:
        torch.distributed.destroy_process_group()
