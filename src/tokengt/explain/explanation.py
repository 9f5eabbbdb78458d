"""Everything that is known of one prediction of one graph, as arrays: what pages and notebooks are drawn from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from tokengt.batch import GraphBatch
from tokengt.explain.attributions import (
    Attribution,
    Method,
    of_attention,
    of_gradients,
    of_occlusion,
    subject_of,
)
from tokengt.explain.distance import attention_distance
from tokengt.explain.maps import AttentionMaps, attention_maps
from tokengt.explain.profile import EquivarianceProfile, equivariance_profile
from tokengt.explain.subject import Reading, Subject, as_they_are
from tokengt.explain.token_subject import Baseline
from tokengt.explain.tokens import Tokens, one_graph
from tokengt.graph import Graph
from tokengt.level import Level
from tokengt.models.contract import Model

T = TypeVar("T")
# Characters of a page that a notebook keeps in its file.
_LARGEST_FRAME = 2_000_000
# Tokens up to which each is left out once: the work grows with the square of their number.
_MOST_OCCLUDED = 2_000
ATTRIBUTIONS: tuple[Method, ...] = ("integrated_gradients", "occlusion", "rollout")


@dataclass(frozen=True, eq=False)
class AttentionSummary:
    """Attention over many graphs of one model, such as a run's validation part.

    Args:
        distance: [layers, heads] mean attention distance in hops.
        profile: the mean equivariance profile.
        graphs: over how many graphs.
        part: which graphs those are, in words.
    """

    distance: NDArray[np.float64]
    profile: EquivarianceProfile
    graphs: int
    part: str


@dataclass(frozen=True, eq=False)
class Molecule:
    """The text that a graph was read from: a SMILES or a mol block, of which ``smiles`` is the canonical SMILES.

    Atoms of the graph are numbered as in :func:`tokengt.interop.molecules.read_molecule` of ``text`` with the same
    ``kind`` and ``policy``.
    """

    text: str
    smiles: str
    kind: Any
    policy: Any


@dataclass(frozen=True, eq=False)
class Interval:
    """``low`` and ``high`` [outputs] are to hold the share ``level`` of the true values."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    level: float


@dataclass(frozen=True, eq=False)
class Explanation:
    """One prediction of one graph, and what can be said about it.

    Args:
        model: the model in one line.
        graph: the graph.
        tokens: its tokens: kinds, endpoints and names; rows and columns of all that follows.
        level: what a row of predictions belongs to.
        row: which row is explained: 0 of a graph, else the number of the node or of the listed edge.
        outputs: [outputs] names of what is predicted: targets, or the classes of one target.
        output: which of them is explained.
        prediction: [outputs] as a person reads it: natural units, or probabilities.
        spread: [outputs] standard deviation over draws and models; None for a single pass.
        unit: what kind of number that is: "natural units", "probability" or "output".
        interval: bounds that are to hold a share of the true values; None where the run has none.
        unlike: whether hardly any training graph is as far from the others as this one; None where the run cannot tell.
        attributions: by method, those that there are: "integrated_gradients", "occlusion", "rollout".
        maps: attention of every layer and head; None where ``missing["maps"]`` says why.
        distance: [layers, heads] attention distance in hops; None as above.
        profile: equivariance profile of every head; None as above.
        missing: why something is not here, one sentence each, by the name of the field or of the method.
        members: how many models the prediction and the attributions are means over; maps, distance and profile are of
            the first.
        forest: how much of the prediction is what a random forest beside the model says, which explanations hold as it
            is; None where there is none.
        usual: attention over the run's validation part, to compare with; None where ``missing["usual"]`` says why.
        molecule: the text that the graph was read from, if it is a molecule.
        source: where the graph came from, in words, such as "row 3 of data.csv".
        seconds: how long each part took.
    """

    model: str
    graph: Graph
    tokens: Tokens
    level: Level
    row: int
    outputs: tuple[str, ...]
    output: int
    prediction: NDArray[np.float64]
    spread: NDArray[np.float64] | None
    unit: str
    attributions: Mapping[str, Attribution]
    maps: AttentionMaps | None
    distance: NDArray[np.float64] | None
    profile: EquivarianceProfile | None
    missing: Mapping[str, str] = field(default_factory=dict)
    members: int = 1
    interval: Interval | None = None
    unlike: bool | None = None
    forest: float | None = None
    usual: AttentionSummary | None = None
    molecule: Molecule | None = None
    source: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def graph_batch(self) -> GraphBatch:
        """The graph as a model takes it."""
        return GraphBatch.collate([self.graph])

    def _repr_html_(self) -> str:
        """Pictures, which every notebook shows, and below them the page, where that is small enough for a notebook."""
        from tokengt.explain.page.render import framed, render
        from tokengt.explain.pictures import explanation_html

        page = render(self)
        return explanation_html(self) + (framed(page) if len(page) <= _LARGEST_FRAME else "")


