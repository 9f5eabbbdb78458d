"""A TokenGT as a function of its tokens: some left out of the sequence, or all on the way from a baseline.

A token is the sum [X, P_u, P_v, E] w_in: its *content* (features, and structure such as random walks where a model has
it), its identifiers, and the type of its kind. At the *baseline* every token has the content of the most ordinary token
of its kind, the one whose content is nearest to their mean, and no identifiers: a graph of equal nodes and equal edges,
of which nobody knows what joins what. From there the path has two straight stages:

1. identifiers appear, z(t) = z_0 + t z_ids: now the wiring is known, of a graph that is ordinary everywhere;
2. content appears, z(t) = z_0 + z_ids + t (z_content - z_ordinary): every token becomes what it is.

A model whose head reads numbers about the whole graph has one more: they grow from zero, the mean of the training rows
as they are scaled, to what they are. Their score stands at the [graph] token.

So the scores of identifiers sum to what the wiring alone changes, and those of content to what the tokens are, in their
places. An ordinary token is a real one, and the graph between the stages is near to graphs that a model knows; the mean
of all features (``baseline="mean"``) is no atom, and a token of its type alone (``"zero"``) is none either. A path from
the zero vector would say nothing of a model with an input norm: LN(t z) is LN(z) for every t that is not tiny.
"""

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.explain.subject import Reading, Slopes, Subject, as_they_are
from tokengt.explain.tokens import EDGE, NODE, Tokens, tokens_of
from tokengt.level import Level
from tokengt.models.passes import evaluating
from tokengt.models.tokengt.model import TokenGT
from tokengt.ragged import Segments
from tokengt.transformer import RowLinks

Baseline = Literal["ordinary", "mean", "zero"]
BASELINES: tuple[Baseline, ...] = get_args(Baseline)
IDENTIFIERS, DESCRIPTORS = "identifiers", "descriptors"
_SENTENCES = {
    "mean": "every token has the mean features of its kind in this graph, and no identifiers",
    "zero": "every token has its type alone: no features and no identifiers",
}
# Two tokens are equally far from the mean if they differ by less than this share.
_EQUAL = 1e-5
# About how many rows of the model's width a block keeps for the gradient of one token.
_ROWS_KEPT = 16


class TokenSubject(Subject):
    """One row of a TokenGT's outputs for one graph.

    Args:
        model: the model.
        batch: one graph.
        row: which row: 0 of a graph-level model, else the number of the node or of the listed edge.
        baseline: the content that tokens begin with: "ordinary", "mean" or "zero".
        reading: what is explained of the outputs.
        draw: which keyed draw of identifiers.
    """

    def __init__(
        self,
        model: TokenGT,
        batch: GraphBatch,
        row: int = 0,
        baseline: Baseline = "ordinary",
        reading: Reading = as_they_are,
        draw: int = 0,
    ) -> None:
        if baseline not in BASELINES:
            raise ValueError(f"baseline is {baseline!r}; expected one of {', '.join(BASELINES)}")
        self.model, self.batch, self.level, self.reading = model, batch, explained_level(model), reading
        with torch.no_grad(), evaluating(model):
            self.laid_out, terms, self.links = model.input_terms(batch, draw=draw)
        self.values, self.ends = self.laid_out.values, self.laid_out.endpoints
        self.tokens = tokens_of(model, batch, self.laid_out)
        self.special = self.ends[:, 0] < 0
        self.parts, self.baseline = self._parts(terms, baseline)
        content = {name: part for name, part in self.parts.items() if name != IDENTIFIERS}
        known = {name: part for name, part in self.parts.items() if name == IDENTIFIERS}
        # What appears in each stage.
        self.moving: list[dict[str, Tensor]] = [stage for stage in (known, content) if stage] or [{}]
        self.known = _head_descriptors(model, batch)
        if self.known is not None:
            self.baseline += "; numbers about the whole graph are zero, as they are scaled"
        elif model.head.descriptors is not None:
            self.baseline += "; categories of the whole graph stay as they are"
        self.stages = len(self.moving) + (self.known is not None)
        self.difference = _total(self.parts, self.values)
        self.start = self.values - self.difference
        self._target = read_token(model, batch, self.tokens, row)
        self.read_from = frozenset() if self._target is None else frozenset({self._target})

    def _parts(
        self, terms: dict[str, Tensor], baseline: Baseline
    ) -> tuple[dict[str, Float[Tensor, "tokens dim"]], str]:
        """z - z_0, by the part of the token that it is due to; and what z_0 is, in one sentence."""
        parts = {name: term.clone() for name, term in terms.items() if bool(term.any())}
        content = _total({name: part for name, part in parts.items() if name != IDENTIFIERS}, self.values)
        ordinary = []
        for kind in (NODE, EDGE):
            rows = torch.tensor([place for place, own in enumerate(self.tokens.kinds) if own == kind])
            if baseline == "zero" or not len(rows):
                continue
            chosen = rows[most_ordinary(content[rows])]
            ordinary.append(f"like {{{int(chosen)}}}")
            for name in parts.keys() - {IDENTIFIERS}:
                own = parts[name][rows]
                parts[name][rows] = own - (own.mean(0) if baseline == "mean" else parts[name][chosen])
        if baseline == "ordinary" and ordinary:
            words = " and every edge ".join(ordinary)
            return parts, f"every node is {words}, the most ordinary here, without identifiers"
        return parts, _SENTENCES["zero" if baseline == "ordinary" else baseline]

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
                found.append(self._outputs(self.values.index_select(0, source), source, segments, self.known))
        return torch.cat(found)

    def slopes(self, times: Float[Tensor, " points"], output: int, stage: int = 0) -> Slopes:
        count, times = len(self.tokens), times.to(self.values)
        if stage == len(self.moving):
            return self._descriptor_slopes(times, output)
        moving = self.moving[stage]
        start, moved = self._begin(stage), _total(moving, self.values)
        blank = None if self.known is None else torch.zeros_like(self.known)
        values: list[Tensor] = []
        by_part: dict[str, list[Tensor]] = {name: [] for name in moving}
        with evaluating(self.model), torch.enable_grad():
            for some in self.chunks(len(times), gradients=True):
                points = len(times[some])
                rows = (start + times[some, None, None] * moved).flatten(0, 1).requires_grad_()
                source = torch.arange(count, device=rows.device).repeat(points)
                outputs = self._outputs(rows, source, Segments.uniform(points, count, rows.device), blank)[:, output]
                (gradient,) = torch.autograd.grad(outputs.sum(), rows)
                values.append(outputs.detach())
                for name, part in moving.items():
                    by_part[name].append((gradient.view(points, count, -1) * part).sum(-1))
        return Slopes(torch.cat(values), {name: torch.cat(slopes) for name, slopes in by_part.items()})

    def _descriptor_slopes(self, times: Float[Tensor, " points"], output: int) -> Slopes:
        """The last stage: the tokens are those of the graph, and what the head reads beside them appears."""
        known = self.known
        assert known is not None
        whole = torch.arange(len(self.tokens), device=self.values.device)
        values, found = [], []
        with evaluating(self.model), torch.enable_grad():
            for time in times:
                given = (time * known).requires_grad_()
                segments = Segments.uniform(1, len(whole), whole.device)
                said = self._outputs(self.values, whole, segments, given)[:, output]
                (gradient,) = torch.autograd.grad(said.sum(), given)
                values.append(said.detach())
                found.append((gradient * known).sum())
        slopes = torch.zeros(len(times), len(whole), dtype=self.values.dtype, device=whole.device)
        # Their score stands at the [graph] token, where a model that reads them earlier has it too.
        slopes[:, 0] = torch.stack(found)
        return Slopes(torch.cat(values), {DESCRIPTORS: slopes})

    def _begin(self, stage: int) -> Float[Tensor, "tokens dim"]:
        """The values that a stage begins with: all earlier ones have ended."""
        return self.start + sum((_total(moving, self.values) for moving in self.moving[:stage]), start=0.0)

    def _outputs(
        self,
        rows: Float[Tensor, "rows dim"],
        source: Int[Tensor, " rows"],
        segments: Segments,
        known: Float[Tensor, "1 columns"] | None,
    ) -> Float[Tensor, "copies out"]:
        """The chosen row's outputs of every copy; ``source`` says which token of the graph each row is.

        ``known`` are the numbers that the head reads beside the tokens, the same for all copies.
        """
        encoder, head = self.model.encoder, self.model.head
        batch = self.batch if known is None else self.batch.with_graph_features(known)
        marks = None if self.model.config.encoder.incidence == "never" else self.ends[source].int()
        plan, links = encoder.plan(segments, marks), self._links(source, segments)
        if self._target is None:
            read = self.model.head.pool(encoder(rows, plan, links), self.special[source], segments)
            return self.reading(head(read, batch))
        places = torch.nonzero(source == self._target).flatten()
        outputs = self.reading(head(encoder(rows, plan, links, places), batch))
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


