"""The real thing: ``tokengt train`` and ``tokengt predict`` on a person's data, timed beside the bench's own rate.

The bench times steps. A person waits for a command: its start, the feed, validation, checkpoints, results. Here the
commands themselves run, as processes of their own in a folder that is removed afterwards, and are watched from outside.
Then the same model takes the bench's steps on the same graphs in the same batches, so that what lies between the two
rates is what the command adds.
"""

import csv
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

import torch
from jaxtyping import Int
from torch import Tensor

from tokengt.attention import SoftmaxConfig
from tokengt.bench.commands import Ran, run_command
from tokengt.bench.config import BenchConfig, Phase
from tokengt.bench.counting import TRAIN_FACTOR, forward_flop, measured_peak
from tokengt.bench.epochs import Epochs, EpochWatch
from tokengt.bench.real_report import RealRow
from tokengt.bench.run import one_round, warm_up
from tokengt.bench.systems import Packed, Setup, batches
from tokengt.bench.timing import Timing, interleaved
from tokengt.data.batching import permutation
from tokengt.data.manifest import MANIFEST
from tokengt.data.store import Store
from tokengt.models.tokengt.config import TokenGTConfig
from tokengt.models.tokengt.model import TokenGT
from tokengt.training.parts import Part, Parts
from tokengt.training.processes import Device, DeviceConfig, without_precision_advice
from tokengt.training.results import METRICS, SPLIT
from tokengt.training.run import STORE
from tokengt.training.spec import RunSpec, read_run
from tokengt.training.tables import device_name, source_commit

Say = Callable[[str], None]
# So many graphs at once, at most: enough to fill the device, and few enough that a round is short.
_INFERRED = {"cuda": 32_768, "cpu": 1024}


