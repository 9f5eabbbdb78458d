"""Attributions: how much each token, node or edge, has to do with one number that a model predicts.

Four methods answer it differently, and beside each score stands what it is measured against:

* "integrated_gradients": along a path from a baseline to the graph (:mod:`tokengt.explain.gradients`); scores sum to
  the prediction minus that of the baseline, within a tolerance that is checked.
* "occlusion": the prediction minus that without the token; exact, one token at a time. Nothing makes them sum up.
* "rollout" and "attention": where attention goes (:mod:`tokengt.explain.rollout`); no statement about the prediction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tokengt.batch import GraphBatch
from tokengt.config import near
from tokengt.explain.gradients import integrated_gradients
from tokengt.explain.graph_subject import GraphSubject
from tokengt.explain.maps import attention_maps
from tokengt.explain.rollout import last_attention, rolled_out
from tokengt.explain.subject import Reading, Subject, as_they_are, removals
from tokengt.explain.token_subject import Baseline, TokenSubject, read_token
from tokengt.explain.tokens import Tokens, one_graph
from tokengt.models.tokengt.model import TokenGT

Method = Literal["integrated_gradients", "occlusion", "rollout", "attention"]
METHODS: tuple[Method, ...] = get_args(Method)
TOLERANCE = 0.01


@dataclass(frozen=True, eq=False)
class Attribution:
    """Scores of the tokens of one graph.

    Args:
        method: how they were found.
        tokens: whose scores these are.
        scores: [tokens] the larger, the more the token raises the prediction; NaN where the method cannot say.
        against: what the scores are measured against, in one sentence; ``{3}`` stands for the name of token 3.
        prediction: the number that is explained; NaN for attention, which explains none.
        reference: the same number at the baseline; NaN where there is none.
        tolerance: how much the sum may be off for a method whose scores sum up; None for the others.
        by_part: [tokens] the scores by the part of a token that they are due to: "features", "identifiers",
            "structure"; empty where the method takes tokens as a whole.
        spread: [tokens] standard deviation over the models of an ensemble, whose mean ``scores`` is; None for one.
        evaluations: how many times the model was asked.
    """

    method: Method
    tokens: Tokens
    scores: NDArray[np.float64]
    against: str
    prediction: float
    reference: float
    tolerance: float | None = None
    by_part: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    spread: NDArray[np.float64] | None = None
    evaluations: int = 0

    @property
    def baseline(self) -> str:
        """What the scores are measured against, in one sentence."""
        return self.against.format(*self.tokens.names)

    @property
    def total(self) -> float:
        """The sum of all scores that there are."""
        return float(np.nansum(self.scores))

    @property
    def change(self) -> float:
        """The prediction minus that of the baseline: what the scores of a complete method sum to."""
        return self.prediction - self.reference

    @property
    def gap(self) -> float:
        """How far the sum is off."""
        return self.total - self.change

    @property
    def complete(self) -> bool | None:
        """Whether the sum is right within the tolerance; None for a method that promises none."""
        return None if self.tolerance is None else bool(abs(self.gap) <= self.tolerance)

    @property
    def node_scores(self) -> NDArray[np.float64]:
        """[nodes] the score of each node's own token."""
        return self.scores[self.tokens.nodes]

    @property
    def edge_scores(self) -> NDArray[np.float64]:
        """[listed edges] the score of each edge's token; two directions that share one have the same."""
        return self.scores[self.tokens.of_edge]

    def per_node(self) -> NDArray[np.float64]:
        """[nodes] the score of each node with its part of its edges: half of an edge's score for each of its ends."""
        return self.tokens.per_node(self.scores)

    def named(self, tokens: Tokens) -> "Attribution":
        """The same with other names of the tokens."""
        return replace(self, tokens=tokens)

    def _repr_html_(self) -> str:
        from tokengt.explain.pictures import as_html, plot_attribution

        return as_html(plot_attribution(self))


def attribution(
    model: Any,
    graph: Any,
    method: Method = "integrated_gradients",
    *,
    row: int = 0,
    output: int = 0,
    baseline: Baseline = "ordinary",
    reading: Reading = as_they_are,
) -> Attribution:
    """How much each token has to do with one output for one graph (whatever a model takes), at evaluation.

    Args:
        model: a TokenGT, any other model, or a module of one's own that takes a :class:`~tokengt.batch.GraphBatch`.
        graph: one graph.
        method: see the top of this page.
        row: 0 of a model of graphs; of one of nodes or edges, the number of the node or of the listed edge.
        output: which output (target or class).
        baseline: integrated gradients of a TokenGT: the content that its tokens begin with, that of the most "ordinary"
            token, the "mean" of all, or none at all ("zero"); see :mod:`tokengt.explain.token_subject`.
        reading: what is explained of the outputs: themselves, or what a person reads (natural units, a probability).

    Raises:
        ValueError: one sentence: why there is no such attribution.
    """
    check_method(method)
    if method in ("rollout", "attention"):
        return of_attention(model, graph, method, row=row)
    subject = subject_of(model, graph, row=row, baseline=baseline, reading=reading)
    return of_gradients(subject, output) if method == "integrated_gradients" else of_occlusion(subject, output)


