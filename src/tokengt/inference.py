"""A trained run, ready to predict: the same input gives the same prediction, alone or in any batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.data.batching import evaluation_batches, tokens_at_once
from tokengt.interop.molecules import TextKind, pack_molecules
from tokengt.interop.pyg import as_batch
from tokengt.interop.smiles import batch_of_molecules
from tokengt.models.tokengt.model import TokenGT
from tokengt.training.parts import level_rows, token_counts
from tokengt.training.processes import Device, DeviceConfig
from tokengt.training.spec import Descriptors, RunSpec, read_run
from tokengt.training.tasks import Task

Spread = Literal["identifiers", "dropout"]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of many inputs, in order; to NumPy and to loops it is the array ``mean``.

    ``mean`` [rows, targets or classes] are natural units or probabilities, NaN for an input that could not be read;
    ``std`` is their spread, where it was asked for; ``problems`` are the reasons by place.
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
class Member:
    """One model, with the scaling it was trained with."""

    model: TokenGT
    task: Task
    descriptors: Descriptors

    def predictions(self, batch: GraphBatch, draw: int = 0) -> Float[Tensor, "rows out"]:
        return self.task.predictions(self.model(batch, draw=draw)).cpu()

    def another(self, batch: GraphBatch, draw: int, spread: Spread) -> Float[Tensor, "rows out"]:
        """Pass number ``draw``: the same numbers every time it is asked for."""
        if spread == "identifiers":
            return self.predictions(batch, draw)
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            torch.manual_seed(draw)
            self.model.train()
            try:
                return self.predictions(batch)
            finally:
                self.model.eval()


class Predictor:
    """A run and its models; several are averaged.

    Args:
        spec: what the run was made with.
        members: its models, with the scaling each was trained with.
        device: where the models are.
    """

    def __init__(self, spec: RunSpec, members: Sequence[Member], device: torch.device) -> None:
        self.spec, self.members, self.device = spec, members, device

    @classmethod
    def load(cls, folder: str | Path, device: Device = "auto") -> "Predictor":
        """Read a run.

        Raises:
            ValueError: one sentence: the folder holds no finished run.
        """
        folder = Path(folder)
        spec = read_run(folder)
        where = torch.device(DeviceConfig(device).resolved)
        members = []
        for home in [folder / "members" / name for name in spec.members] or [folder]:
            if not (home / "model.safetensors").is_file():
                raise ValueError(f"{home} is not trained to the end; go on with the same command and --resume")
            own = read_run(home)
            members.append(Member(TokenGT.from_pretrained(home, where), own.task, own.descriptors))
        return cls(spec, members, where)

    @property
    def task(self) -> Task:
        return self.spec.task

    def predict(
        self,
        inputs: Any,
        *,
        descriptors: Any = None,
        uncertainty: int = 0,
        spread: Spread = "identifiers",
    ) -> Predictions:
        """Predictions of SMILES, or of graphs as a model takes them (PyG data, Graphs, a GraphBatch).

        Args:
            inputs: a list of SMILES, one SMILES, or graphs. A SMILES that cannot be read costs the others nothing.
            descriptors: [inputs, columns] the extra numbers the model was trained with, in their order.
            uncertainty: passes that ``std`` is taken over, 2 or more; 0 for none.
            spread: what differs between passes: "identifiers" (signs or random draws) or "dropout" as well.
        """
        graphs, kept, count, problems = self._read(inputs, descriptors)
        mean, std = self.predict_graphs(graphs, uncertainty, spread)
        if self.spec.level != "graph":
            return Predictions(mean.numpy(), None if std is None else std.numpy(), problems)
        spreads = None if std is None else _scattered(std, kept, count)
        return Predictions(_scattered(mean, kept, count), spreads, problems)

    def embed(self, inputs: Any, *, descriptors: Any = None) -> NDArray[np.float64]:
        """A vector [inputs, width] for each input of :meth:`predict`, NaN for one that could not be read."""
        graphs, kept, count, _ = self._read(inputs, descriptors)
        return _scattered(self.embed_graphs(graphs), kept, count)

    def _read(self, inputs: Any, descriptors: Any) -> tuple[GraphBatch, NDArray[np.int64], int, dict[int, str]]:
        """Inputs as graphs, the places of those that could be read, how many there are, and the reasons of the rest."""
        texts = _texts(inputs)
        if texts is not None:
            graphs, kept, problems = self.read_texts(texts)
            count = len(texts)
        else:
            graphs, problems = as_batch(inputs).narrowed(), {}
            count, kept = len(graphs), np.arange(len(graphs))
        if descriptors is not None or self.spec.descriptors.names:
            graphs = graphs.with_graph_features(self._descriptors(descriptors, count)[torch.from_numpy(kept)])
        return graphs, kept, count, problems

    def read_texts(
        self, texts: Sequence[Any], kind: TextKind = "smiles"
    ) -> tuple[GraphBatch, NDArray[np.int64], dict[int, str]]:
        """Molecules as this run's policy reads them, their places, and the reasons of those that cannot be read."""
        if self.spec.molecules is None:
            raise ValueError("this run was trained on graphs that are no molecules; expected graphs, got text")
        packed = pack_molecules([text if isinstance(text, str) else "" for text in texts], self.spec.molecules, kind)
        named = {place: f"expected text, got {text!r}" for place, text in enumerate(texts) if not isinstance(text, str)}
        return batch_of_molecules(packed), packed.kept, dict(packed.problems) | named

    @torch.no_grad()
    def predict_graphs(
        self, graphs: GraphBatch, uncertainty: int = 0, spread: Spread = "identifiers"
    ) -> tuple[Float[Tensor, "rows out"], Float[Tensor, "rows out"] | None]:
        """Prediction and spread of every row (graph, node or edge); ``graph_features`` are descriptors as measured.

        The prediction is that of the canonical identifiers, averaged over the models, with or without a spread.
        """
        self._check_spread(uncertainty, spread)
        rows = level_rows(graphs, self.spec.level)
        mean = torch.full((rows.total, self.task.out_dim), torch.nan, dtype=torch.float64)
        std = torch.full_like(mean, torch.nan) if uncertainty else None
        inputs = [_scaled(graphs, member.descriptors) for member in self.members]
        for places in self._batches(graphs):
            index, _ = rows.take(places)
            firsts, passes = [], []
            for member, own in zip(self.members, inputs, strict=True):
                batch = own.select(places).to(self.device)
                firsts.append(member.predictions(batch))
                passes += [member.another(batch, draw, spread) for draw in range(uncertainty)]
            mean[index] = torch.stack(firsts).mean(0)
            if std is not None:
                std[index] = torch.stack(passes).std(0)
        return mean, std

    @torch.no_grad()
    def embed_graphs(self, graphs: GraphBatch) -> Float[Tensor, "graphs dim"]:
        """Encoded [graph] tokens (the pooled tokens of a model without); those of several models side by side."""
        out = torch.zeros(len(graphs), self.width)
        inputs = [_scaled(graphs, member.descriptors) for member in self.members]
        for places in self._batches(graphs):
            found = []
            for member, own in zip(self.members, inputs, strict=True):
                tokens = member.model.encode(own.select(places).to(self.device))
                found.append((tokens.pooled if tokens.graph_rows is None else tokens.graph).float().cpu())
            out[places] = torch.cat(found, 1)
        return out

    @property
    def width(self) -> int:
        """The length of an embedding."""
        return sum(member.model.config.dim for member in self.members)

    def _batches(self, graphs: GraphBatch) -> list[Tensor]:
        undirected = self.spec.model.tokens.layout == "undirected"
        tokens = token_counts(graphs, undirected)
        return evaluation_batches(torch.arange(len(graphs)), tokens, tokens_at_once(self.device))

    def _check_spread(self, uncertainty: int, spread: str) -> None:
        if spread not in get_args(Spread):
            raise ValueError(f"spread is {spread!r}; expected 'identifiers' or 'dropout'")
        if uncertainty < 0 or uncertainty == 1:
            raise ValueError(f"uncertainty is {uncertainty}; expected 2 or more passes, or 0 for no spread")
        if uncertainty and spread == "identifiers" and self.spec.model.identifiers.kind == "none":
            raise ValueError("this model has no identifiers to draw; take the spread over dropout passes instead")

    def _descriptors(self, values: Any, count: int) -> Float[Tensor, "rows columns"]:
        names = self.spec.descriptors.names
        wanted = f"{count} rows of {len(names)} numbers ({', '.join(names) or 'this run has no descriptors'})"
        if values is None:
            raise ValueError(f"this run was trained with descriptors; expected {wanted}")
        found = torch.as_tensor(np.asarray(values, dtype=np.float64))
        found = found[:, None] if found.ndim == 1 and len(names) == 1 else found
        if found.shape != (count, len(names)) or not bool(torch.isfinite(found).all()):
            raise ValueError(f"descriptors have shape {list(found.shape)}; expected {wanted}, none missing")
        return found.float()


def load(folder: str | Path, device: Device = "auto") -> Predictor:
    """A trained run, ready to predict: ``tokengt.load("runs/esol").predict(["CCO"])``."""
    return Predictor.load(folder, device)


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


def _scattered(values: Float[Tensor, "kept out"], kept: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Rows at their places among all inputs, NaN elsewhere."""
    out = np.full((count, values.shape[1]), np.nan)
    out[kept] = values.numpy()
    return out
