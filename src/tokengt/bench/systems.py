"""The two that are timed: the training loop of ``tokengt train``, and the usual padded code with the same weights.

Both take their batches from the same packed graphs (all graphs in one batch, without padding), so the feed is part of
every step: selecting graphs, moving them to the device, identifiers and tokens.
"""

import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.bench.config import BenchConfig, model_config
from tokengt.bench.padded import PaddedTokenGT
from tokengt.bench.shapes import Sample, make_sample
from tokengt.data.batching import epoch_steps, permutation
from tokengt.data.facts import fact_of_all
from tokengt.models.tokengt.config import TokenGTConfig
from tokengt.models.tokengt.model import TokenGT
from tokengt.structure.facts import LaplacianVectors
from tokengt.structure.laplacian import laplacian_fact
from tokengt.training.loop import Trainer
from tokengt.training.optim import make_optimizer
from tokengt.training.parts import Part, Parts
from tokengt.training.processes import deterministic, make_fabric
from tokengt.training.tasks import Task

# How many graphs are made: enough that batches differ as they do in training, and few, because making them takes time.
_LEAST_GRAPHS, _LEAST_BATCHES, _MOST_BATCHES = 512, 4, 8
# Shapes whose eigenvectors would take minutes.
_LARGE = ("peptides", "physics")


@dataclass(frozen=True, eq=False)
class Setup:
    """The data, the model's config and weights, and the task that both systems share."""

    config: BenchConfig
    model: TokenGT
    parts: Parts
    task: Task

    @property
    def tokens(self) -> Int[Tensor, " graphs"]:
        return self.parts.costs


def make_setup(config: BenchConfig) -> Setup:
    """Graphs, with eigenvectors computed beforehand as in a prepared store, and the first weights of the model."""
    several = max(min(config.steps_a_round, _MOST_BATCHES), _LEAST_BATCHES)
    count = config.graphs_a_step * max(several, -(-_LEAST_GRAPHS // config.graphs_a_step))
    sample = make_sample(config.shape, count, config.seed, config.scale)
    described = model_config(config, sample.tokens, sample.classes)
    graphs = _with_eigenvectors(sample, described, config)
    everything = Part(torch.arange(len(graphs)), sample.targets)
    torch.manual_seed(config.seed)
    model = TokenGT(described)
    return Setup(
        config,
        model,
        Parts(graphs, sample.level, model.costs(graphs), everything, everything, everything),
        Task("multiclass", ("class",), tuple(map(str, range(sample.classes))))
        if sample.classes
        else Task("regression", ("value",)),
    )


def _with_eigenvectors(sample: Sample, described: TokenGTConfig, config: BenchConfig) -> GraphBatch:
    """Eigenvectors, computed once as ``prepare`` does; of large graphs orthonormal columns that cost no time."""
    ids, graphs = described.identifiers, sample.graphs
    if ids.kind != "laplacian":
        return graphs
    if config.shape not in _LARGE:
        vectors = fact_of_all(graphs, LaplacianVectors(ids.dim, ids.which))
    else:
        noise = torch.randn(graphs.nodes.total, ids.dim, generator=torch.Generator().manual_seed(config.seed))
        vectors = torch.linalg.qr(noise).Q
    return graphs.with_fact(laplacian_fact(ids.dim, ids.which), vectors)


def batches(setup: Setup) -> Iterator[Int[Tensor, " graphs"]]:
    """Other graphs at every step, epoch after epoch, shuffled as in training."""
    parts, batching, epoch = setup.parts, setup.config.training.batching, 0
    while True:
        for pieces in epoch_steps(
            parts.train.places, parts.costs, batching, seed=setup.config.seed, epoch=epoch, pieces=1
        ):
            yield pieces[0]
        epoch += 1


def requests(setup: Setup) -> Iterator[Int[Tensor, " graphs"]]:
    """Ascending places of as many graphs as a round's batches hold, others every time."""
    total, number = len(setup.parts.graphs), 0
    count = min(total, setup.config.graphs_a_step * setup.config.steps_a_round)
    while True:
        yield permutation(total, setup.config.seed, number)[:count].sort().values
        number += 1


class Packed:
    """``tokengt train``'s own loop."""

    name = "tokengt"

    def __init__(self, setup: Setup) -> None:
        config = setup.config
        self._fabric = make_fabric(config.where, config.precision)
        self.trainer = Trainer(
            self._fabric, deepcopy(setup.model), setup.parts, setup.task, config.training, seed=config.seed
        )
        self.model = self.trainer.fast

    @property
    def device(self) -> torch.device:
        device: torch.device = self._fabric.device
        return device

    @property
    def replays(self) -> int:
        """Training steps that were replayed so far."""
        recorded = self.trainer.recorded
        return 0 if recorded is None else recorded.recorder.replays

    def take(self, steps: Sequence[Int[Tensor, " graphs"]]) -> None:
        """Training steps, one after another."""
        self.model.train()
        trainer = self.trainer
        with deterministic(self.device):
            for _ in trainer.take([[places] for places in steps], [trainer.config.learning_rate] * len(steps)):
                trainer.state.step += 1

    def infer(self, places: Int[Tensor, " graphs"]) -> Float[Tensor, "rows out"]:
        """Outputs of the graphs at these ascending places, on the CPU."""
        with deterministic(self.device):
            return self.trainer.outputs(Part(places, self.trainer.parts.train.targets))


class Padded:
    """The usual code: batches in the order given, padded; SDPA; autocast; clipping; AdamW."""

    name = "padded"

    def __init__(self, setup: Setup, device: torch.device, parts: Parts) -> None:
        self._config, self._task, self._parts, self._device = setup.config, setup.task, parts, device
        model = deepcopy(setup.model)
        self.model = (model.double() if setup.config.precision == "float64" else model).to(device)
        self._padded = PaddedTokenGT(self.model, compile=setup.config.compile)
        self._recipe = setup.config.training
        self._optimizer = make_optimizer(list(self.model.parameters()), self._recipe)

    def take(self, steps: Sequence[Int[Tensor, " graphs"]]) -> None:
        """Training steps, one after another."""
        for places in steps:
            self._step(places)

    def _step(self, places: Int[Tensor, " graphs"]) -> None:
        self._padded.train()
        self._optimizer.zero_grad()
        targets = self._parts.train.targets.index_select(0, self._rows(places)).to(self._device)
        loss = self._task.loss_sum(self._forward(places), targets) / len(targets)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), self._recipe.clip)
        self._optimizer.step()

    @torch.no_grad()
    def infer(self, places: Int[Tensor, " graphs"]) -> Float[Tensor, "rows out"]:
        self._padded.eval()
        outputs = [self._forward(some).double() for some in torch.split(places, self._config.graphs_a_step)]
        return torch.cat(outputs).cpu()

    def _forward(self, places: Int[Tensor, " graphs"]) -> Tensor:
        batch = self._parts.graphs.select(places).to(self._device)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._config.mixed):
            out: Tensor = self._padded(batch)
        return out

    def _rows(self, places: Int[Tensor, " graphs"]) -> Int[Tensor, " rows"]:
        rows, _ = self._parts.rows.take(places)
        return rows


