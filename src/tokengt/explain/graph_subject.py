"""Any other model as a function of the graph: parts taken out of it, or features on the way from ordinary ones.

A node is taken out with all its edges, an edge in both directions, and whatever the model knows of the structure
(distances, walks) is worked out anew for the graph that is left. The path of gradients goes through the embedded
features, where a model embeds them by our :class:`~tokengt.models.features.FeatureEncoder`: from those of the most
ordinary node (and edge) of the graph to their own. Descriptors, structure and wiring stay as they are along it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.explain.subject import Reading, Slopes, Subject, as_they_are
from tokengt.explain.token_subject import check_row, most_ordinary
from tokengt.explain.tokens import tokens_of
from tokengt.level import Level
from tokengt.models.contract import Model
from tokengt.models.features import FeatureEncoder
from tokengt.models.own import OwnModel, as_model
from tokengt.models.passes import evaluating
from tokengt.ragged import Segments
from tokengt.sparse import SparseRows
from tokengt.structure.facts import with_facts

# A model of one's own may keep anything, so that few copies of a graph go through it at once.
_BYTES_PER_TOKEN = 2**18


class GraphSubject(Subject):
    """One row of a model's outputs for one graph.

    Args:
        model: any model of the contract, or a module that takes a :class:`GraphBatch`.
        batch: one graph.
        row: which row: 0 of a graph-level model, else the number of the node or of the listed edge.
        reading: what is explained of the outputs.
        draw: which of several random passes, for a model that has any.
    """

    baseline = "every node and every edge has the embedded features of the most ordinary one of this graph"

    def __init__(
        self, model: nn.Module, batch: GraphBatch, row: int = 0, reading: Reading = as_they_are, draw: int = 0
    ) -> None:
        self.model: Model = as_model(model)
        self.batch, self.row, self.reading, self.draw = batch, row, reading, draw
        self.tokens = tokens_of(self.model, batch)
        self.level = self._level()
        check_row(row, batch.level_rows(self.level).total, self.level)
        self.of_edge = torch.from_numpy(self.tokens.of_edge)
        if self.level != "graph":
            place = self.tokens.nodes[row] if self.level == "node" else self.tokens.of_edge[row]
            self.read_from = frozenset({int(place)})

    def _level(self) -> Level:
        """What a row of outputs belongs to; of a module of one's own it is told by how many there are."""
        level = getattr(self.model.config, "level", None)
        if level is not None:
            return level  # type: ignore[no-any-return]
        with torch.no_grad(), evaluating(self.model):
            rows = len(self._forward(self.batch.select([0, 0])))
        sizes: dict[Level, int] = {"graph": 1, "node": self.batch.num_nodes, "edge": self.batch.num_edges}
        found = [level for level, size in sizes.items() if rows == 2 * size]
        if not found:
            raise ValueError(f"the model gives {rows} rows for two graphs; expected one per graph, node or edge")
        return found[0]

    def size(self) -> int:
        return _BYTES_PER_TOKEN

    def _forward(self, batch: GraphBatch) -> Float[Tensor, "rows out"]:
        rows: Tensor = self.model(with_facts(batch, self.model.config.facts()), draw=self.draw)
        return rows

    @torch.no_grad()
    def without(self, removed: Bool[Tensor, "copies tokens"]) -> Float[Tensor, "copies out"]:
        found = []
        with evaluating(self.model):
            for some in self.chunks(len(removed), gradients=False):
                rows, copies = self._without(removed[some])
                read = self.reading(rows)
                blank = read.new_full((len(removed[some]), read.shape[1]), torch.nan)
                found.append(blank.index_copy(0, copies, read))
        return torch.cat(found)

    def _without(
        self, removed: Bool[Tensor, "copies tokens"]
    ) -> tuple[Float[Tensor, "rows out"], Int[Tensor, " rows"]]:
        """The outputs of those copies that still have the row, and which copies these are."""
        batch, nodes = self.batch, torch.from_numpy(self.tokens.nodes)
        kept = ~removed[:, nodes]
        first, second = batch.edge_numbers.local.long().cpu()
        joined = ~removed[:, self.of_edge] & kept[:, first] & kept[:, second]
        there = kept.any(1)
        if self.level == "node":
            there &= kept[:, self.row]
        if self.level == "edge":
            there &= joined[:, self.row]
        copies = torch.nonzero(there).flatten()
        graphs = subgraphs(batch, kept[copies], joined[copies])
        outputs = self._forward(graphs)
        if self.level != "graph":
            mask, rows = (kept, graphs.nodes) if self.level == "node" else (joined, graphs.edges)
            outputs = outputs[rows.starts + mask[copies, : self.row].sum(1).to(rows.starts)]
        return outputs, copies.to(outputs.device)

    def slopes(self, times: Float[Tensor, " points"], output: int, stage: int = 0) -> Slopes:
        values: list[Tensor] = []
        all_slopes: list[Tensor] = []
        for some in self.chunks(len(times), gradients=True):
            points = len(times[some])
            copies = self.batch.select([0] * points)
            with evaluating(self.model), torch.enable_grad(), self._on_the_path(copies, times[some]) as passed:
                rows = self._forward(copies)
                if not passed:
                    raise ValueError(
                        f"{self._name()} embeds no features of this graph, so there is no path for gradients"
                    )
                if self.level != "graph":
                    rows = rows[copies.level_rows(self.level).starts + self.row]
                outputs = self.reading(rows)[:, output]
                leaves = [leaf for _, leaf, _ in passed]
                found = torch.autograd.grad(outputs.sum(), leaves, allow_unused=True)
            slopes = torch.zeros(points, len(self.tokens), dtype=outputs.dtype)
            for (name, _, difference), gradient in zip(passed, found, strict=True):
                if gradient is not None:
                    slopes += self._by_token(name, (gradient * difference).sum(1).view(points, -1).cpu())
            values.append(outputs.detach())
            all_slopes.append(slopes)
        return Slopes(torch.cat(values), {"features": torch.cat(all_slopes)})

    def _by_token(self, name: str, slopes: Float[Tensor, "points rows"]) -> Float[Tensor, "points tokens"]:
        """Slopes of nodes, or of listed edges, at the tokens that they belong to."""
        places = torch.from_numpy(self.tokens.nodes) if name == "node_features" else self.of_edge
        return slopes.new_zeros(len(slopes), len(self.tokens)).index_add(1, places, slopes)

    @contextmanager
    def faded(self, nodes: Float[Tensor, " nodes"], edges: Float[Tensor, " edges"] | None = None) -> Iterator[None]:
        """So much of the features of every node (and edge) is there inside, the rest being those of the ordinary one.

        ``edges`` is None for all of them.
        """

        def blended(module: FeatureEncoder, inputs: Any, embedded: Tensor | None) -> Tensor | None:
            there = nodes if module.name == "node_features" else edges
            if embedded is None or there is None or not len(embedded):
                return None
            usual = embedded[most_ordinary(embedded.detach())]
            return usual + there[:, None] * (embedded - usual)

        with self._hooked(blended):
            yield

    @contextmanager
    def _on_the_path(
        self, copies: GraphBatch, times: Float[Tensor, " points"]
    ) -> Iterator[list[tuple[str, Tensor, Tensor]]]:
        """Whatever the model embeds of features inside is on its way; gives their name, the rows, and what is added."""
        passed: list[tuple[str, Tensor, Tensor]] = []

        def moved(module: FeatureEncoder, inputs: Any, embedded: Tensor | None) -> Tensor | None:
            if embedded is None:
                return None
            rows = copies.nodes if module.name == "node_features" else copies.edges
            if len(embedded) != rows.total:
                raise ValueError(f"{self._name()} does not embed its {module.name} row by row, so there is no path")
            single = embedded.view(len(times), -1, embedded.shape[1])
            usual = single[:, most_ordinary(single[0].detach()), None] if single.shape[1] else single
            difference = (single - usual).detach().flatten(0, 1)
            time = times.to(difference).index_select(0, rows.ids.to(difference.device))[:, None]
            leaf = (usual.expand_as(single).flatten(0, 1) + time * difference).detach().requires_grad_()
            passed.append((module.name, leaf, difference))
            return leaf

        with self._hooked(moved):
            yield passed

    @contextmanager
    def _hooked(self, hook: Callable[[FeatureEncoder, Any, Tensor | None], Tensor | None]) -> Iterator[None]:
        """The hook on everything that embeds features of nodes or edges."""
        names = ("node_features", "edge_features")
        encoders = [part for part in self.model.modules() if isinstance(part, FeatureEncoder) and part.name in names]
        if not encoders:
            why = "a module of your own" if isinstance(self.model, OwnModel) else "without embedded features"
            raise ValueError(f"{self._name()} is {why}, so there is no path for gradients; take method 'occlusion'")
        handles = [encoder.register_forward_hook(hook) for encoder in encoders]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _name(self) -> str:
        return self.model.config.describe().name


