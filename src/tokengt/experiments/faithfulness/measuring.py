"""How well each method finds the true atoms of one trained model: AUC by graph, beside chance and beside attention.

The score of an atom is that of its token and half of that of each of its bonds' tokens. The AUC of a graph is the
chance that a true atom has a larger score than another one (ties count half), and it is asked twice:

* "all atoms": of any other atom of the graph. Who knows the element alone is far from chance here, since most tasks
  have no true carbon, or few.
* "same element": of another atom of the same element alone. Who knows nothing but elements has 1/2.

Means are over those test graphs that have such pairs of atoms.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.experiments.faithfulness.tasks import Labelled
from tokengt.explain.attributions import of_attention, of_gradients, of_occlusion, subject_of
from tokengt.inference import Predictor
from tokengt.training.metrics import roc_auc
from tokengt.workflow.explaining import ready

Scores = NDArray[np.float64]
Mask = NDArray[np.bool_]
Elements = NDArray[np.int64]
Among = Literal["all atoms", "same element"]
AMONG: tuple[Among, ...] = get_args(Among)

GRADIENTS, FROM_MEAN, FROM_ZERO = "integrated gradients", "the same from the mean", "the same from zero"
OCCLUSION, ROLLOUT, ATTENTION = "occlusion", "attention roll-out", "attention, last layer"
UNTRAINED, ELEMENT, RANDOM = "integrated gradients, untrained model", "element alone", "random"
SYSTEMS = (GRADIENTS, FROM_MEAN, FROM_ZERO, OCCLUSION, ROLLOUT, ATTENTION, UNTRAINED, ELEMENT, RANDOM)


def measured(run: Predictor, data: Labelled, seed: int = 0) -> dict[Among, dict[str, float]]:
    """The mean AUC of every system over the graphs of ``data``, among all atoms and among those of one element.

    Three of them know nothing of what was learned: "random"; "element alone", how often atoms of an element are true;
    and integrated gradients of a model of the same config that was never trained.
    """
    member, rng = run.members[0], np.random.default_rng(seed)
    untrained = _untrained(member.model.config.build, seed)
    often = share_by_element(data)
    found: dict[Among, dict[str, list[float]]] = {among: {name: [] for name in SYSTEMS} for among in AMONG}
    for graph, elements, truth in _one_by_one(data):
        if truth.all() or not truth.any():
            continue
        batch = ready(member, graph, torch.device("cpu"))
        scores = {
            **atom_scores(member.model, batch),
            UNTRAINED: of_gradients(subject_of(untrained, batch)).per_node(),
            ELEMENT: often[elements],
            RANDOM: rng.random(len(elements)),
        }
        for name, values in scores.items():
            for among, auc in aucs(values, truth, elements).items():
                found[among][name].append(auc)
    return {among: {name: float(np.mean(each)) for name, each in by.items()} for among, by in found.items()}


def atom_scores(model: Any, graph: GraphBatch) -> dict[str, Scores]:
    """[atoms] the score of each atom with its part of its bonds, by every method that looks at the model.

    Integrated gradients are told from their usual baseline, and from the two others that there are.
    """
    subject = subject_of(model, graph)
    return {
        GRADIENTS: of_gradients(subject).per_node(),
        FROM_MEAN: of_gradients(subject_of(model, graph, baseline="mean")).per_node(),
        FROM_ZERO: of_gradients(subject_of(model, graph, baseline="zero")).per_node(),
        OCCLUSION: of_occlusion(subject).per_node(),
        ROLLOUT: of_attention(model, graph, "rollout").per_node(),
        ATTENTION: of_attention(model, graph, "attention").per_node(),
    }


def aucs(scores: Scores, truth: Mask, elements: Elements) -> dict[Among, float]:
    """The AUC of one graph among all atoms, and among atoms of the same element; without those that have no pair."""
    found: dict[Among, float] = {}
    everything = roc_auc(scores, truth.astype(float))
    if everything is not None:
        found["all atoms"] = everything
    pairs, above = 0, 0.0
    for element in np.unique(elements):
        own = elements == element
        auc = roc_auc(scores[own], truth[own].astype(float))
        if auc is not None:
            count = int(truth[own].sum() * (~truth[own]).sum())
            pairs, above = pairs + count, above + auc * count
    if pairs:
        found["same element"] = above / pairs
    return found


def share_by_element(data: Labelled) -> Scores:
    """[elements] how often atoms of each element are true."""
    elements, truth = _elements(data), data.truth.numpy()
    counts = np.bincount(elements)
    shares: Scores = np.bincount(elements, weights=truth) / np.maximum(counts, 1)
    return shares


def _one_by_one(data: Labelled) -> Iterator[tuple[GraphBatch, Elements, Mask]]:
    """Every graph with the elements of its atoms and which of them are true."""
    elements, truth = _elements(data), data.truth.numpy()
    for place, (start, stop) in enumerate(pairwise(data.graphs.nodes.host.tolist())):
        yield data.graphs.select([place]), elements[start:stop], truth[start:stop]


def _elements(data: Labelled) -> Elements:
    features = data.graphs.node_features
    assert isinstance(features, Tensor)
    elements: Elements = features[:, 0].numpy()
    return elements


def _untrained(build: Callable[[], Any], seed: int) -> Any:
    """A model with the weights that training begins with, of a seed that no training here has."""
    with torch.random.fork_rng():
        torch.manual_seed(seed + 2**20)
        return build()
