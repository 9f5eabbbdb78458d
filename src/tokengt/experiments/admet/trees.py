"""A random forest and gradient boosting on fingerprints and descriptors: what a chemist fits in a minute.

Both read counts of Morgan neighbourhoods (radius 2, 1,024 columns) and RDKit's descriptors of the whole molecule. The
forest is the one of ``tokengt compare`` (200 trees) and chooses nothing, so it grows from all of train_val. Boosting
(scikit-learn's histogram trees) chooses the number of its trees on the rows that the seed keeps for choosing, and is
then fitted again to all of train_val with so many. Both learn the logarithm of labels where tokengt does so by itself.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokengt.data.manifest import TaskKind
from tokengt.experiments.admet.reading import EndpointData
from tokengt.files import writing
from tokengt.interop.descriptors import FEATURE_KINDS, features_of
from tokengt.interop.reading import DEFAULT_POLICY, molecules
from tokengt.training.forest import forest_column
from tokengt.training.metrics import Array

Features = NDArray[np.float32]
# Trees of boosting, at most, and how many that do not help end it.
_MOST, _PATIENCE = 500, 25


def features(smiles: Sequence[str]) -> Features:
    """[molecules, columns] of readable SMILES."""
    return np.stack([features_of(molecule, FEATURE_KINDS) for molecule in molecules(smiles, DEFAULT_POLICY, "smiles")])


def kept_features(data: EndpointData, folder: Path) -> Features:
    """The features of all rows: computed once, and kept in ``folder`` for those who come later."""
    file = folder / f"features-{data.checksum[:16]}.npy"
    if file.exists():
        return np.asarray(np.load(file, allow_pickle=False))
    found = features(data.smiles)
    folder.mkdir(parents=True, exist_ok=True)
    with writing(file) as stream:
        np.save(stream, found, allow_pickle=False)
    return found


def forest(data: EndpointData, known: Features, seed: int) -> tuple[Array, dict[str, Any]]:
    """Predictions of the test part, and how many rows it grew from."""
    rows = data.train_val
    logs = data.endpoint.skewed
    predicted = forest_column(data.endpoint.task, known[rows], data.labels[rows], known[data.test], seed, logs=logs)
    return predicted[:, -1], {"rows": len(rows), "chosen_by": 0}


def boosting(data: EndpointData, known: Features, seed: int) -> tuple[Array, dict[str, Any]]:
    """Predictions of the test part, and how many trees were chosen."""
    rows, held_out = data.train_val, data.chosen_by(seed)
    learned = np.setdiff1d(rows, held_out)
    task, labels = data.endpoint.task, data.labels.copy()
    if data.endpoint.skewed:
        labels[rows] = np.log(labels[rows])
    first = _booster(task, seed, _MOST, early_stopping=True, n_iter_no_change=_PATIENCE)
    first.fit(known[learned], labels[learned], X_val=known[held_out], y_val=labels[held_out])
    # The first score is that of no tree at all.
    trees = max(1, int(np.argmax(first.validation_score_)))
    second = _booster(task, seed, trees, early_stopping=False).fit(known[rows], labels[rows])
    asked = known[data.test]
    predicted = second.predict(asked) if task == "regression" else second.predict_proba(asked)[:, 1]
    predicted = np.exp(predicted) if data.endpoint.skewed else predicted
    return np.asarray(predicted, dtype=np.float64), {"rows": len(rows), "chosen_by": len(held_out), "trees": trees}


def _booster(task: TaskKind, seed: int, trees: int, **settings: Any) -> Any:
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    except ImportError as error:
        raise ImportError("gradient boosting is scikit-learn's; pip install 'tokengt[forest]' brings it") from error
    kind = HistGradientBoostingRegressor if task == "regression" else HistGradientBoostingClassifier
    return kind(max_iter=trees, random_state=seed, **settings)