def _head_descriptors(model: TokenGT, batch: GraphBatch) -> Float[Tensor, "1 columns"] | None:
    """The numbers that the head reads beside the tokens; None where it reads none, or categories."""
    known = batch.graph_features
    if model.head.descriptors is None or known is None or not known.is_floating_point():
        return None
    return known.detach().to(next(model.parameters()))


def read_token(model: TokenGT, batch: GraphBatch, tokens: Tokens, row: int) -> int | None:
    """The token that the head reads for a row of outputs; None where it reads the sum or mean of all.

    Raises:
        ValueError: one sentence: there is no such row, or rows are of pairs of nodes.
    """
    level = explained_level(model)
    check_row(row, batch.level_rows(level).total, level)
    if level == "graph":
        return 0 if model.config.head.readout == "token" else None
    return int(tokens.nodes[row] if level == "node" else tokens.of_edge[row])


def explained_level(model: TokenGT) -> Level:
    """What a row of the model's outputs belongs to.

    Raises:
        ValueError: one sentence: to a pair of nodes, which is not explained.
    """
    level = model.config.head.level
    if level == "link":
        raise ValueError("this model scores pairs of nodes (level 'link'); explanations are of graph, node and edge")
    return level


def most_ordinary(rows: Float[Tensor, "rows dim"]) -> int:
    """The row that is nearest to the mean of all; of several equally near ones that which sorts first by its values.

    The order in which rows are listed does not matter.
    """
    distance = (rows - rows.mean(0)).square().sum(1)
    near: list[int] = torch.nonzero(distance <= distance.min() * (1 + _EQUAL) + 1e-12).flatten().tolist()
    return min(near, key=lambda row: tuple(rows[row].tolist()))


def _total(parts: Mapping[str, Tensor], like: Tensor) -> Float[Tensor, "tokens dim"]:
    return sum(parts.values(), start=torch.zeros_like(like))


def check_row(row: int, rows: int, level: str) -> None:
    """Refuse a row that the graph does not have, and links, in one sentence."""
    if level == "link":
        raise ValueError("this model predicts links, and explanations are of graphs, nodes and edges")
    if not 0 <= row < rows:
        raise ValueError(f"row is {row}; this model predicts one row per {level}, and this graph has {rows} (from 0)")
