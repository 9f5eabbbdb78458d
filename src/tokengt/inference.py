"""A trained run, ready to predict: the same input gives the same prediction, alone or in any batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.data.batching import evaluation_batches, tokens_predicted_at_once
from tokengt.data.datasets import find_run
from tokengt.interop.molecules import TextKind, pack_molecules
from tokengt.interop.pyg import as_batch
from tokengt.interop.smiles import batch_of_molecules
from tokengt.level import Level
from tokengt.links import without_edges_of
from tokengt.models.contract import Model, ModelConfig
from tokengt.models.own import OwnConfig, as_model, copy_of
from tokengt.models.passes import Over, Prediction, check_passes, run_passes, summarise
from tokengt.models.pretrained import CONFIG, WEIGHTS, read_weights, restore
from tokengt.sparse import SparseRows
from tokengt.structure.facts import with_facts
from tokengt.training.processes import Device, DeviceConfig
from tokengt.training.spec import Descriptors, RunSpec, read_members
from tokengt.training.tasks import Task

# The square of anything larger, times a weight, overflows float32; a layer norm would then make zeros of it, and a
# prediction that depends on nothing.
_LARGEST_INPUT = 1e15


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of many inputs, in order; to NumPy and to loops it is the array ``mean``.

    ``mean`` [rows, targets or classes] holds natural units or probabilities, NaN for an input that could not be read
    or for which the model gives no finite number. ``std`` is the standard deviation over draws and models, None where
    there is a single pass. A *draw* is one pass with its own random choices (:mod:`tokengt.models.passes`).
    ``problems`` says of every row of NaN why it is so, by its place.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64] | None
    problems: dict[int, str]

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, place: Any) -> Any:
        return self.mean[place]

    def __iter__(self) -> Iterator[NDArray[np.float64]]:
        return iter(self.mean)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.mean, dtype=dtype, copy=copy)


@dataclass(frozen=True, eq=False)
class Trained:
    """One trained model, with the scaling it was trained with."""

    model: Model
    task: Task
    descriptors: Descriptors

    def passes(
        self, batch: GraphBatch, draws: int, over: Over, node_ids: Float[Tensor, "nodes id_dim"] | None = None
    ) -> list[Float[Tensor, "rows out"]]:
        """Predictions of every draw: the same numbers every time they are asked for, NaN where an output is not finite.

        The outputs are looked at, because the probability of an infinite one is a finite 1.
        """
        batch = with_facts(batch, self.model.config.facts())
        given = {} if node_ids is None else {"node_ids": node_ids}
        outputs = run_passes(self.model, draws, over, lambda draw: self.model(batch, draw=draw, **given))
        return [_finite(output, self.task.predictions(output)).cpu() for output in outputs]

    def embed(self, batch: GraphBatch) -> Float[Tensor, "graphs width"]:
        return self.model.embed(with_facts(batch, self.model.config.facts())).float().cpu()


class Predictor:
    """A run and its models; several are averaged.

    Args:
        spec: what the run was made with.
        members: its models, with the scaling each was trained with.
        device: where the models are.
    """

    def __init__(self, spec: RunSpec, members: Sequence[Trained], device: torch.device) -> None:
        self.spec, self.members, self.device = spec, members, device

    @classmethod
    def load(
        cls,
        folder: str | Path,
        device: Device = "auto",
        model: nn.Module | None = None,
        max_atoms: int | None = None,
    ) -> "Predictor":
        """Read a run, or one that comes with the package by its name, as in ``pretrained:gap``.

        A run of your own module needs it again: ``model`` gets the run's weights. ``max_atoms``: how large a molecule
        may be, instead of the run's own limit.

        Raises:
            ValueError: one sentence: the folder holds no finished run, or not as it was written.
        """
        spec, homes = read_members(find_run(folder))
        if max_atoms is not None and spec.molecules is not None:
            spec = replace(spec, molecules=replace(spec.molecules, max_atoms=max_atoms))
        where = torch.device(DeviceConfig(device).resolved)
        members = []
        for home, own in homes:
            if not (home / WEIGHTS).is_file():
                raise ValueError(
                    f"{home} is not trained to the end; go on with it (resume=True in Python, --resume in the command)"
                )
            members.append(Trained(_restored(home, own.model, model, where), own.task, own.descriptors))
        return cls(spec, members, where)

    @property
    def task(self) -> Task:
        return self.spec.task

    def refuse_links(self, what: str) -> None:
        """One sentence where this run predicts links, which ``what`` has no way to ask about."""
        if self.spec.level == "link":
            raise ValueError(f"this run predicts links, and {what} knows graphs, nodes and edges alone; use predict")

    def predict(
        self,
        inputs: Any,
        *,
        descriptors: Any = None,
        draws: int = 1,
        over: Over = "identifiers",
        node_ids: Float[Tensor, "nodes id_dim"] | None = None,
    ) -> Predictions:
        """Predictions of SMILES, or of graphs as a model takes them (PyG data, Graphs, a GraphBatch).

        Args:
            inputs: a list of SMILES, one SMILES, or graphs. A SMILES that cannot be read costs the others nothing.
            descriptors: [inputs, columns] the extra numbers the model was trained with, in their order.
            draws: how many passes of each model are averaged; ``std`` is their standard deviation. A single draw gives
                the same numbers every time.
            over: what differs between draws: "identifiers" (signs or random draws) or "dropout".
            node_ids: identifiers to use instead of the model's own, for all nodes of the inputs that can be read.
        """
        graphs, kept, count, problems = self._read(inputs, descriptors)
        mean, std = self.predict_graphs(graphs, draws, over, node_ids)
        unpredicted = self.reasons(graphs, mean)
        if self.spec.level != "graph":
            return Predictions(mean.numpy(), None if std is None else std.numpy(), unpredicted)
        problems |= {int(kept[row]): reason for row, reason in unpredicted.items()}
        deviations = None if std is None else _scattered(std, kept, count)
        return Predictions(_scattered(mean, kept, count), deviations, problems)

    def embed(self, inputs: Any, *, descriptors: Any = None) -> NDArray[np.float64]:
        """A vector [inputs, width] for each input of :meth:`predict`, NaN where that has no prediction either."""
        graphs, kept, count, _ = self._read(inputs, descriptors)
        return _scattered(self.embed_graphs(graphs), kept, count)

    def _read(self, inputs: Any, descriptors: Any) -> tuple[GraphBatch, NDArray[np.int64], int, dict[int, str]]:
        """Inputs as graphs, the places of those that could be read, the number of inputs, and the others' problems."""
        texts = _texts(inputs)
        if texts is not None:
            graphs, kept, problems = self.read_texts(texts)
            count = len(texts)
        else:
            graphs, problems = as_batch(inputs), {}
            count, kept = len(graphs), np.arange(len(graphs))
        if descriptors is not None or self.spec.descriptors.names:
            graphs = graphs.with_graph_features(self._descriptors(descriptors, count)[torch.from_numpy(kept)])
        return graphs, kept, count, problems

    def read_texts(
        self, texts: Sequence[Any], kind: TextKind = "smiles"
    ) -> tuple[GraphBatch, NDArray[np.int64], dict[int, str]]:
        """Molecules as this run's policy reads them, their places, and why the others cannot be read."""
        if self.spec.molecules is None:
            raise ValueError("this run was trained on graphs that are no molecules; expected graphs, got text")
        packed = pack_molecules([text if isinstance(text, str) else "" for text in texts], self.spec.molecules, kind)
        named = {place: f"expected text, got {text!r}" for place, text in enumerate(texts) if not isinstance(text, str)}
        return batch_of_molecules(packed), packed.kept, dict(packed.problems) | named

    def predict_graphs(
        self,
        graphs: GraphBatch,
        draws: int = 1,
        over: Over = "identifiers",
        node_ids: Float[Tensor, "nodes id_dim"] | None = None,
    ) -> Prediction:
        """Prediction and standard deviation of every row (graph, node, edge or link).

        ``graph_features`` are descriptors as measured: each model scales them as it was trained. The prediction is the
        mean over all draws of all models; a single pass has no standard deviation. A row for which some model gives no
        finite number is NaN, and :meth:`reasons` says so. Of links, no edge between the nodes of a pair that is asked
        about is read, as in training.
        """
        for member in self.members:
            check_passes(member.model, draws, over, given_ids=node_ids is not None)
        if node_ids is not None and len(node_ids) != graphs.num_nodes:
            raise ValueError(f"node_ids has {len(node_ids)} rows; expected {graphs.num_nodes}, one per node")
        if self.spec.level == "link":
            graphs = without_edges_of(graphs)
        rows = graphs.level_rows(self.spec.level)
        mean = torch.full((rows.total, self.task.out_dim), torch.nan, dtype=torch.float64)
        std = torch.full_like(mean, torch.nan) if draws * len(self.members) > 1 else None
        inputs = [_scaled(graphs, member.descriptors) for member in self.members]
        for places in self.batches(graphs):
            index, _ = rows.take(places)
            passes = []
            own_ids = None if node_ids is None else node_ids[graphs.nodes.take(places)[0]].to(self.device)
            for member, own in zip(self.members, inputs, strict=True):
                passes += member.passes(own.select(places).to(self.device), draws, over, own_ids)
            summary = summarise(passes)
            mean[index] = summary.mean
            if std is not None and summary.std is not None:
                std[index] = summary.std
        lost = _overflowing(inputs)[rows.ids.cpu()] | ~torch.isfinite(mean).all(1)
        lost = lost if std is None else lost | ~torch.isfinite(std).all(1)
        mean[lost] = torch.nan
        if std is not None:
            std[lost] = torch.nan
        return Prediction(mean, std)

    def reasons(
        self, graphs: GraphBatch, values: Float[Tensor, "rows out"], level: Level | None = None
    ) -> dict[int, str]:
        """Why rows of predictions (or with level "graph" of vectors) are NaN, by row; no entry for the others."""
        rows = torch.nonzero(torch.isnan(values).any(1)).flatten()
        owners = graphs.level_rows(level or self.spec.level).ids[rows]
        return {row: self._reason(graphs, owner) for row, owner in zip(rows.tolist(), owners.tolist(), strict=True)}

    def _reason(self, graphs: GraphBatch, place: int) -> str:
        scaling, values = self.members[0].descriptors, graphs.graph_features
        if values is not None and scaling.names:
            far = scaling.scaled(values[place : place + 1])[0].abs().nan_to_num(nan=torch.inf)
            column = int(far.argmax())
            if far[column] > 1e3:
                return (
                    f"descriptor {scaling.names[column]!r} is {float(values[place, column]):g}, too far from those of "
                    f"training ({scaling.mean[column]:g} ± {scaling.scale[column]:g}) for a finite prediction"
                )
        return "the model gives no finite number for it; are its features far larger than those of training?"

    @torch.no_grad()
    def embed_graphs(self, graphs: GraphBatch) -> Float[Tensor, "graphs dim"]:
        """One vector per graph, as its model embeds it; those of several models side by side.

        NaN where a vector is not finite, as predictions are.
        """
        if not len(graphs):
            return torch.zeros(0, self.width)
        inputs = [_scaled(graphs, member.descriptors) for member in self.members]
        batches, vectors = self.batches(graphs), []
        for places in batches:
            parts = [
                member.embed(own.select(places).to(self.device))
                for member, own in zip(self.members, inputs, strict=True)
            ]
            vectors.append(torch.cat(parts, 1))
        # Batches are sorted by size: every vector goes back to its graph's place.
        found = torch.cat(vectors).index_select(0, torch.argsort(torch.cat(batches)))
        found[_overflowing(inputs) | ~torch.isfinite(found).all(1)] = torch.nan
        return found

    @property
    def width(self) -> int:
        """The length of an embedding, asked for only where there is nothing to embed."""
        return sum(member.model.embedding_width for member in self.members)

    def batches(self, graphs: GraphBatch) -> list[Tensor]:
        """The places of the graphs that one call of the model takes together, batch by batch: of similar sizes."""
        # The models of a run differ in their weights and scaling only, so the first can say what a graph costs.
        costs = self.members[0].model.costs(graphs)
        return evaluation_batches(torch.arange(len(graphs)), costs, tokens_predicted_at_once(self.device))

    def _descriptors(self, values: Any, count: int) -> Float[Tensor, "rows columns"]:
        names = self.spec.descriptors.names
        expected = f"{count} rows of {len(names)} numbers ({', '.join(names) or 'this run has no descriptors'})"
        if values is None:
            raise ValueError(f"this run was trained with descriptors; expected {expected}")
        table = torch.as_tensor(np.asarray(values, dtype=np.float64))
        table = table[:, None] if table.ndim == 1 and len(names) == 1 else table
        if table.shape != (count, len(names)) or not bool(torch.isfinite(table).all()):
            raise ValueError(f"descriptors have shape {list(table.shape)}; expected {expected}, none missing")
        return table.float()


