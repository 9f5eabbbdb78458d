"""The random forest on fingerprints: a law that no line fits, gaps, classes, and the same numbers every time."""

import sys
from dataclasses import replace

import pytest
import torch

from tests.training.stores import graph_store, molecule_store, ring
from tests.workflow.small import molecules
from tokengt.data.splits import Split, random_split
from tokengt.training import floor, forest
from tokengt.training.forest import forest_floor
from tokengt.training.metrics import metrics, spearman
from tokengt.training.tasks import Task


@pytest.fixture(autouse=True)
def _few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forest, "TREES", 40)


def test_a_law_of_counts_is_found_and_found_again() -> None:
    """The label says whether there is oxygen or nitrogen but not both, which no linear model can say."""
    texts = molecules(200)[0]
    labels = [[float(("O" in text.upper()) != ("N" in text.upper()))] for text in texts]
    store = replace(molecule_store(texts=texts), targets=torch.tensor(labels, dtype=torch.float64))
    split = random_split(200, 0)
    for task in (Task.fit("regression", store.targets[split.train], ("y",)), Task("binary", ("y",))):
        found, again = (forest_floor(store, split, task, seed=1) for _ in range(2))
        assert found is not None
        assert again is not None
        assert torch.equal(found.predictions, again.predictions)
        right = ((found.predictions - store.targets[split.test]).abs() < 0.5).double().mean()
        assert right > store.targets[split.test].mean() + 0.1
        other = forest_floor(store, split, task, seed=2)
        assert other is not None
        assert not torch.equal(found.predictions, other.predictions)


def test_it_beats_the_mean_of_the_labels() -> None:
    store, split = molecule_store(200), random_split(200, 0)
    task = Task.fit("regression", store.targets[split.train], ("y",))
    found = forest_floor(store, split, task)
    assert found is not None
    assert metrics(task, found.predictions, store.targets[split.test])["r2"] > 0.3


def test_it_learns_the_logarithm_where_models_do() -> None:
    """Of skewed labels a few large ones decide the means of leaves; by logarithms the ranks come out better."""
    store, split = molecule_store(200), random_split(200, 0)
    skewed = replace(store, targets=(3 * store.targets).exp())
    train, test = skewed.targets[split.train], skewed.targets[split.test]
    plain = Task.fit("regression", train, ("y",))
    logged = plain.with_logs(train, "always")
    assert logged.logged == ("y",)
    ranks = []
    for task in (plain, logged):
        found = forest_floor(skewed, split, task)
        assert found is not None
        assert (found.predictions > 0).all()
        ranks.append(spearman(found.predictions[:, 0].numpy(), test[:, 0].numpy()))
    assert ranks[1] > ranks[0]


def test_each_target_is_fitted_to_the_labels_it_has() -> None:
    store = molecule_store(60)
    y = store.targets
    both = torch.cat([(y > -2).double(), (y > -3).double()], 1)
    both[::3, 1] = torch.nan
    split = random_split(60, 0, (0.6, 0.2, 0.2))
    together, first, second = (
        forest_floor(replace(store, targets=both[:, columns]), split, Task("binary", tuple("ab"[c] for c in columns)))
        for columns in ([0, 1], [0], [1])
    )
    assert together is not None
    assert first is not None
    assert second is not None
    assert torch.equal(together.predictions, torch.cat([first.predictions, second.predictions], 1))


def test_classes_have_probabilities_also_those_without_a_row() -> None:
    labels = torch.tensor([[2.0 * float("N" in text)] for text in molecules(40)[0]], dtype=torch.float64)
    split = random_split(40, 0)
    store = replace(molecule_store(40), targets=labels)
    found = forest_floor(store, split, Task("multiclass", ("y",), ("0", "1", "2")))
    assert found is not None
    assert found.predictions.shape == (len(split.test), 3)
    assert torch.allclose(found.predictions.sum(1), torch.ones(len(split.test), dtype=torch.float64))
    assert (found.predictions[:, 1] == 0).all()


def test_what_it_cannot_read_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task("regression", ("y",))
    rings = graph_store([ring(4 + place) for place in range(10)])
    assert forest_floor(rings, random_split(10, 0), task) is None, "nodes of floats"
    store, nothing = molecule_store(12), torch.zeros(0, dtype=torch.int64)
    assert forest_floor(store, Split(torch.arange(12), nothing, nothing), task) is None, "nothing to test"
    monkeypatch.setattr(floor, "MOST_ROWS", 5)
    few = forest_floor(store, Split(torch.arange(8), nothing, torch.arange(8, 12)), task)
    assert few is not None
    assert few.fitted == 5
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(ImportError, match="pip install scikit-learn brings it"):
        forest_floor(store, Split(torch.arange(8), nothing, torch.arange(8, 12)), task)
