"""A random forest on fingerprints (Breiman 2001): the other simple model that a model of molecules should beat, and one
that makes it better.

As a floor it reads what the linear model of :mod:`tokengt.training.floor` reads: counts of circular (Morgan)
neighbourhoods, and descriptors where there are any. Beside a model (``training.forest``) it reads the features that the
model's head reads, and the run predicts a mean of the two: they err differently, so the mean errs less.

Trees grow until their leaves are pure, from bootstrap samples, and look at a random share of the columns at each split:
a third for numbers, the square root for classes. There is one forest per target, of the rows that have a label; it
learns the logarithm of a target where models do. scikit-learn grows them (``pip install 'tokengt[chem]'``).
"""

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.data.manifest import TaskKind, policy_of
from tokengt.data.splits import Split
from tokengt.data.store import Store
from tokengt.interop.descriptors import FEATURE_KINDS
from tokengt.models.contract import ModelConfig
from tokengt.models.forest import MOST_COLUMNS, Forest
from tokengt.training.config import TrainingConfig
from tokengt.training.floor import Floor, has_fingerprints, inputs, some_of
from tokengt.training.tasks import Task

TREES = 200
# More targets than these would make a forest of hundreds of MB.
_MOST_TARGETS = 32


def forest_floor(store: Store, split: Split, task: Task, seed: int = 0) -> Floor | None:
    """The forest's predictions of the test part, as :meth:`Task.predictions` has them; None for data it cannot read.

    The same arguments give the same predictions, on any number of cores.

    Raises:
        ImportError: scikit-learn is not installed.
    """
    if not has_fingerprints(store) or not len(split.test):
        return None
    train = some_of(split.train, task.width, seed)
    known, asked = inputs(store.graphs, train), inputs(store.graphs, split.test)
    labels = store.targets[train].double().numpy()
    columns = [
        forest_column(task.kind, known, labels[:, at], asked, seed, task.width, logs=name in task.logged)
        for at, name in enumerate(task.names)
    ]
    predictions = torch.from_numpy(np.concatenate(columns, 1))
    return Floor(predictions, len(train) if len(train) < len(split.train) else None)


def forest_column(
    kind: TaskKind, known: Any, labels: Any, asked: Any, seed: int, classes: int = 2, *, logs: bool = False
) -> Any:
    """One target: [rows, 1] numbers or probabilities of class 1, or of several ``classes`` [rows, classes].

    ``known`` and ``asked`` are [rows, columns], dense or sparse, ``labels`` [rows] with NaN where there is none. With
    ``logs`` the logarithm of numbers is learned, as models do that it is compared with.

    Raises:
        ImportError: scikit-learn is not installed.
    """
    forest = _fitted(kind, known, np.log(labels) if logs else labels, seed)
    if kind == "regression":
        said = _alone(forest).predict(asked)[:, None]
        return np.exp(said) if logs else said
    return _of_classes(kind, classes, forest, _alone(forest).predict_proba(asked))


def _alone(forest: Any) -> Any:
    """On one core, since several would add up the trees in any order, and sums depend on it in their last digits."""
    return forest.set_params(n_jobs=1)