def load(
    folder: str | Path, device: Device = "auto", model: nn.Module | None = None, max_atoms: int | None = None
) -> Predictor:
    """A trained run, ready to predict: ``tokengt.load("runs/esol").predict(["CCO"])``.

    A run of your own module needs one like it, whose weights are replaced: ``tokengt.load(run, model=MyModule(...))``.
    """
    return Predictor.load(folder, device, model, max_atoms)


def _restored(home: Path, config: ModelConfig, given: nn.Module | None, device: torch.device) -> Model:
    """The trained model of a folder: built from its config, or a copy of the caller's own module with its weights."""
    if given is None:
        return _in_fast_numbers(restore(config.build, read_weights(home), home, device), device)
    own = as_model(given)
    if isinstance(own.config, OwnConfig) and isinstance(config, OwnConfig) and own.config != config:
        same = own.config.name == config.name
        what = f"your {config.name} is built with other layers" if same else f"model is a {own.config.name}"
        raise ValueError(f"{home} was trained with a {config.name}; {what}; expected one like that which was trained")
    if own.config.kind != config.kind:
        raise ValueError(
            f"{home / CONFIG} describes a model of kind {config.kind!r}; leave out model=: it can be built"
        )
    return _in_fast_numbers(restore(lambda: copy_of(own, None), read_weights(home), home, device), device)