@dataclass(frozen=True)
class RealConfig:
    """Which commands to time, as a person would type them.

    Args:
        data: a file or a store, as ``tokengt train`` takes it.
        device: of both commands.
        preset: of ``tokengt train``.
        settings: what ``--set`` says, by name.
        epochs: of training; the rate is that after the first.
        batch: graphs per step; 0 for the default of ``tokengt train``.
        smiles: the column of SMILES; None for the usual one.
        target: the columns to learn.
        phases: "train" and "infer": the commands ``train`` and ``predict``. Prediction needs a trained model, so it
            trains for one epoch where training is not timed.
        seed: of the training.
        steps: of the bench in one round, beside which the commands are held; 0 for what suits the device.
        rounds: of the bench.
    """

    data: Path
    device: Device = "auto"
    preset: str = "auto"
    settings: Mapping[str, str] = field(default_factory=dict)
    epochs: int = 5
    batch: int = 0
    smiles: str | None = None
    target: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ("infer", "train")
    seed: int = 0
    steps: int = 0
    rounds: int = 5

    def __post_init__(self) -> None:
        _ = self.where  # Building it checks the device.
        for name, least in (("epochs", 1), ("batch", 0), ("steps", 0), ("rounds", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least {least}")
        if not self.phases or not set(self.phases) <= set(get_args(Phase)):
            raise ValueError(f"phases are {self.phases}; expected 'train', 'infer' or both")
        for own, path in (("epochs", "training.epochs"), ("batch", "training.batch_size")):
            if path in self.settings:
                raise ValueError(f"--set {path} is {self.settings[path]}; expected the option of the bench, --{own}")

    @property
    def where(self) -> DeviceConfig:
        return DeviceConfig(self.device)

    @property
    def name(self) -> str:
        """The name of the data without its endings, as one word."""
        return re.sub(r"[^\w-]+", "_", self.data.absolute().name.split(".")[0]) or "data"

    @property
    def options(self) -> list[str]:
        """What ``tokengt train`` is given besides data, epochs, seed and places."""
        given = [] if self.preset == "auto" else ["--preset", self.preset]
        given += ["--batch-size", str(self.batch)] if self.batch else []
        for name, value in self.settings.items():
            given += ["--set", f"{name}={value}"]
        return given

    def train_command(self, run: Path) -> list[str | Path]:
        epochs = self.epochs if "train" in self.phases else 1
        columns = [] if self.smiles is None else ["--smiles", self.smiles]
        columns += ["--target", *self.target] if self.target else []
        numbers = ["--epochs", str(epochs), "--seed", str(self.seed), "--device", self.device]
        return ["train", self.data, "--out", run, *numbers, *self.options, *columns]

    def predict_command(self, run: Path, out: Path) -> list[str | Path]:
        columns = [] if self.smiles is None else ["--smiles", self.smiles]
        return ["predict", run, self.data, "--out", out, "--device", self.device, *columns]


@dataclass(frozen=True, eq=False)
class _Trained:
    """A finished run, read again: the model, the data as its training had it, and which graphs it learned from."""

    spec: RunSpec
    setup: Setup
    train: Int[Tensor, " graphs"]

    @property
    def tokens(self) -> Tensor:
        return self.setup.parts.costs


@without_precision_advice()
def bench_real(config: RealConfig, say: Say = lambda line: None) -> Iterator[RealRow]:
    """Time the commands; one row for each.

    Where prediction is refused, the row of training comes all the same, and the refusal after it.

    Raises:
        ValueError: a command was refused, with its own sentence.
    """
    gpu = config.where.resolved == "cuda"
    with tempfile.TemporaryDirectory(prefix="tokengt-bench-") as place:
        run = Path(place) / "run"
        watch, ran, refusal = EpochWatch(run / METRICS), {}, None
        say(f"running tokengt train on {config.data}")
        ran["train"] = run_command(config.train_command(run), say, watch.look, gpu=gpu)
        if "infer" in config.phases:
            say(f"running tokengt predict on {config.data}")
            try:
                ran["infer"] = run_command(config.predict_command(run, Path(place) / "out.csv"), say, gpu=gpu)
            except ValueError as error:
                refusal = error
        trained = _trained(config, run)
        timed = [phase for phase in ("train", "infer") if phase in config.phases and phase in ran]
        with torch.random.fork_rng([0] if gpu else []):
            yield from _rows(config, trained, watch.epochs(), {phase: ran[phase] for phase in timed}, say)
    if refusal is not None:
        raise refusal


def _trained(config: RealConfig, run: Path) -> _Trained:
    spec = read_run(run)
    store = Store.open(config.data if (config.data / MANIFEST).is_file() else run / STORE, verify=False)
    store = store.with_facts(spec.model.facts(), progress=False)
    graphs, features = store.graphs, store.graphs.graph_features
    if features is not None and spec.descriptors.mean:
        graphs = graphs.with_graph_features(spec.descriptors.scaled(features))
    names = store.manifest.target_names
    targets = store.targets[:, [names.index(name) for name in spec.task.names]]
    model = spec.model.build()
    places = _train_places(run / SPLIT)
    part = Part(places, targets)
    bench = BenchConfig(
        device=config.device,
        batch=spec.training.batch_size,
        steps=config.steps or _steps(config.where, spec.training.batch_size),
        rounds=config.rounds,
        seed=config.seed,
        precision=spec.training.precision,
        compile=spec.training.compile,
        cuda_graphs=spec.training.cuda_graphs,
        recipe=spec.training,
    )
    parts = Parts(graphs, spec.level, model.costs(graphs), part, part, part)
    # The half that is timed here takes any model; only the padded reference needs a TokenGT.
    return _Trained(spec, Setup(bench, cast(TokenGT, model), parts, spec.task), places)


def _steps(where: DeviceConfig, batch: int) -> int:
    """Steps of a round; on a GPU many small ones, because the host prepares hundreds at once in a real run."""
    return max(20, min(256, 20_480 // batch)) if where.resolved == "cuda" else 0


def _train_places(file: Path) -> Int[Tensor, " graphs"]:
    """Which graphs the run learned from: those of the training part, or the one graph whose rows were split."""
    with file.open(encoding="utf-8", newline="") as lines:
        (first, *_), *rows = csv.reader(lines)
    if first != "line":
        return torch.zeros(1, dtype=torch.int64)
    return torch.tensor([place for place, (_, part, *_) in enumerate(rows) if part == "train"])


def _rows(
    config: RealConfig, trained: _Trained, epochs: Epochs, ran: Mapping[Phase, Ran], say: Say
) -> Iterator[RealRow]:
    own = Packed(trained.setup)
    # Inference comes first, as in the bench: training leaves gradients and moments behind.
    rates = {phase: _own_rate(trained.setup, own, phase, say).graphs_per_s for phase in sorted(ran)}
    peak = measured_peak(own.device)
    for phase, command in ran.items():
        yield _row(config, trained, own, phase, command, epochs, rates[phase], peak)


def _own_rate(setup: Setup, own: Packed, phase: Phase, say: Say) -> Timing:
    say(f"{phase}: the bench's own rate for the same model, graphs and batches")
    feed = batches(setup) if phase == "train" else _many(setup, own.device)
    warm_up(own, phase, feed, setup.config, own.device)
    rounds = {own.name: one_round(setup, own, phase, feed)}
    return interleaved(rounds, setup.config.rounds, own.device, {own.name: 0})[own.name]


def _many(setup: Setup, device: torch.device) -> Iterator[Int[Tensor, " graphs"]]:
    """Graphs to infer from as a file has them: many at once, other ones each time, in their order."""
    total, number = len(setup.parts.graphs), 0
    while True:
        yield permutation(total, setup.config.seed, number)[: _INFERRED[device.type]].sort().values
        number += 1


def _row(
    config: RealConfig,
    trained: _Trained,
    own: Packed,
    phase: Phase,
    ran: Ran,
    epochs: Epochs,
    bench_rate: float,
    peak: float,
) -> RealRow:
    training, setup = phase == "train", trained.setup
    graphs = trained.train if training else torch.arange(len(setup.parts.graphs))
    rate = len(graphs) / (epochs.seconds_each if training else ran.seconds)
    return RealRow(
        shape=config.name,
        device=device_name(own.device),
        phase=f"real-{'train' if training else 'predict'}",
        dtype=setup.config.dtype,
        **_described(trained.spec, training),
        graphs_per_s=rate,
        tokens_per_s=rate * float(trained.tokens[graphs].double().mean()),
        peak_share=_peak_share(setup, graphs, rate * (TRAIN_FACTOR if training else 1), peak),
        memory_gib=ran.gpu_gib,
        ratio_to_padded=None,
        commit=source_commit(),
        bench_graphs_per_s=bench_rate,
        share_of_bench=rate / bench_rate,
        seconds=ran.seconds,
        start_seconds=epochs.began - ran.began if training else None,
        first_epoch_seconds=epochs.first_end - ran.began if training else None,
        epoch_seconds=epochs.seconds_each if training else None,
        end_seconds=ran.began + ran.seconds - epochs.end if training else None,
        epochs=epochs.count if training else 0,
        graphs=len(graphs),
        batch=trained.spec.training.batch_size,
        options=" ".join(config.options),
        host_gib=ran.host_gib,
        peak_tflops=peak / 1e12,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
    )


def _described(spec: RunSpec, training: bool) -> dict[str, Any]:
    """What a row says about the model; one without tokens or attention has neither layout nor dropout."""
    words = spec.model.describe()
    described: dict[str, Any] = {"system": spec.model.kind, "model": f"{words.name} ({words.summary})"}
    model = spec.model
    if not isinstance(model, TokenGTConfig):
        return described | {"layout": None, "dropout": None}
    attention = model.encoder.attention
    dropout = attention.dropout if training and isinstance(attention, SoftmaxConfig) else 0.0
    return described | {"layout": model.tokens.layout, "dropout": dropout}


def _peak_share(setup: Setup, graphs: Int[Tensor, " graphs"], passes_per_s: float, peak: float) -> float | None:
    """Matrix products per second of so many forward passes, as a share of the peak; counted for TokenGT alone."""
    if not isinstance(setup.model, TokenGT):
        return None
    rows = int(setup.parts.rows.host_lengths[graphs].sum())
    return forward_flop(setup.model, setup.tokens[graphs], rows) / len(graphs) * passes_per_s / peak