def trees_beside(models: int) -> int:
    """How many trees stand beside each of so many models on the same rows: together they are one forest."""
    return -(-TREES // models)


def _fitted(kind: TaskKind, known: Any, labels: Any, seed: int, weights: Any = None, trees: int | None = None) -> Any:
    """scikit-learn's forest of the rows that have a label and count."""
    try:
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
    except ImportError as error:
        raise ImportError("a random forest is grown by scikit-learn; pip install scikit-learn brings it") from error
    there = ~np.isnan(labels)
    if weights is not None and weights[there].any():
        # A leaf of rows that count nothing would say nothing.
        there &= weights > 0
    counts = None if weights is None else weights[there]
    trees = TREES if trees is None else trees
    if kind == "regression":
        forest = RandomForestRegressor(trees, max_features=1 / 3, random_state=seed, n_jobs=-1)
        return forest.fit(known[there], labels[there], sample_weight=counts)
    forest = RandomForestClassifier(trees, max_features="sqrt", random_state=seed, n_jobs=-1)
    return forest.fit(known[there], labels[there].astype(np.int64), sample_weight=counts)


def _of_classes(kind: TaskKind, classes: int, forest: Any, shares: Any) -> Any:
    """From shares of the classes that have a row, as scikit-learn gives them: those of all, or that of class 1."""
    whole = np.zeros((len(shares), classes if kind == "multiclass" else 2))
    whole[:, forest.classes_] = shares
    return whole if kind == "multiclass" else whole[:, 1:]


def is_wanted(training: TrainingConfig, task: Task, store: Store, model: ModelConfig) -> bool:
    """Whether a forest stands beside the model.

    Raises:
        ValueError: one sentence: it is asked for, and there is nothing it could read or learn.
    """
    if training.forest == "never":
        return False
    obstacle = _obstacle(task, store) or _not_installed()
    if training.forest == "always":
        if obstacle is not None:
            raise ValueError(f"training.forest is 'always', and {obstacle}; set it to 'never'")
        return True
    return obstacle is None and _by_default(store, model)


def left_out(training: TrainingConfig, task: Task, store: Store, model: ModelConfig) -> str | None:
    """A sentence where a forest would stand beside the model by itself, and only scikit-learn is wanting."""
    without = _not_installed()
    if training.forest != "auto" or not _by_default(store, model) or _obstacle(task, store) or without is None:
        return None
    return f"no random forest stands beside the model: {without}"


def _by_default(store: Store, model: ModelConfig) -> bool:
    """Whether the model's head reads what describes molecules best, which trees read well."""
    reads = model.kept_descriptors < model.num_descriptors
    policy = policy_of(store.manifest.featurisation)
    return reads and policy is not None and set(FEATURE_KINDS) <= set(policy.features)


def _obstacle(task: Task, store: Store) -> str | None:
    """Why no forest can stand beside a model of this data, in words; None where it can."""
    columns = store.graphs.graph_features
    if store.manifest.level != "graph" or not isinstance(columns, Tensor):
        return "the data has no numbers of whole graphs, such as descriptors, that trees could read"
    if task.loss in ("quantile", "gaussian") or store.bounds is not None:
        return "trees learn the mean of numbers that are known, and no quantile, variance or bound"
    if len(task.names) > _MOST_TARGETS:
        return f"there are {len(task.names)} targets; expected at most {_MOST_TARGETS}"
    if columns.shape[1] > MOST_COLUMNS:
        return f"there are {columns.shape[1]:,} columns of descriptors; expected at most {MOST_COLUMNS:,}"
    return None


def _not_installed() -> str | None:
    return None if find_spec("sklearn") else "scikit-learn is not installed (pip install 'tokengt[chem]')"


def grown(
    task: Task,
    features: Float[Tensor, "rows columns"],
    labels: Float[Tensor, "rows targets"],
    seed: int,
    weights: Float[Tensor, " rows"] | None = None,
    trees: int | None = None,
) -> Forest:
    """The forest of these rows, so many trees per target (by itself TREES); NaN where there is no label.

    The same arguments grow the same trees.
    """
    known, learned = features.numpy(), labels.double().numpy()
    learned = task.scaling.comparable(learned) if task.kind == "regression" else learned
    found, said = [], []
    for at in range(len(task.names)):
        column = learned[:, at]
        forest = _fitted(task.kind, known, column, seed, _counts(task, column, at, weights), trees)
        own = [tree.tree_ for tree in forest.estimators_]
        found.append(own)
        said.append([_said(task, forest, tree.value) for tree in own])
    return Forest.of_trees(found, said)


def _counts(task: Task, labels: Any, at: int, weights: Tensor | None) -> Any:
    """How much each row counts for a target: its own weight, times that of its class; None where all count alike."""
    if weights is None and not task.class_weights:
        return None
    counts = np.ones(len(labels)) if weights is None else weights.double().numpy()
    if task.class_weights:
        # Of binary targets: zeros of each, and then ones of each.
        of_class = np.array(task.class_weights)
        places = np.nan_to_num(labels).astype(np.int64)
        counts = counts * of_class[places if task.kind == "multiclass" else places * len(task.names) + at]
    return counts


def _said(task: Task, forest: Any, values: Any) -> Any:
    """What the nodes of a tree say, [nodes, width]: shares of classes, or means; ``values`` are [nodes, 1, width]."""
    values = values[:, 0]
    if task.kind == "regression":
        return values
    return _of_classes(task.kind, task.width, forest, values / values.sum(1, keepdims=True))