def _in_fast_numbers(model: Model, device: torch.device) -> Model:
    """On a CPU, which multiplies half precision slowly, the same weights in float32."""
    half = any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in model.parameters())
    return model.float() if half and device.type == "cpu" else model


def _texts(inputs: Any) -> list[Any] | None:
    """A list of texts, whatever it came as (one text, a pandas Series, a NumPy array); None for graphs."""
    if isinstance(inputs, str):
        return [inputs]
    if hasattr(inputs, "tolist") and not isinstance(inputs, Tensor):
        inputs = inputs.tolist()
    if not isinstance(inputs, (list, tuple)):
        return None
    return list(inputs) if not inputs or any(isinstance(each, str) for each in inputs) else None


def _scaled(graphs: GraphBatch, descriptors: Descriptors) -> GraphBatch:
    if graphs.graph_features is None or not descriptors.mean:
        return graphs
    return graphs.with_graph_features(descriptors.scaled(graphs.graph_features))


def _finite(output: Float[Tensor, "rows out"], values: Float[Tensor, "rows out"]) -> Float[Tensor, "rows out"]:
    """The values of rows whose outputs are finite, NaN elsewhere."""
    return torch.where(torch.isfinite(output).all(1, keepdim=True), values, torch.nan)


def _overflowing(inputs: Sequence[GraphBatch]) -> Bool[Tensor, " graphs"]:
    """Which graphs have, in any of these versions of them, numbers that float32 cannot compute with."""
    lost = torch.zeros(len(inputs[0]), dtype=torch.bool)
    for graphs in inputs:
        for rows, features in (
            (graphs.nodes, graphs.node_features),
            (graphs.edges, graphs.edge_features),
            (graphs.hyperedges, graphs.hyperedge_features),
            (graphs.level_rows("graph"), graphs.graph_features),
        ):
            if features is not None and features.is_floating_point():
                lost[rows.ids[_too_large(features)].cpu()] = True
    return lost


def _too_large(features: Float[Tensor, "rows _"] | SparseRows) -> Bool[Tensor, " rows"]:
    """Which rows hold a number that float32 cannot compute with."""
    if not isinstance(features, SparseRows):
        return ~(features.abs() <= _LARGEST_INPUT).all(1)
    wrong = ~(features.values.abs() <= _LARGEST_INPUT)
    return torch.zeros(len(features), dtype=torch.bool).index_fill(0, features.entries.ids[wrong].cpu(), True)


def _scattered(values: Float[Tensor, "kept out"], kept: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Rows at their places among all inputs, NaN elsewhere."""
    out = np.full((count, values.shape[1]), np.nan)
    out[kept] = values.numpy()
    return out