def check_method(method: str) -> None:
    """Refuse a name that is no method, in one sentence."""
    if method not in METHODS:
        raise ValueError(f"method is {method!r}{near(method, METHODS)}; expected one of {', '.join(METHODS)}")


def subject_of(
    model: Any,
    graph: Any,
    *,
    row: int = 0,
    baseline: Baseline = "ordinary",
    reading: Reading = as_they_are,
    draw: int = 0,
) -> Subject:
    """One row of a model's outputs for one graph, ready to be asked."""
    batch = one_graph(graph)
    if isinstance(model, TokenGT):
        return TokenSubject(model, batch, row, baseline, reading, draw)
    return GraphSubject(model, batch, row, reading, draw)


def of_gradients(subject: Subject, output: int = 0, tolerance: float = TOLERANCE) -> Attribution:
    """Integrated gradients; ``tolerance`` is a share of how far the output moves along the path."""
    found = integrated_gradients(subject, output, tolerance)
    zeros = np.zeros(len(subject.tokens))
    return Attribution(
        "integrated_gradients",
        subject.tokens,
        sum(found.by_part.values(), start=zeros),
        subject.baseline,
        found.end,
        found.start,
        found.tolerance,
        found.by_part,
        evaluations=found.points,
    )


def of_occlusion(subject: Subject, output: int = 0) -> Attribution:
    """The prediction minus that without each token; the reference is the prediction without all of them."""
    tokens = subject.tokens
    occluded = [token for token in range(len(tokens)) if token not in set(tokens.specials.tolist())]
    everything = [token for token in occluded if token not in subject.read_from]
    found = occlusions(subject, [[token] for token in occluded] + [everything])
    scores = np.zeros(len(tokens))
    scores[occluded] = found.changes[:-1, output]
    kept = "those that the row is read from" if subject.read_from & set(occluded) else "the special tokens"
    return Attribution(
        "occlusion",
        tokens,
        scores,
        f"the sequence without the token; the reference has {kept} alone",
        float(found.prediction[output]),
        float(found.prediction[output] - found.changes[-1, output]),
        evaluations=len(occluded) + 2,
    )


@dataclass(frozen=True, eq=False)
class Occlusions:
    """What the prediction loses without some groups of tokens.

    Args:
        prediction: [outputs] with all tokens.
        changes: [groups, outputs] the prediction minus that without each group; NaN where nothing is left to read.
    """

    prediction: NDArray[np.float64]
    changes: NDArray[np.float64]


def occlusions(subject: Subject, groups: Sequence[Sequence[int]]) -> Occlusions:
    """Leave out groups of tokens, each group at once: exact, and all of them in packed batches."""
    removed = removals([[], *groups], len(subject.tokens))
    outputs = subject.without(removed).double().cpu().numpy()
    return Occlusions(outputs[0], outputs[0] - outputs[1:])


def of_attention(model: Any, graph: Any, method: Method = "rollout", *, row: int = 0) -> Attribution:
    """Where attention goes from the token that the row is read from.

    Raises:
        ValueError: one sentence: the model has no attention maps.
    """
    batch = one_graph(graph)
    maps = attention_maps(model, batch)
    rows = rows_read(model, batch, maps.tokens, row)
    found = rolled_out(maps.weights, rows) if method == "rollout" else last_attention(maps.weights, rows)
    words = {"rollout": "attention of all layers, followed from the token that is read", "attention": "the last layer"}
    return Attribution(method, maps.tokens, found, words[method], np.nan, np.nan, evaluations=1)


def rows_read(model: TokenGT, batch: GraphBatch, tokens: Tokens, row: int) -> NDArray[np.int64]:
    """The tokens that a row of outputs is read from: one, or all nodes and edges where their sum or mean is."""
    token = read_token(model, batch, tokens, row)
    return np.flatnonzero(tokens.endpoints[:, 0] >= 0) if token is None else np.array([token])


def mean_attribution(parts: Sequence[Attribution]) -> Attribution:
    """The mean over the models of an ensemble, token by token, with its standard deviation."""
    first = parts[0]
    if len(parts) == 1:
        return first
    scores = np.stack([part.scores for part in parts])
    tolerances = [part.tolerance for part in parts if part.tolerance is not None]
    names = dict.fromkeys(name for part in parts for name in part.by_part)
    blank = np.zeros(len(first.tokens))
    differ = any(part.against != first.against for part in parts)
    return replace(
        first,
        scores=scores.mean(0),
        against=f"{first.against} (of the first model; others choose their own)" if differ else first.against,
        spread=scores.std(0, ddof=1),
        prediction=float(np.mean([part.prediction for part in parts])),
        reference=float(np.mean([part.reference for part in parts])),
        tolerance=float(np.mean(tolerances)) if tolerances else None,
        by_part={name: np.mean([part.by_part.get(name, blank) for part in parts], 0) for name in names},
        evaluations=sum(part.evaluations for part in parts),
    )