def explain_graph(
    model: Any,
    graph: Any,
    *,
    row: int = 0,
    output: int = 0,
    methods: Sequence[Method] = ATTRIBUTIONS,
    baseline: Baseline = "ordinary",
    reading: Reading = as_they_are,
    names: Sequence[str] | None = None,
    draw: int = 0,
    attention: bool = True,
) -> Explanation:
    """All of it for one model and one graph (whatever a model takes), at evaluation; the model's own outputs.

    What a model does not have is left out, and ``missing`` says why. Runs are explained by
    :func:`tokengt.workflow.explaining.explain`, which knows labels, units and ensembles.

    Args:
        model: a TokenGT, any other model, or a module of one's own.
        graph: one graph.
        row: 0 of a model of graphs; else the number of the node or of the listed edge.
        output: which output the attributions are of.
        methods: which attributions; none for a quick look.
        baseline: of integrated gradients.
        reading: what is explained of the outputs.
        names: names of the outputs.
        draw: which keyed draw of identifiers the attributions are of.
        attention: whether maps, distance and profile are worked out as well.

    Raises:
        ValueError: one sentence: the graph cannot be explained at all.
    """
    batch = one_graph(graph)
    subject = subject_of(model, batch, row=row, baseline=baseline, reading=reading, draw=draw)
    missing: dict[str, str] = {}
    whole = torch.zeros(1, len(subject.tokens), dtype=torch.bool)
    prediction = subject.without(whole)[0].double().cpu().numpy()
    if not 0 <= output < len(prediction):
        raise ValueError(f"output is {output}; this model has {len(prediction)} (from 0)")
    ask: dict[Method, Callable[[], Attribution]] = {
        "integrated_gradients": lambda: of_gradients(subject, output),
        "occlusion": lambda: _occluded(subject, output),
        "rollout": lambda: of_attention(model, batch, "rollout", row=row),
        "attention": lambda: of_attention(model, batch, "attention", row=row),
    }
    found = {method: attempt(ask[method], method, missing) for method in methods}
    return Explanation(
        model=model.config.describe().summary if isinstance(model, Model) else type(model).__name__,
        graph=batch[0],
        tokens=subject.tokens,
        level=subject.level,
        row=row,
        outputs=tuple(names) if names else tuple(f"output {place}" for place in range(len(prediction))),
        output=output,
        prediction=prediction,
        spread=None,
        unit="output",
        attributions={method: each for method, each in found.items() if each is not None},
        maps=attempt(lambda: attention_maps(model, batch), "maps", missing) if attention else None,
        distance=attempt(lambda: attention_distance(model, batch), "distance", missing) if attention else None,
        profile=attempt(lambda: equivariance_profile(model, batch), "profile", missing) if attention else None,
        missing=missing,
    )


def _occluded(subject: Subject, output: int) -> Attribution:
    """Occlusion, unless it would take far longer than all the rest.

    Raises:
        ValueError: one sentence: there are too many tokens.
    """
    count = len(subject.tokens)
    if count > _MOST_OCCLUDED:
        raise ValueError(
            f"the graph has {count:,} tokens, and the model would be asked once without each of them, which is done up "
            f"to {_MOST_OCCLUDED:,}; tokengt.explain.attribution does it whatever it takes"
        )
    return of_occlusion(subject, output)


def attempt(ask: Callable[[], T], name: str, missing: dict[str, str]) -> T | None:
    """What is asked for, or None and the sentence that says why there is none."""
    try:
        return ask()
    except ValueError as error:
        missing[name] = str(error)
        return None