System = Packed | Padded


def make_systems(setup: Setup) -> tuple[Packed, Padded]:
    """Both on their device, with the same weights and the same data in the same memory."""
    packed = Packed(setup)
    return packed, Padded(setup, packed.device, packed.trainer.parts)


@torch.no_grad()
def check_same(setup: Setup, systems: tuple[Packed, Padded]) -> dict[str, float]:
    """Refuse to time two systems that do not compute the same; the seconds of each one's first inference.

    In full precision they may differ by a hundredth of the deviation of the outputs from their mean. In the precision
    that is timed, they may differ by a tenth of the outputs themselves.
    """
    packed, padded = systems
    places = torch.arange(min(32, len(setup.parts.graphs)))
    outputs, seconds = {}, {}
    for system in systems:
        start = time.perf_counter()
        outputs[system.name] = system.infer(places)
        seconds[system.name] = time.perf_counter() - start
    own, other = outputs[packed.name], outputs[padded.name]
    refuse_difference(own - other, other, 0.1, f"in {setup.config.dtype}")
    # The backend "varlen" (flash attention over packed rows) does not exist in full precision.
    if setup.config.backend != "varlen":
        batch = packed.trainer.parts.graphs.select(places).to(packed.device)
        own, other = packed.model.eval()(batch).double(), PaddedTokenGT(padded.model).eval()(batch).double()
        refuse_difference(own - other, other - other.mean(0), 0.01, "in full precision")
    return seconds


def refuse_difference(
    difference: Float[Tensor, "rows out"], reference: Float[Tensor, "rows out"], limit: float, how: str
) -> None:
    share = float(difference.norm() / reference.norm().clamp(min=1e-12))
    if not share <= limit:
        raise ValueError(f"packed and padded outputs differ by {share:.2g} {how} (limit {limit:g}); nothing is timed")
