"""One cell of the table, setting x input x seed: run once, kept as a file, read ever after."""

import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float16
from torch import Tensor

from tokengt.experiments.basis.drawing import FreshIdentifiers, evaluation_identifiers
from tokengt.experiments.basis.errors import EAGER, Kernels
from tokengt.experiments.basis.graphs import BasisGraphs
from tokengt.experiments.basis.measuring import attention_maps, head_errors
from tokengt.experiments.basis.settings import BasisConfig, Input, Setting
from tokengt.experiments.basis.training import train
from tokengt.experiments.tables import device_name, write_json
from tokengt.files import write_whole
from tokengt.models.tokengt.model import TokenGT
from tokengt.models.tokengt.scores import FirstBlockScores

_CURVE_POINTS = 50


@dataclass(frozen=True)
class Cell:
    """What was measured, and how.

    Args:
        setting: name of the setting.
        input: "dense" or "sparse".
        seed: of weights, draws and graphs.
        train: training loss, mean of the steps of the last epoch, dropout on.
        test: mean over heads of the error on the test graphs, dropout off.
        heads: the test error of each head.
        curve: training loss over time, each point the mean of an equal share of the steps.
        parameters: trained numbers of the model; the factor that w_in is trained with is not counted.
        seconds: of the training, the graphs at hand.
        graphs_per_s: training graphs in that time.
        device: where.
        torch: its version.
        compiled: whether kernels were compiled.
        commit: of the source.
        graphs: statistics of the generated graphs.
        config: what all cells share.
    """

    setting: str
    input: Input
    seed: int
    train: float
    test: float
    heads: list[float]
    curve: list[float]
    parameters: int
    seconds: float
    graphs_per_s: float
    device: str
    torch: str
    compiled: bool
    commit: str | None
    graphs: dict[str, int | float]
    config: BasisConfig


@dataclass(frozen=True, eq=False)
class CellMaps:
    """The maps of one test graph and what they ought to be; columns are [null] and the tokens."""

    maps: Float16[Tensor, "heads tokens columns"]
    targets: Float16[Tensor, "heads tokens columns"]


def run_cell(
    setting: Setting,
    kind: Input,
    seed: int,
    graphs: BasisGraphs,
    config: BasisConfig,
    device: torch.device,
    *,
    kernels: Kernels = EAGER,
    commit: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Cell, CellMaps, TokenGT]:
    """Train and measure one setting; also the maps of a small test graph and the trained production model."""
    torch.manual_seed(seed)
    model = TokenGT(config.model(setting, kind)).to(device)
    network = FirstBlockScores(model, kinds=setting.kinds, factor=config.input_factor).to(device)
    parameters = count_parameters(network)
    ids_config = model.config.identifiers
    source = FreshIdentifiers.of(graphs.train, ids_config, torch.Generator(device).manual_seed(seed))
    batch, started = config.batch(kind), time.perf_counter()
    losses = train(
        network, graphs.train_groups, source, config, batch=batch, seed=seed, kernels=kernels, progress=progress
    ).tolist()
    seconds = time.perf_counter() - started
    drawn = evaluation_identifiers(graphs.test, ids_config, seed)
    ids = None if drawn is None else drawn.to(device)
    heads = head_errors(network, graphs.test_groups, ids, first_order=ids_config.first_order).tolist()
    maps = attention_maps(network, graphs.test_groups, ids, _small_graph(graphs), first_order=ids_config.first_order)
    epoch = -(-config.train_graphs // batch)
    cell = Cell(
        setting=setting.name,
        input=kind,
        seed=seed,
        train=_mean(losses[-epoch:]),
        test=_mean(heads),
        heads=heads,
        curve=[_mean(part.tolist()) for part in np.array_split(losses, min(_CURVE_POINTS, len(losses)))],
        parameters=parameters,
        seconds=seconds,
        graphs_per_s=config.steps * batch / seconds,
        device=device_name(device),
        torch=torch.__version__,
        compiled=kernels is not EAGER,
        commit=commit,
        graphs=dict(graphs.statistics),
        config=config,
    )
    # Four decimals are more than a picture shows, and the rounded maps compress to a fraction of the space.
    return cell, CellMaps(*(part.round(decimals=4).half().cpu() for part in maps)), model


def count_parameters(network: FirstBlockScores) -> int:
    """Trained numbers that a model has: the attention's values and the factor are not among them."""
    joint = network.attention.qkv_proj
    values = network.attention.heads.count * network.attention.heads.value * (joint.in_features + 1)
    factor = 0 if network.factor is None else network.factor.numel()
    shared = network.norm.normalized_shape[0] if network.num_kinds == 1 else 0
    return sum(part.numel() for part in network.trained()) - values - factor - shared


def cell_file(out: Path, setting: str, kind: Input, seed: int) -> Path:
    return out / "cells" / f"{kind}-{setting}-{seed}.json"


def write_cell(out: Path, cell: Cell, maps: CellMaps | None) -> None:
    """Write the maps first and the JSON last, so that a cell whose JSON exists is finished."""
    file = cell_file(out, cell.setting, cell.input, cell.seed)
    if maps is not None:
        content = io.BytesIO()
        np.savez_compressed(content, maps=maps.maps.numpy(), targets=maps.targets.numpy())
        write_whole(file.with_suffix(".npz"), content.getvalue())
    write_json(file, asdict(cell))


def read_cell(file: Path) -> Cell:
    """A finished cell.

    Raises:
        ValueError: the file is not one of ours.
    """
    try:
        content = json.loads(file.read_text())
        return Cell(**{**content, "config": BasisConfig(**content["config"])})
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{file} is no result of this experiment ({error}); remove it or choose another folder"
        ) from error


def read_maps(file: Path) -> CellMaps:
    with np.load(file, allow_pickle=False) as arrays:
        return CellMaps(*(torch.from_numpy(arrays[name]) for name in ("maps", "targets")))


def _small_graph(graphs: BasisGraphs) -> int:
    """The test graph a quarter of the way up by token count: small, and not degenerate."""
    order = torch.argsort(graphs.test.nodes.host_lengths + graphs.test.edges.host_lengths, stable=True)
    return int(order[len(order) // 4])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
