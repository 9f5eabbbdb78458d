"""A linear model on fingerprints: what a model of molecules should beat, fitted in a few seconds.

A fingerprint counts the neighbourhoods of a molecule's atoms: each atom, each atom with its bonds and neighbours, and
once more with theirs (circular fingerprints, Rogers and Hahn 2010). A neighbourhood is a hash of the categories of its
atoms and bonds, and the hashes are folded into a fixed number of columns. All of it is worked out from the packed
graphs, without RDKit, so it is the same on a machine that has the store alone. The linear model is ridge regression or
logistic regression, one for each target, fitted to the training part.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.data.batching import evaluation_batches, permutation
from tokengt.data.splits import Split
from tokengt.data.store import Store
from tokengt.draws import chain, mix
from tokengt.training.tasks import Task

RADIUS, WIDTH = 2, 1024
# Rows that the linear model is fitted to, or chosen by, at most: more would take longer than a person waits for it.
MOST_ROWS, _FEW_OUTPUTS = 10_000, 12
# How strongly weights are pulled to zero, from strong to weak; the validation part chooses, or it is the middle one.
_PULLS = (300.0, 100.0, 30.0, 10.0, 3.0)
_STEPS = 40
# Nodes and edges whose neighbourhoods are worked out at once.
_CHUNK = 1 << 18


@dataclass(frozen=True, eq=False)
class Floor:
    """What a simple model predicts for the test graphs, in their order.

    ``fitted`` is how many training graphs it was fitted to, where that is not all of them.
    """

    predictions: Float[Tensor, "test out"]
    fitted: int | None = None


def linear_floor(store: Store, split: Split, task: Task, seed: int = 0) -> Floor | None:
    """The linear model's predictions of the test part; None for data that it cannot read.

    It reads graphs whose nodes are described by categories, as atoms are, and that have one row of labels each.
    ``split`` holds places of graphs. Nothing is drawn but, by ``seed``, which rows are taken of very many.
    """
    graphs = store.graphs
    if not has_fingerprints(store) or not len(split.test):
        return None
    train, valid = (some_of(places, task.width, seed) for places in (split.train, split.valid))
    # Squared error or cross entropy, whatever the model is trained by: then the fit has no kinks and one solution.
    plain = replace(task, loss="")
    weights = _fitted(plain, inputs(graphs, train), store.targets[train], inputs(graphs, valid), store.targets[valid])
    predictions = plain.predictions(torch.from_numpy(inputs(graphs, split.test) @ weights))
    return Floor(predictions, len(train) if len(train) < len(split.train) else None)


def has_fingerprints(store: Store) -> bool:
    """Whether these are graphs whose nodes are described by categories, with one row of labels each."""
    graphs, nodes = store.graphs, store.graphs.node_features
    readable = nodes is not None and not nodes.is_floating_point() and nodes.shape[1] > 0 and graphs.order == 2
    return readable and not graphs.hyperedges.total and store.manifest.level == "graph"


def fingerprints(graphs: GraphBatch, width: int = WIDTH, radius: int = RADIUS) -> Int[Tensor, "graphs width"]:
    """How often each neighbourhood of up to ``radius`` steps occurs in each graph, folded into ``width`` columns.

    Neither the numbers of the nodes nor the order of the edges matters. Floats of edges are not read.
    """
    assert isinstance(graphs.node_features, Tensor)
    sources, ends = graphs.edge_index
    edges = graphs.edge_features
    bonds = torch.zeros_like(sources) if edges is None or edges.is_floating_point() else chain(edges.long().T)
    hashes = chain(graphs.node_features.long().T)
    counts = torch.zeros(graphs.num_graphs * width, dtype=torch.int64)
    for step in range(radius + 1):
        if step:
            heard = chain(torch.stack([hashes.index_select(0, sources), bonds]))
            # A sum does not depend on the order of the neighbours; it may wrap around.
            around = torch.zeros_like(hashes).index_add_(0, ends, mix(heard))
            hashes = chain(torch.stack([hashes, around, torch.full_like(hashes, step)]))
        counts += torch.bincount(graphs.nodes.ids * width + hashes.remainder(width), minlength=len(counts))
    return counts.view(-1, width)


def some_of(places: Int[Tensor, " places"], outputs: int, seed: int) -> Int[Tensor, " some"]:
    """At most :data:`MOST_ROWS` of the places, ascending; fewer where there are many numbers to learn of each."""
    most = MOST_ROWS * _FEW_OUTPUTS // max(outputs, _FEW_OUTPUTS)
    return places[permutation(len(places), seed)[:most]].sort().values if len(places) > most else places


def inputs(graphs: GraphBatch, places: Int[Tensor, " places"]) -> Any:
    """What a simple model reads of these graphs: counts, descriptors, and a 1; a sparse matrix of SciPy."""
    from scipy import sparse

    sizes = graphs.nodes.host_lengths + graphs.edges.host_lengths
    columns = WIDTH + 1 + (0 if graphs.graph_features is None else graphs.graph_features.shape[1])
    rows, cells, values = [], [], []
    for chunk in evaluation_batches(places, sizes, _CHUNK):
        batch = graphs.select(chunk)
        extra = [] if batch.graph_features is None else [batch.graph_features.double()]
        table = torch.cat([fingerprints(batch).double(), *extra, torch.ones(len(chunk), 1, dtype=torch.float64)], 1)
        row, cell = torch.nonzero(table).unbind(1)
        rows.append(torch.searchsorted(places, chunk)[row].numpy())
        cells.append(cell.numpy())
        values.append(table[row, cell].numpy())
    if not rows:
        return sparse.csr_matrix((0, columns))
    at = (np.concatenate(rows), np.concatenate(cells))
    return sparse.csr_matrix((np.concatenate(values), at), shape=(len(places), columns))


def _fitted(
    task: Task,
    known: Any,
    labels: Float[Tensor, "train targets"],
    chooser: Any,
    held_out: Float[Tensor, "valid targets"],
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Weights [columns, out]: of several strengths of the pull to zero, that of the least loss on held-out rows.

    Every target has its own strength, the classes of a multiclass target have one together.
    """
    weights = np.zeros((known.shape[1], task.width))
    tried, losses = [], []
    for pull in _PULLS:
        # Each fit begins where the one before, with a stronger pull, has ended.
        weights = _minimised(task, known, labels, pull, weights)
        tried.append(weights)
        losses.append(_losses(task, torch.from_numpy(chooser @ weights), held_out))
    # Without a label to choose by, all losses are alike: the middle of the list comes first then.
    order = sorted(range(len(_PULLS)), key=lambda place: abs(place - len(_PULLS) // 2))
    best = [order[int(choice)] for choice in torch.stack(losses)[order].argmin(0)]
    if task.kind == "multiclass":
        return tried[best[0]]
    return np.stack([tried[place][:, column] for column, place in enumerate(best)], 1)


def _losses(
    task: Task, output: Float[Tensor, "rows out"], labels: Float[Tensor, "rows targets"]
) -> Float[Tensor, " targets"]:
    """The loss of each target."""
    if task.kind == "multiclass":
        return task.loss_sum(output, labels)[None]
    alone = [task.alone(at) for at in range(len(task.names))]
    return torch.stack([each.loss_sum(output[:, [at]], labels[:, [at]]) for at, each in enumerate(alone)])


def _minimised(
    task: Task,
    known: Any,
    labels: Float[Tensor, "rows targets"],
    pull: float,
    start: np.ndarray[Any, np.dtype[np.float64]],
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The minimum of loss + pull / 2 |weights|^2 by L-BFGS, whose result depends on its arguments alone."""
    from scipy.optimize import minimize

    transposed = known.T.tocsr()
    pulls = np.full((known.shape[1], 1), pull)
    pulls[-1] = 1e-6  # The mean of the labels is not to be pulled to zero.

    def loss_and_gradient(flat: Any) -> tuple[float, Any]:
        weights = flat.reshape(start.shape)
        output = torch.from_numpy(known @ weights).requires_grad_()
        loss = task.loss_sum(output, labels)
        (slope,) = torch.autograd.grad(loss, output)
        gradient = transposed @ slope.numpy() + pulls * weights
        return float(loss.detach()) + 0.5 * float((pulls * weights**2).sum()), gradient.ravel()

    found = minimize(loss_and_gradient, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
    return np.asarray(found.x).reshape(start.shape)
