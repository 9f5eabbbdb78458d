"""A trained run, ready to predict: the same input gives the same prediction, alone or in any batch."""

from collections.abc import Sequence
from dataclasses import replace
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
from tokengt.inference.answers import Answer, Predictions, scattered
from tokengt.inference.trained import Passes, Trained, restored, scaled
from tokengt.interop.molecules import TextKind, pack_molecules
from tokengt.interop.pyg import as_batch
from tokengt.interop.smiles import batch_of_molecules
from tokengt.level import Level
from tokengt.links import without_edges_of
from tokengt.models.forest import read_forest
from tokengt.models.passes import Over, Prediction, check_passes
from tokengt.models.pretrained import WEIGHTS
from tokengt.sparse import SparseRows
from tokengt.training.calibrating import describe
from tokengt.training.calibration import Calibration, Trust, read_calibration
from tokengt.training.neighbours import Described
from tokengt.training.processes import Device, DeviceConfig
from tokengt.training.spec import RunSpec, calibration_of, read_members
from tokengt.training.tasks import Task

# The square of anything larger, times a weight, overflows float32; a layer norm would then make zeros of it, and a
# prediction that depends on nothing.
_LARGEST_INPUT = 1e15


class Predictor:
    """A run and its models; several are averaged.

    Args:
        spec: what the run was made with.
        members: its models, with the scaling each was trained with.
        device: where the models are.
        calibration: what its validation part said about its predictions.
    """

    def __init__(
        self,
        spec: RunSpec,
        members: Sequence[Trained],
        device: torch.device,
        calibration: Calibration | None = None,
    ) -> None:
        self.spec, self.members, self.device = spec, members, device
        self.calibration = calibration or Calibration()

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
        home = find_run(folder)
        spec, homes = read_members(home)
        calibration = read_calibration(home, *calibration_of(home))
        if max_atoms is not None and spec.molecules is not None:
            spec = replace(spec, molecules=replace(spec.molecules, max_atoms=max_atoms))
        where = torch.device(DeviceConfig(device).resolved)
        members = []
        for home, own in homes:
            if not (home / WEIGHTS).is_file():
                raise ValueError(
                    f"{home} is not trained to the end; go on with it (resume=True in Python, --resume in the command)"
                )
            forest = read_forest(home).to(where) if own.forest else None
            members.append(Trained(restored(home, own.model, model, where), own.task, own.descriptors, forest))
        return cls(spec, members, where, calibration)

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
        interval: float | None = None,
        neighbours: bool = False,
    ) -> Predictions:
        """Predictions of SMILES, or of graphs as a model takes them (PyG data, Graphs, a GraphBatch).

        Args:
            inputs: a list of SMILES, one SMILES, or graphs. A SMILES that cannot be read costs the others nothing.
            descriptors: [inputs, columns] the extra numbers the model was trained with, in their order.
            draws: how many passes of each model are averaged; ``std`` is their standard deviation. A single draw gives
                the same numbers every time.
            over: what differs between draws: "identifiers" (signs or random draws) or "dropout".
            node_ids: identifiers to use instead of the model's own, for all nodes of the inputs that can be read.
            interval: of numbers: the share of labels that ``low`` to ``high`` is to hold, such as 0.9.
            neighbours: say how near the training data is; an interval brings this along.
        """
        graphs, kept, count, problems = self._read(inputs, descriptors)
        answer = self.answers(graphs, draws, over, node_ids, interval, neighbours)
        unpredicted = self.reasons(graphs, answer.mean)
        places, count = (kept, count) if self.spec.level == "graph" else (np.arange(len(answer.mean)), len(answer.mean))
        problems |= {int(places[row]): reason for row, reason in unpredicted.items()}
        return Predictions.of(answer, places, count, problems)

    def embed(self, inputs: Any, *, descriptors: Any = None) -> NDArray[np.float64]:
        """A vector [inputs, width] for each input of :meth:`predict`, NaN where that has no prediction either."""
        graphs, kept, count, _ = self._read(inputs, descriptors)
        return scattered(self.embed_graphs(graphs).numpy(), kept, count)

    def _read(self, inputs: Any, descriptors: Any) -> tuple[GraphBatch, NDArray[np.int64], int, dict[int, str]]:
        """Inputs as graphs, the places of those that could be read, the number of inputs, and the others' problems."""
        texts = _texts(inputs)
        if texts is not None:
            graphs, kept, problems = self.read_texts(texts)
            count = len(texts)
        else:
            graphs, problems = as_batch(inputs), {}
            count, kept = len(graphs), np.arange(len(graphs))
        if descriptors is not None or self.spec.descriptors.columns:
            given = self._descriptors(descriptors, count)[torch.from_numpy(kept)]
            # What is worked out from the molecule follows what is given.
            own = [] if graphs.graph_features is None else [graphs.graph_features.float()]
            graphs = graphs.with_graph_features(torch.cat([given, *own], 1))
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
        mean over all draws of all models; a single pass has no standard deviation unless the model tells its own. A row
        for which some model gives no finite number is NaN, and :meth:`reasons` says so. Of links, no edge between the
        nodes of a pair that is asked about is read, as in training.
        """
        answer = self.answers(graphs, draws, over, node_ids)
        return Prediction(answer.mean, answer.std)

    def answers(
        self,
        graphs: GraphBatch,
        draws: int = 1,
        over: Over = "identifiers",
        node_ids: Float[Tensor, "nodes id_dim"] | None = None,
        interval: float | None = None,
        neighbours: bool = False,
    ) -> "Answer":
        """:meth:`predict_graphs`, with how far its predictions can be trusted where that is asked for.

        Raises:
            ValueError: one sentence: the run cannot tell it.
        """
        self.check_trust(interval, neighbours)
        for member in self.members:
            check_passes(member.model, draws, over, given_ids=node_ids is not None)
        if node_ids is not None and len(node_ids) != graphs.num_nodes:
            raise ValueError(f"node_ids has {len(node_ids)} rows; expected {graphs.num_nodes}, one per node")
        if self.spec.level == "link":
            graphs = without_edges_of(graphs)
        rows = graphs.level_rows(self.spec.level)
        mean = torch.full((rows.total, self.task.width), torch.nan, dtype=torch.float64)
        std, spread = (torch.full_like(mean, torch.nan) for _ in range(2))
        inputs = [scaled(graphs, member.descriptors) for member in self.members]
        for places in self.batches(graphs):
            index, _ = rows.take(places)
            own_ids = None if node_ids is None else node_ids[graphs.nodes.take(places)[0]].to(self.device)
            summary, between = Passes.summarised(
                [
                    member.passes(own.select(places).to(self.device), draws, over, own_ids)
                    for member, own in zip(self.members, inputs, strict=True)
                ]
            )
            mean[index] = summary.mean
            for table, values in ((std, summary.std), (spread, between)):
                if values is not None:
                    table[index] = values
        lost = _overflowing(inputs)[rows.ids.cpu()] | ~torch.isfinite(mean).all(1)
        lost = lost | ~torch.isfinite(std).all(1) if self.has_spread(draws) else lost
        for table in (mean, std, spread):
            table[lost] = torch.nan
        trust = Trust()
        if interval is not None or neighbours:
            described = self._described(graphs) if self.calibration.known is not None else None
            trust = self.calibration.trust(self.task, mean.numpy(), described, spread.numpy(), interval)
        mean = torch.from_numpy(self.calibration.probabilities(mean.numpy()))
        return Answer(mean, std if self.has_spread(draws) else None, trust)

    def readable(
        self, output: Float[Tensor, "rows out"], member: Trained, said: Float[Tensor, "_ width"] | None = None
    ) -> Float[Tensor, "rows width"]:
        """One model's outputs as :meth:`predict` would give them if there were no other; gradients flow through it.

        ``said`` is what the forest beside it says of the graph, and is not asked again.
        """
        values, chances = member.task.readable(output), self.calibration.chances
        values = values if said is None else member.with_forest(values, said)
        return values if chances is None else chances.readable(values)

    def has_spread(self, draws: int) -> bool:
        """Whether predictions have a standard deviation: there are several passes, or the models tell their own."""
        own = any(self.task.variances(torch.zeros(1, member.task.out_dim)) is not None for member in self.members)
        return own or draws * len(self.members) > 1

    def check_trust(self, interval: float | None, neighbours: bool) -> None:
        """Refuse what this run cannot tell of its predictions, in one sentence."""
        if interval is not None:
            self.calibration.check_interval(self.task, interval)
        if neighbours and self.calibration.known is None:
            raise ValueError(
                "this run does not say how near its training data is: it predicts nodes or edges, its graphs have no "
                "categories and its model no vectors, or an earlier version trained it"
            )

    def _described(self, graphs: GraphBatch) -> Described:
        """Graphs as they are compared with those of training, as the first model sees them."""
        first = self.members[0]
        molecules = self.spec.molecules is not None
        return describe(first.model, scaled(graphs, first.descriptors), self.device, molecules)

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
        inputs = [scaled(graphs, member.descriptors) for member in self.members]
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
        names = self.spec.descriptors.columns
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


def _texts(inputs: Any) -> list[Any] | None:
    """A list of texts, whatever it came as (one text, a pandas Series, a NumPy array); None for graphs."""
    if isinstance(inputs, str):
        return [inputs]
    if hasattr(inputs, "tolist") and not isinstance(inputs, Tensor):
        inputs = inputs.tolist()
    if not isinstance(inputs, (list, tuple)):
        return None
    return list(inputs) if not inputs or any(isinstance(each, str) for each in inputs) else None


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
