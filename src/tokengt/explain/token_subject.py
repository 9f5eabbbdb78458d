"""A TokenGT as a function of its tokens: some left out of the sequence, or all on the way from a baseline.

A token is the sum [X, P_u, P_v, E] w_in of its features, its identifiers and the type of its kind. The *baseline* keeps
of it what all tokens of its kind have in common: the type identifier and the mean of the features' embeddings over the
tokens of its kind in the graph. Identifiers are zero, so that nobody knows which token joins which. The path is the
straight line from there, z(t) = z_0 + t (z - z_0). A path from the zero vector would say nothing of a model with an
input norm: LN(t z) is LN(z) for every t that is not tiny, so that all of the change would happen at once.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.explain.subject import Reading, Slopes, Subject, as_they_are
from tokengt.explain.tokens import EDGE, NODE, tokens_of
from tokengt.models.passes import evaluating
from tokengt.models.tokengt.model import TokenGT
from tokengt.ragged import Segments, segment_sum
from tokengt.transformer import RowLinks

Baseline = Literal["mean", "zero"]
_SENTENCES = {
    "mean": "every token has the mean features of its kind in this graph, and no identifiers",
    "zero": "every token has its type alone: no features and no identifiers",
}
# About how many rows of the model's width a block keeps for the gradient of one token.
_ROWS_KEPT = 16


class TokenSubject(Subject):
    """One row of a TokenGT's outputs for one graph.

    Args:
        model: the model.
        batch: one graph.
        row: which row: 0 of a graph-level model, else the number of the node or of the listed edge.
        baseline: where the path begins, "mean" or "zero" features.
        reading: what is explained of the outputs.
        draw: which keyed draw of identifiers.
    """

    def __init__(
        self,
        model: TokenGT,
        batch: GraphBatch,
        row: int = 0,
        baseline: Baseline = "mean",
        reading: Reading = as_they_are,
        draw: int = 0,
    ) -> None:
        level = model.config.head.level
        if level == "link":
            raise ValueError(
                "this model scores pairs of nodes (level 'link'); explanations are of graph, node and edge"
            )
        if baseline not in _SENTENCES:
            raise ValueError(f"baseline is {baseline!r}; expected 'mean' or 'zero'")
        self.model, self.batch, self.level, self.reading = model, batch, level, reading
        with torch.no_grad(), evaluating(model):
            self.laid_out, terms, self.links = model.input_terms(batch, draw=draw)
        self.values, self.ends = self.laid_out.values, self.laid_out.endpoints
        self.tokens, self.baseline = tokens_of(model, batch, self.laid_out), _SENTENCES[baseline]
        self.special = self.ends[:, 0] < 0
        # z - z_0 by part and as a whole, and z_0.
        self.parts = self._parts(terms, baseline)
        self.difference = sum(self.parts.values(), start=torch.zeros_like(self.values))
        self.start = self.values - self.difference
        self._target = self._read_token(row, batch)
        self.read_from = frozenset() if self._target is None else frozenset({self._target})

    def _parts(self, terms: dict[str, Tensor], baseline: Baseline) -> dict[str, Float[Tensor, "tokens dim"]]:
        """z - z_0, by the part of the token that it is due to."""
        parts = {name: term for name, term in terms.items() if bool(term.any())}
        if baseline == "mean" and "features" in parts:
            features = parts["features"].clone()
            for kind in (NODE, EDGE):
                rows = torch.tensor([own == kind for own in self.tokens.kinds], device=features.device)
                features[rows] -= features[rows].mean(0)
            parts["features"] = features
        return parts

    def _read_token(self, row: int, batch: GraphBatch) -> int | None:
        """The token that the head reads; None where it reads the sum of all."""
        head = self.model.config.head
        if head.level == "graph":
            check_row(row, 1, head.level)
            return 0 if head.readout == "token" else None
        if head.level == "node":
            check_row(row, batch.num_nodes, head.level)
            return int(self.tokens.nodes[row])
        check_row(row, batch.num_edges, head.level)
        return int(self.tokens.of_edge[row])

    def size(self) -> int:
        encoder = self.model.config.encoder
        hidden = (encoder.mlp_dim or 4 * self.model.config.dim) / self.model.config.dim
        width = self.model.config.dim * self.values.element_size()
        return int(width * max(1, encoder.num_layers) * (_ROWS_KEPT + 2 * hidden))

    @torch.no_grad()
    def without(self, removed: Bool[Tensor, "copies tokens"]) -> Float[Tensor, "copies out"]:
        kept, found = ~removed.to(self.values.device), []
        with evaluating(self.model):
            for some in self.chunks(len(kept), gradients=False):
                source = torch.nonzero(kept[some])[:, 1]
                segments = Segments.from_lengths(kept[some].sum(1).cpu(), self.values.device)
                found.append(self._outputs(self.values.index_select(0, source), source, segments))
        return torch.cat(found)

    def slopes(self, times: Float[Tensor, " points"], output: int) -> Slopes:
        count, times = len(self.tokens), times.to(self.values)
        values: list[Tensor] = []
        by_part: dict[str, list[Tensor]] = {name: [] for name in self.parts}
        with evaluating(self.model), torch.enable_grad():
            for some in self.chunks(len(times), gradients=True):
                points = len(times[some])
                rows = (self.start + times[some, None, None] * self.difference).flatten(0, 1).requires_grad_()
                source = torch.arange(count, device=rows.device).repeat(points)
                outputs = self._outputs(rows, source, Segments.uniform(points, count, rows.device))[:, output]
                (gradient,) = torch.autograd.grad(outputs.sum(), rows)
                values.append(outputs.detach())
                for name, part in self.parts.items():
                    by_part[name].append((gradient.view(points, count, -1) * part).sum(-1))
        return Slopes(torch.cat(values), {name: torch.cat(slopes) for name, slopes in by_part.items()})

    def _outputs(
        self, rows: Float[Tensor, "rows dim"], source: Int[Tensor, " rows"], segments: Segments
    ) -> Float[Tensor, "copies out"]:
        """The chosen row's outputs of every copy; ``source`` says which token of the graph each row is."""
        encoder, head = self.model.encoder, self.model.head
        marks = None if self.model.config.encoder.incidence == "never" else self.ends[source].int()
        plan, links = encoder.plan(segments, marks), self._links(source, segments)
        if self._target is None:
            encoded = encoder(rows, plan, links)
            real = (~self.special[source]).to(encoded.dtype)[:, None]
            read = segment_sum(encoded * real, segments)
            return self.reading(head(read, self.batch))
        places = torch.nonzero(source == self._target).flatten()
        outputs = self.reading(head(encoder(rows, plan, links, places), self.batch))
        # Where the token that is read was removed there is no row, and its copy gets NaN.
        blank = outputs.new_full((segments.count, outputs.shape[1]), torch.nan)
        return outputs if len(places) == segments.count else blank.index_copy(0, segments.ids[places], outputs)

    def _links(self, source: Int[Tensor, " rows"], segments: Segments) -> RowLinks | None:
        """The links of the graph in every copy, as far as both of their rows are there."""
        if self.links is None:
            return None
        place = source.new_full((segments.count, len(self.tokens)), -1)
        place[segments.ids, source] = torch.arange(len(source), device=source.device)
        sources, targets = place[:, self.links.sources], place[:, self.links.targets]
        there = (sources >= 0) & (targets >= 0)
        return RowLinks(sources[there], targets[there])


def check_row(row: int, rows: int, level: str) -> None:
    """Refuse a row that the graph does not have, in one sentence."""
    if not 0 <= row < rows:
        raise ValueError(f"row is {row}; this model predicts one row per {level}, and this graph has {rows} (from 0)")
