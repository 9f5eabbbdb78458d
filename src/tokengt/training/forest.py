"""A random forest on fingerprints: the other simple model that a model of molecules should beat (Breiman 2001).

It reads what the linear model of :mod:`tokengt.training.floor` reads: counts of circular (Morgan) neighbourhoods, and
descriptors where there are any. Trees grow until their leaves are pure, from bootstrap samples, and look at a random
share of the columns at each split: a third for numbers, the square root for classes. There is one forest per target,
of the rows that have a label; it learns the logarithm of a target where models do. scikit-learn grows them
(``pip install 'tokengt[forest]'``).
"""

from typing import Any

import numpy as np
import torch

from tokengt.data.manifest import TaskKind
from tokengt.data.splits import Split
from tokengt.data.store import Store
from tokengt.training.floor import Floor, has_fingerprints, inputs, some_of
from tokengt.training.tasks import Task

TREES = 200


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
    try:
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
    except ImportError as error:
        raise ImportError("a random forest is grown by scikit-learn; pip install scikit-learn brings it") from error
    there = ~np.isnan(labels)
    if kind == "regression":
        forest = RandomForestRegressor(TREES, max_features=1 / 3, random_state=seed, n_jobs=-1)
        forest.fit(known[there], np.log(labels[there]) if logs else labels[there])
        said = _alone(forest).predict(asked)[:, None]
        return np.exp(said) if logs else said
    forest = RandomForestClassifier(TREES, max_features="sqrt", random_state=seed, n_jobs=-1)
    forest.fit(known[there], labels[there].astype(np.int64))
    # A class that no row has gets no column of scikit-learn's.
    probabilities = np.zeros((asked.shape[0], classes if kind == "multiclass" else 2))
    probabilities[:, forest.classes_] = _alone(forest).predict_proba(asked)
    return probabilities if kind == "multiclass" else probabilities[:, 1:]


def _alone(forest: Any) -> Any:
    """On one core, since several would add up the trees in any order, and sums depend on it in their last digits."""
    return forest.set_params(n_jobs=1)
