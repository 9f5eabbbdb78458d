"""How well each method finds the true atoms of one trained model: AUC by graph, beside chance and beside attention.

The score of an atom is that of its token and half of that of each of its bonds' tokens. The AUC of a graph is the
chance that a true atom has a larger score than another one (ties count half); the mean is over test graphs that have
both kinds of atoms.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokengt.experiments.faithfulness.tasks import Labelled
from tokengt.explain.attributions import Attribution, of_attention, of_gradients, of_occlusion, subject_of
from tokengt.explain.token_subject import IDENTIFIERS
from tokengt.inference import Predictor
from tokengt.training.metrics import roc_auc
from tokengt.workflow.explaining import ready

Scores = NDArray[np.float64]
GRADIENTS, CONTENT = "integrated gradients", "integrated gradients, content alone"
OCCLUSION, ROLLOUT, ATTENTION = "occlusion", "attention roll-out", "attention, last layer"
ELEMENT, RANDOM = "element alone", "random"
SYSTEMS = (GRADIENTS, CONTENT, OCCLUSION, ROLLOUT, ATTENTION, ELEMENT, RANDOM)


def measured(run: Predictor, data: Labelled, seed: int = 0) -> dict[str, float]:
    """The mean AUC of every system over the graphs of ``data`` that have true atoms and others; by its name.

    "element alone" is what one could know of an atom without its place: how often atoms of its element are true.
    """
    member, rng = run.members[0], np.random.default_rng(seed)
    elements, truth = data.graphs.node_features, data.truth.numpy()
    assert isinstance(elements, Tensor)
    kinds = elements[:, 0].numpy()
    often = np.array([truth[kinds == kind].mean() if (kinds == kind).any() else 0.0 for kind in range(kinds.max() + 1)])
    found: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    bounds = data.graphs.nodes.host.tolist()
    for place, (start, stop) in enumerate(pairwise(bounds)):
        own = truth[start:stop]
        if own.all() or not own.any():
            continue
        graph = ready(member, data.graphs.select([place]), torch.device("cpu"))
        known = {ELEMENT: often[kinds[start:stop]], RANDOM: rng.random(stop - start)}
        together = known | atom_scores(member.model, graph)
        for name, values in together.items():
            auc = roc_auc(values[:, None], own[:, None].astype(float))
            assert auc is not None
            found[name].append(auc)
    return {name: float(np.mean(values)) for name, values in found.items()}


def atom_scores(model: object, graph: object) -> dict[str, Scores]:
    """[atoms] the score of each atom with its part of its bonds, by every method."""
    subject = subject_of(model, graph)
    gradients = of_gradients(subject)
    content: Sequence[Scores] = [part for name, part in gradients.by_part.items() if name != IDENTIFIERS]
    attributions: dict[str, Attribution] = {
        GRADIENTS: gradients,
        OCCLUSION: of_occlusion(subject),
        ROLLOUT: of_attention(model, graph, "rollout"),
        ATTENTION: of_attention(model, graph, "attention"),
    }
    scores = {name: each.per_node() for name, each in attributions.items()}
    return scores | {CONTENT: subject.tokens.per_node(np.sum(content, 0))}