def subgraphs(
    batch: GraphBatch, nodes: Bool[Tensor, "copies nodes"], edges: Bool[Tensor, "copies edges"]
) -> GraphBatch:
    """Copies of one graph, each with some of its nodes and some of the edges between them, as one packed batch."""
    device = batch.device
    kept, joined = (torch.nonzero(mask) for mask in (nodes, edges))
    segments = [Segments.from_lengths(mask.sum(1), device) for mask in (nodes, edges)]
    # Where each node of each copy lies among all that are kept.
    place = torch.cumsum(nodes.flatten().long(), 0).view(nodes.shape) - 1
    ends = batch.edge_numbers.local.long().cpu()[:, joined[:, 1]]
    none = Segments.uniform(len(nodes), 0, device)
    features = {
        "node_features": _taken(batch.node_features, kept[:, 1]),
        "edge_features": _taken(batch.edge_features, joined[:, 1]),
        "graph_features": _taken(batch.graph_features, torch.zeros(len(nodes), dtype=torch.int64)),
    }
    return GraphBatch.from_packed(
        nodes=segments[0],
        edges=segments[1],
        hyperedges=none,
        members=Segments.uniform(0, 0, device),
        edge_index=place[joined[:, 0], ends].to(device),
        hyperedge_nodes=torch.empty(0, dtype=torch.int64, device=device),
        **features,
    )


def _taken(features: Tensor | SparseRows | None, rows: Int[Tensor, " rows"]) -> Tensor | SparseRows | None:
    return None if features is None else features[rows.to(features.device)]
